"""The completion dialect: chunks of text and of tool calls by index, of which the final one has usage and reason."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeAlias

import msgspec
from reactivex import Observable

from rxllm.chunks._chunk import as_text
from rxllm.values import FinishReason, StreamError, Usage, ValidationError, Value
from rxllm.values._base import value

_TEXT: tuple[type, ...] = (str, type(None))
_USAGE: tuple[type, ...] = (Usage, type(None))


class ToolCallDelta(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A piece of the call of `index`, counted from 0. Usually the first one has its `id` and `name`.

    `arguments_delta` is a piece of JSON text. Raises ``ValueError`` for a negative index.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments_delta: str = ""

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"a tool call's index is counted from 0, not {self.index}")


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
        """A piece of text. Raises ``ValidationError("invalid_message")`` for what is no string."""
        return cls(as_text(delta))

    @classmethod
    def final_chunk(cls, usage: Usage | None, reason: FinishReason | None) -> CompletionChunk:
        """The last chunk. Raises ``ValidationError("invalid_message")`` for other types, or the other order."""
        held = (("usage", usage, _USAGE), ("reason", reason, _TEXT))
        wrong = [((name,), "wrong_type") for name, given, fits in held if not isinstance(given, fits)]
        if wrong:
            what = f"final_chunk takes the usage and then the reason, not {usage!r} and {reason!r}"
            raise ValidationError("invalid_message", what, errors=wrong)
        return cls(is_final=True, usage=usage, finish_reason=reason)


CompletionStream: TypeAlias = Observable[CompletionChunk]


def check_chunk(chunk: Any) -> None:
    """Raises ``StreamError("malformed_event")`` for what is no chunk, and for one whose fields have wrong types."""
    if not isinstance(chunk, CompletionChunk):
        what = f"{chunk!r} is no CompletionChunk; for text, make it with CompletionChunk.text(...)"
        raise StreamError("malformed_event", what)
    _check(chunk, "delta", _TEXT)
    _check(chunk, "usage", _USAGE)
    _check(chunk, "finish_reason", _TEXT)
    _check(chunk, "tool_calls", (tuple, list))
    for call in chunk.tool_calls:
        if not isinstance(call, ToolCallDelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError("malformed_event", f"a CompletionChunk's tool_calls cannot hold {call!r}")
        for name in ("id", "name", "arguments_delta"):
            _check(call, name, _TEXT)


def _check(held: Any, name: str, fits: tuple[type, ...]) -> None:
    given = getattr(held, name)
    if not isinstance(given, fits):
        raise StreamError("malformed_event", f"a {type(held).__name__}'s {name} cannot be {given!r}")


@value
class CompletionToolCall(Value):
    """A whole call; `arguments` is the text as it came, JSON or not."""

    id: str
    name: str
    arguments: str = ""


def nothing_used() -> Usage:
    """What counts where nobody said anything."""
    return Usage(input_tokens=0, output_tokens=0, total_tokens=0)


@value
class CompletionResponse(Value):
    """A whole completion. `content` is None where there was no text, calls are in the order of their indexes.

    `dropped` are the calls whose id never came: nobody can answer them.
    """

    content: str | None = None
    tool_calls: tuple[CompletionToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=nothing_used)
    model: str = ""
    dropped: tuple[CompletionToolCall, ...] = ()
