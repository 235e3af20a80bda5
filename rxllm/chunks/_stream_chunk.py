"""Chunks of the StreamChunk dialect.

Adapter authors create chunks with `text`, `thinking`, `tool_call`, `meta` and `content_part`. A mapping such as
``{"type": "content", "text": "Hi"}`` is accepted too.

The dialect defines these metadata keys:

* In a ``thinking`` chunk: ``signature`` ends the thinking block. All keys are sent back to the provider. If
  ``stream_only?`` is True, the thinking is shown but does not become part of the message.
* In a ``tool_call`` chunk: ``id`` is the call's id. Later fragments refer to the call by its ``index`` (default 0).
  ``raw_arguments`` is the first fragment. If ``start``, ``expects_arg_fragments`` or ``args_fragment_expected?`` is
  True, fragments will follow. If ``builtin?`` is True, the provider runs the tool. All other keys are kept with the
  call.
* In a ``meta`` chunk: ``tool_call_args``, such as ``{"index": 0, "fragment": '{"a"'}``; ``tool_call_metadata``, such as
  ``{"index": 0, "metadata": {...}}``; the lists ``reasoning_details``, ``logprobs`` and ``annotations``;
  ``finish_reason``, ``usage`` (cumulative counters), ``error``, ``response_id`` and ``model``.
* In a ``content_part`` chunk: ``stream_only?``, as for thinking.

The functions that read metadata never raise an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

import msgspec

from rxllm.events import NOTHING
from rxllm.values import FinishReason, Part, Usage, ValidationError
from rxllm.values.argument_checks import must_be, shown

REPR_CHARACTERS = 20
"""The maximum number of characters of text to show in a chunk's repr."""


class StreamChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of a stream. Its `type` determines the other fields.

    Creating a chunk does not check its fields; `validate` does. ``msgspec.json`` supports chunks, but
    ``rxllm.serializer`` does not.
    """

    type: str
    text: str | None = None
    name: str | None = None
    arguments: Any = None
    metadata: Mapping[str, Any] = NOTHING
    content_part: Any = None

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in FIELDS[1:]}
        if isinstance(self.text, str) and len(self.text) > REPR_CHARACTERS:
            fields["text"] = self.text[:REPR_CHARACTERS] + "…"
        listed = (f"{name}={value!r}" for name, value in fields.items() if value not in (None, {}))
        return f"StreamChunk({', '.join([str(self.type), *listed])})"


FIELDS = StreamChunk.__struct_fields__


def as_chunk(item: Any) -> Any:
    """Return `item` as a chunk if it is a mapping that holds a chunk's fields. Return anything else unchanged."""
    if not isinstance(item, Mapping):
        return item
    fields = cast(Mapping[str, Any], item)
    return StreamChunk(**fields) if "type" in fields and fields.keys() <= {*FIELDS} else fields


def text(text: str, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """Return a chunk of text.

    >>> text("To be, or not to be, that is the question.")
    StreamChunk(content, text='To be, or not to be,…')

    Raises ``ValidationError("invalid_message")`` unless `text` is a string.
    """
    return StreamChunk("content", as_text(text), metadata=metadata)


def thinking(text: str, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """Return a chunk of the model's thinking.

    >>> thinking("Hm.", {"signature": "c2ln"})
    StreamChunk(thinking, text='Hm.', metadata={'signature': 'c2ln'})

    Raises the same error as `text`.
    """
    return StreamChunk("thinking", as_text(text), metadata=metadata)


def tool_call(
    name: str, arguments: Mapping[str, Any] | str | None = None, metadata: Mapping[str, Any] | None = None
) -> StreamChunk:
    """Return a chunk that calls the tool `name`.

    >>> tool_call("add", {"a": 1}, {"id": "c1"})
    StreamChunk(tool_call, name='add', arguments={'a': 1}, metadata={'id': 'c1'})

    If later chunks contain fragments of the arguments, the fragments replace `arguments`.
    """
    return StreamChunk("tool_call", name=name, arguments=arguments, metadata=metadata or {})


def meta(metadata: Mapping[str, Any]) -> StreamChunk:
    """Return a chunk of metadata about the stream.

    >>> meta({"finish_reason": "stop"})
    StreamChunk(meta, metadata={'finish_reason': 'stop'})
    """
    return StreamChunk("meta", metadata=metadata)


def content_part(part: Part, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """Return a chunk that contains a complete message part, such as a file.

    >>> from rxllm.values import FilePart
    >>> content_part(FilePart({"mime_type": "image/png", "url": "https://example.com/a.png"})).type
    'content_part'
    """
    return StreamChunk("content_part", metadata=metadata, content_part=part)


def validate(chunk: StreamChunk | Mapping[str, Any]) -> StreamChunk:
    """Return `chunk` if its fields are valid.

    >>> validate(StreamChunk("meta", metadata=None))
    Traceback (most recent call last):
    rxllm.ValidationError: metadata must be a mapping, not None

    Raises ``ValidationError("invalid_message")`` if a field is invalid.
    """
    chunk = as_chunk(chunk)
    if not isinstance(chunk, StreamChunk):
        raise ValidationError("invalid_message", not_a_chunk(chunk))
    if fault := _find_fault(chunk):
        field, expected = fault
        raise ValidationError("invalid_message", errors=[((field,), must_be(expected, getattr(chunk, field)))])
    return chunk


def not_a_chunk(item: Any) -> str:
    remedy = f"use chunks.text(...), or a mapping that has a type and no keys other than these: {', '.join(FIELDS)}"
    return f"{shown(item)} is not a StreamChunk; {remedy}"


def as_text(text: str) -> str:
    if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return text
    raise ValidationError("invalid_message", errors=[(("text",), must_be("a string", text))])


def _find_fault(chunk: Any) -> tuple[str, str] | None:
    """Return the name of the first invalid field and what it must be, or None if all fields are valid."""
    match chunk.type:
        case "content" | "thinking" if not isinstance(chunk.text, str):
            return "text", "a string"
        case "tool_call" if not isinstance(chunk.name, str) or not chunk.name:
            return "name", "a non-empty string"
        case "tool_call" if not isinstance(chunk.arguments, Mapping | str | None):
            return "arguments", "a mapping, a string or None"
        case "content_part" if not isinstance(chunk.content_part, Part):
            return "content_part", "a message part"
        case "content" | "thinking" | "tool_call" | "meta" | "content_part":
            return None if isinstance(chunk.metadata, Mapping) else ("metadata", "a mapping")
        case _:
            return "type", "content, thinking, tool_call, meta or content_part"


Index = str | int | None

_EXPECTS_FRAGMENTS = ("expects_arg_fragments", "args_fragment_expected?", "start")

CONTROL = frozenset({"id", "index", "name", "builtin?", "done_at_unix_nano", *_EXPECTS_FRAGMENTS})
"""The metadata keys in a tool call chunk that are not kept with the call."""

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "completed": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "error": "error",
}
"""Maps the finish reasons found in chunks to rxllm's own."""

_USAGE = {
    "input_tokens": ("input_tokens", "input"),
    "output_tokens": ("output_tokens", "output"),
    "cached_input_tokens": ("cached_input_tokens", "cached_tokens", "cache_read_input_tokens"),
    "cache_write_input_tokens": ("cache_write_input_tokens", "cache_creation_tokens", "cache_creation_input_tokens"),
    "reasoning_tokens": ("reasoning_tokens",),
    "total_tokens": ("total_tokens",),
    "input_cost": ("input_cost",),
    "output_cost": ("output_cost",),
    "total_cost": ("total_cost", "cost"),
}
"""The names of the counters that can set each field of `Usage`, with the most trusted name first."""


class CallRecord(msgspec.Struct, frozen=True):
    """A tool call chunk whose metadata has been parsed."""

    id: str | None
    name: str
    arguments: Any
    index: Index
    metadata: dict[str, Any]
    builtin: bool
    expects_fragments: bool
    first_fragment: str


def read_call(chunk: StreamChunk) -> CallRecord | None:
    """Return the tool call in `chunk`, or None if the chunk does not name a tool."""
    metadata = mapping(chunk.metadata)
    name, id, raw = chunk.name or metadata.get("name"), metadata.get("id"), metadata.get("raw_arguments")
    if not isinstance(name, str) or not name:
        return None
    return CallRecord(
        id=id if isinstance(id, str) and id else None,
        name=name,
        arguments={} if chunk.arguments is None else chunk.arguments,
        index=_index_of(metadata),
        metadata=_drop_control_keys(metadata),
        builtin=metadata.get("builtin?") is True,
        expects_fragments=any(metadata.get(key) is True for key in _EXPECTS_FRAGMENTS),
        first_fragment=raw if isinstance(raw, str) else "",
    )


def read_fragment(entry: Any) -> tuple[Index, str] | None:
    """Return the index and the text of a fragment entry, or None if the entry is malformed."""
    fragment = mapping(entry).get("fragment")
    return (_index_of(entry), fragment) if isinstance(fragment, str) else None


def read_call_metadata(entry: Any) -> tuple[Index, dict[str, Any]] | None:
    """Return the index and the updates of a metadata entry, or None if the entry is malformed."""
    updates = mapping(entry).get("metadata")
    return (_index_of(entry), _drop_control_keys(mapping(updates))) if isinstance(updates, Mapping) else None


def merge_counters(usage: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of counters. If both contain the same counter, keep the larger number."""
    merged = dict(usage)
    for name, value in more.items():
        known = merged.get(name)
        if value is not None:
            merged[name] = max(known, value) if _is_number(known) and _is_number(value) else value
    return merged


def latest_counters(usage: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of counters. If both contain the same counter, keep the later number unless it is 0."""
    updates = {name: n for name, n in more.items() if n is not None and not (n == 0 and usage.get(name))}
    return {**usage, **updates}


def merge_usage(usage: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of counters, and set the total to the sum of input and output."""
    merged = merge_counters(usage, more)
    counts = (merged.get("input_tokens"), merged.get("output_tokens"))
    input, output = (count if _is_number(count) else 0 for count in counts)
    return {**merged, "total_tokens": input + output, "input": input, "output": output}


def to_usage(counters: Mapping[str, Any]) -> Usage:
    """Convert counters to a `Usage`. Unknown counters go into `extra`.

    >>> to_usage({"input_tokens": 5, "output_tokens": 2, "image_tokens": 1})
    Usage(input_tokens=5, output_tokens=2, extra={'image_tokens': 1})
    """
    numbers: dict[str, Any] = {name: value for name, value in counters.items() if _is_number(value)}
    fields = {field: next((numbers[n] for n in names if n in numbers), None) for field, names in _USAGE.items()}
    known = {name for names in _USAGE.values() for name in names if name in numbers}
    tools = counters.get("tool_usage")
    if isinstance(tools, Mapping):
        known.add("tool_usage")
    extra = {name: value for name, value in counters.items() if name not in known}
    return Usage(**fields, tool_usage=dict(mapping(tools)), extra=extra)


def to_finish_reason(reason: Any) -> FinishReason:
    """Convert a provider's finish reason to one of rxllm's own.

    >>> to_finish_reason("end_turn"), to_finish_reason("pause_turn")
    ('stop', 'other')
    """
    return FINISH_REASONS.get(str(reason).lower(), "other")


def as_json(arguments: Any) -> str | None:
    """Return `arguments` as JSON text, or None if they cannot be encoded. A string is returned unchanged."""
    if isinstance(arguments, str):
        return arguments
    value = dict(mapping(arguments)) if isinstance(arguments, Mapping) else arguments
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return None


def is_stream_only(chunk: StreamChunk) -> bool:
    """Return whether `chunk` is shown but does not become part of the message."""
    return mapping(chunk.metadata).get("stream_only?") is True


def mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else NOTHING


def annotation_key(annotation: Any) -> bytes | str:
    """Return a key that is the same for equal annotations."""
    try:
        return msgspec.json.encode(annotation, order="deterministic")
    except (TypeError, ValueError, RecursionError):
        return repr(annotation)


def _drop_control_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in CONTROL}


def _index_of(metadata: Mapping[str, Any]) -> Index:
    # None is a valid index. An index of any invalid type counts as 0.
    index = metadata.get("index", 0)
    return index if isinstance(index, str | int | None) else 0


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
