"""The chunks of the StreamChunk dialect: text, thinking, tool calls, and what a stream says about itself.

Whoever writes an adapter makes them with `text`, `thinking`, `tool_call`, `meta` and `content_part`. The keys of their
metadata that mean something:

================  ====================================================================================================
chunk             keys
================  ====================================================================================================
``thinking``      ``signature``: it ends its block, and goes back to the provider with whatever else there is;
                  ``stream_only?``: shown, never part of the message
``tool_call``     ``id``; ``index`` (0), to which fragments refer; ``start``, ``expects_arg_fragments`` or
                  ``args_fragment_expected?``: True says that fragments will come; ``raw_arguments``: the first of
                  them; ``builtin?``: the provider runs it. What else there is belongs to the call
``meta``          ``tool_call_args`` (``{"index": 0, "fragment": '{"a"'}``), ``tool_call_metadata`` (``{"index": 0,
                  "metadata": {...}}``), ``reasoning_details``, ``logprobs``, ``annotations`` (lists),
                  ``finish_reason``, ``usage`` (counters, cumulative), ``error``, ``response_id``, ``model``
``content_part``  ``stream_only?``
================  ====================================================================================================

Wherever chunks are read, a plain mapping of a chunk's fields is one too: ``{"type": "content", "text": "Hi"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rxllm.events import NOTHING
from rxllm.values import Part, ValidationError

SHOWN = 20


class StreamChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of a stream: its `type`, and the fields that such a chunk has.

    Nothing is checked when it is made, see `validate`. It is no value of ``rxllm.values``, which would make it eighteen
    times as costly: ``rxllm.serializer`` does not know it, ``msgspec.json`` reads and writes it.
    """

    type: str
    text: str | None = None
    name: str | None = None
    arguments: Any = None
    metadata: Mapping[str, Any] = NOTHING
    content_part: Any = None

    def __repr__(self) -> str:
        said = {name: held for name in self.__struct_fields__[1:] if (held := getattr(self, name)) not in (None, {})}
        if isinstance(said.get("text"), str):
            said["text"] = _cut(said["text"])
        return f"StreamChunk({', '.join([str(self.type), *(f'{name}={held!r}' for name, held in said.items())])})"


FIELDS = StreamChunk.__struct_fields__


def as_chunk(given: Any) -> Any:
    """A plain mapping of a chunk's fields as that chunk; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    fields = cast(Mapping[str, Any], given)
    return StreamChunk(**fields) if "type" in fields and fields.keys() <= {*FIELDS} else fields


def text(text: str, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """A piece of text. Raises ``ValidationError("invalid_message")`` for what is no string, as `thinking` does.

    >>> text("To be, or not to be, that is the question.")
    StreamChunk(content, text='To be, or not to be,…')
    """
    return StreamChunk("content", as_text(text), metadata=metadata)


def thinking(text: str, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """A piece of what the model thinks.

    >>> thinking("Hm.", {"signature": "c2ln"})
    StreamChunk(thinking, text='Hm.', metadata={'signature': 'c2ln'})
    """
    return StreamChunk("thinking", as_text(text), metadata=metadata)


def tool_call(
    name: str, arguments: Mapping[str, Any] | str | None = None, metadata: Mapping[str, Any] | None = None
) -> StreamChunk:
    """A call of the tool `name`: whole, or to be completed by the fragments that follow.

    >>> tool_call("add", {"a": 1}, {"id": "c1"})
    StreamChunk(tool_call, name='add', arguments={'a': 1}, metadata={'id': 'c1'})
    """
    return StreamChunk("tool_call", name=name, arguments=arguments, metadata=metadata or {})


def meta(metadata: Mapping[str, Any]) -> StreamChunk:
    """What the stream says about itself.

    >>> meta({"finish_reason": "stop"})
    StreamChunk(meta, metadata={'finish_reason': 'stop'})
    """
    return StreamChunk("meta", metadata=metadata)


def content_part(part: Part, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """A whole part of the content: a file, an image, a source.

    >>> from rxllm import FilePart
    >>> content_part(FilePart({"mime_type": "image/png", "url": "https://example.com/a.png"})).type
    'content_part'
    """
    return StreamChunk("content_part", metadata=metadata, content_part=part)


def validate(chunk: StreamChunk | Mapping[str, Any]) -> StreamChunk:
    """The chunk, if it has what its type needs.

    Raises ``ValidationError("invalid_message")``, whose `errors` name the field.

    >>> validate(StreamChunk("meta", metadata=None))
    Traceback (most recent call last):
    rxllm.values.errors.ValidationError: validation failed: invalid_message (metadata must be a mapping)
    """
    chunk = as_chunk(chunk)
    match chunk:
        case StreamChunk(type="content" | "thinking"):
            fault = _fault(isinstance(chunk.text, str), "text", "must be a string")
        case StreamChunk(type="tool_call", name=str(name)) if name:
            fits = isinstance(chunk.arguments, Mapping | str | None)
            fault = _fault(fits, "arguments", "must be a mapping, a string or None")
        case StreamChunk(type="tool_call"):
            fault = _fault(False, "name", "must be a string that is not empty")
        case StreamChunk(type="meta"):
            fault = []
        case StreamChunk(type="content_part"):
            fault = _fault(isinstance(chunk.content_part, Part), "content_part", "must be a part of a message")
        case StreamChunk():
            fault = _fault(False, "type", f"unknown: {chunk.type!r}")
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            raise ValidationError("invalid_message", f"{type(chunk).__name__} is no StreamChunk")
    fault = fault or _fault(isinstance(chunk.metadata, Mapping), "metadata", "must be a mapping")  # pyright: ignore[reportUnnecessaryIsInstance]
    if fault:
        raise ValidationError("invalid_message", errors=fault)
    return chunk


def as_text(given: str) -> str:
    """`given`, if it is a string; raises ``ValidationError("invalid_message")`` otherwise."""
    if isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return given
    raise ValidationError("invalid_message", errors=[(("text",), f"must be a string, not {given!r}")])


def _fault(fits: bool, field: str, what: str) -> list[tuple[tuple[str], str]]:
    return [] if fits else [((field,), what)]


def _cut(said: str) -> str:
    return said if len(said) <= SHOWN else said[:SHOWN] + "…"
