"""The chunks of the completion dialect: text and tool calls by index; the final chunk has usage and finish reason."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from reactivex import Observable

from rxllm.chunks._stream_chunk import as_text
from rxllm.values import FinishReason, StreamError, Usage, ValidationError
from rxllm.values.argument_checks import shown

_TEXT: tuple[type, ...] = (str, type(None))
_USAGE: tuple[type, ...] = (Usage, type(None))


class ToolCallDelta(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A piece of the tool call at `index`, counted from 0. Usually the first piece has its `id` and `name`.

    `arguments_delta` is a piece of JSON text. Raises ``ValueError`` for a negative index.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments_delta: str = ""

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"the index of a tool call is counted from 0, not {self.index}")


class CompletionChunk(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A piece of a completion: text, which may be empty, and pieces of tool calls; the final one has the rest.

    >>> CompletionChunk.text("Hi")
    CompletionChunk(delta='Hi')
    """

    delta: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    is_final: bool = False
    usage: Usage | None = None
    finish_reason: FinishReason | None = None

    @classmethod
    def text(cls, delta: str) -> CompletionChunk:
        """Return a piece of text. Raises ``ValidationError("invalid_message")`` unless it is a string."""
        return cls(as_text(delta))

    @classmethod
    def final_chunk(cls, usage: Usage | None, reason: FinishReason | None) -> CompletionChunk:
        """Return the last chunk. Raises ``ValidationError("invalid_message")`` for other types, or the other order."""
        arguments = (("usage", usage, _USAGE), ("reason", reason, _TEXT))
        errors = [((name,), "wrong_type") for name, value, types in arguments if not isinstance(value, types)]
        if errors:
            message = f"final_chunk takes the usage and then the reason, not {shown(usage)} and {shown(reason)}"
            raise ValidationError("invalid_message", message, errors=errors)
        return cls(is_final=True, usage=usage, finish_reason=reason)


CompletionStream: TypeAlias = Observable[CompletionChunk]


def check_chunk(item: Any) -> None:
    """Raise ``StreamError("malformed_event")`` unless `item` is a chunk whose fields have the right types."""
    if not isinstance(item, CompletionChunk):
        message = f"{shown(item)} is not a CompletionChunk; for text, use CompletionChunk.text(...)"
        raise StreamError("malformed_event", message)
    _check_field(item, "delta", _TEXT)
    _check_field(item, "usage", _USAGE)
    _check_field(item, "finish_reason", _TEXT)
    _check_field(item, "tool_calls", (tuple, list))
    for call in item.tool_calls:
        if not isinstance(call, ToolCallDelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError("malformed_event", f"a CompletionChunk's tool_calls cannot hold {shown(call)}")
        for name in ("id", "name", "arguments_delta"):
            _check_field(call, name, _TEXT)


def _check_field(struct: msgspec.Struct, name: str, types: tuple[type, ...]) -> None:
    value = getattr(struct, name)
    if not isinstance(value, types):
        raise StreamError("malformed_event", f"the {name} of a {type(struct).__name__} cannot be {shown(value)}")
