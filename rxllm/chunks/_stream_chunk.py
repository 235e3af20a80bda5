"""The chunks of the StreamChunk dialect: text, thinking, tool calls, and what a stream says about itself.

Authors of adapters make them with `text`, `thinking`, `tool_call`, `meta` and `content_part`. These keys of their
metadata have a meaning:

================  ====================================================================================================
chunk             keys
================  ====================================================================================================
``thinking``      ``signature``: ends its block, and goes back to the provider together with all other keys;
                  ``stream_only?``: shown, but not part of the message
``tool_call``     ``id``; ``index`` (0), to which fragments refer; ``start``, ``expects_arg_fragments`` or
                  ``args_fragment_expected?``: True announces fragments; ``raw_arguments``: the first of them;
                  ``builtin?``: the provider runs it. All other keys belong to the call
``meta``          ``tool_call_args`` (``{"index": 0, "fragment": '{"a"'}``), ``tool_call_metadata`` (``{"index": 0,
                  "metadata": {...}}``), ``reasoning_details``, ``logprobs``, ``annotations`` (lists),
                  ``finish_reason``, ``usage`` (counters, cumulative), ``error``, ``response_id``, ``model``
``content_part``  ``stream_only?``
================  ====================================================================================================

Wherever chunks are read, a plain mapping of a chunk's fields will do: ``{"type": "content", "text": "Hi"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rxllm.events import NOTHING
from rxllm.values import Part, ValidationError
from rxllm.values.argument_checks import must_be

SHOWN = 20
"""How many characters of a chunk's text its repr shows."""


class StreamChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of a stream: its `type`, and the fields that chunks of this type have.

    Making one checks nothing, see `validate`. It is not one of ``rxllm.values``, which would make it eighteen times as
    costly: ``rxllm.serializer`` does not know it, ``msgspec.json`` reads and writes it.
    """

    type: str
    text: str | None = None
    name: str | None = None
    arguments: Any = None
    metadata: Mapping[str, Any] = NOTHING
    content_part: Any = None

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in FIELDS[1:]}
        if isinstance(self.text, str) and len(self.text) > SHOWN:
            fields["text"] = self.text[:SHOWN] + "…"
        listed = (f"{name}={value!r}" for name, value in fields.items() if value not in (None, {}))
        return f"StreamChunk({', '.join([str(self.type), *listed])})"


FIELDS = StreamChunk.__struct_fields__


def as_chunk(item: Any) -> Any:
    """Return a plain mapping of a chunk's fields as that chunk, and anything else as it is."""
    if not isinstance(item, Mapping):
        return item
    fields = cast(Mapping[str, Any], item)
    return StreamChunk(**fields) if "type" in fields and fields.keys() <= {*FIELDS} else fields


def text(text: str, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """Return a piece of text. Raises ``ValidationError("invalid_message")`` unless it is a string, like `thinking`.

    >>> text("To be, or not to be, that is the question.")
    StreamChunk(content, text='To be, or not to be,…')
    """
    return StreamChunk("content", as_text(text), metadata=metadata)


def thinking(text: str, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """Return a piece of what the model thinks.

    >>> thinking("Hm.", {"signature": "c2ln"})
    StreamChunk(thinking, text='Hm.', metadata={'signature': 'c2ln'})
    """
    return StreamChunk("thinking", as_text(text), metadata=metadata)


def tool_call(
    name: str, arguments: Mapping[str, Any] | str | None = None, metadata: Mapping[str, Any] | None = None
) -> StreamChunk:
    """Return a call of the tool `name`: complete, or to be completed by fragments that follow.

    >>> tool_call("add", {"a": 1}, {"id": "c1"})
    StreamChunk(tool_call, name='add', arguments={'a': 1}, metadata={'id': 'c1'})
    """
    return StreamChunk("tool_call", name=name, arguments=arguments, metadata=metadata or {})


def meta(metadata: Mapping[str, Any]) -> StreamChunk:
    """Return what the stream says about itself.

    >>> meta({"finish_reason": "stop"})
    StreamChunk(meta, metadata={'finish_reason': 'stop'})
    """
    return StreamChunk("meta", metadata=metadata)


def content_part(part: Part, metadata: Mapping[str, Any] = NOTHING) -> StreamChunk:
    """Return a whole part of the content: a file, an image, a source.

    >>> from rxllm.values import FilePart
    >>> content_part(FilePart({"mime_type": "image/png", "url": "https://example.com/a.png"})).type
    'content_part'
    """
    return StreamChunk("content_part", metadata=metadata, content_part=part)


def validate(chunk: StreamChunk | Mapping[str, Any]) -> StreamChunk:
    """Return `chunk` if it has what its type needs.

    Raises ``ValidationError("invalid_message")``, whose `errors` name the field.

    >>> validate(StreamChunk("meta", metadata=None))
    Traceback (most recent call last):
    rxllm.ValidationError: metadata must be a mapping, not None
    """
    chunk = as_chunk(chunk)
    if not isinstance(chunk, StreamChunk):
        raise ValidationError("invalid_message", f"{type(chunk).__name__} is not a StreamChunk")
    if fault := _fault(chunk):
        field, expected = fault
        raise ValidationError("invalid_message", errors=[((field,), must_be(expected, getattr(chunk, field)))])
    return chunk


def as_text(text: str) -> str:
    """Return `text`; raises ``ValidationError("invalid_message")`` unless it is a string."""
    if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return text
    raise ValidationError("invalid_message", errors=[(("text",), must_be("a string", text))])


def _fault(chunk: Any) -> tuple[str, str] | None:
    """Return the first field that does not fit the chunk's type, and what it must be."""
    match chunk.type:
        case "content" | "thinking" if not isinstance(chunk.text, str):
            return "text", "a string"
        case "tool_call" if not isinstance(chunk.name, str) or not chunk.name:
            return "name", "a string that is not empty"
        case "tool_call" if not isinstance(chunk.arguments, Mapping | str | None):
            return "arguments", "a mapping, a string or None"
        case "content_part" if not isinstance(chunk.content_part, Part):
            return "content_part", "a part of a message"
        case "content" | "thinking" | "tool_call" | "meta" | "content_part":
            return None if isinstance(chunk.metadata, Mapping) else ("metadata", "a mapping")
        case _:
            return "type", "content, thinking, tool_call, meta or content_part"
