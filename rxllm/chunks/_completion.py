"""The completion dialect: chunks of text and of tool calls by index, of which the final one has usage and reason."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

import msgspec
from reactivex import Observable

from rxllm.values import FinishReason, Usage, Value
from rxllm.values._value import value


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
        return cls(delta)

    @classmethod
    def final_chunk(cls, usage: Usage | None, reason: FinishReason | None) -> CompletionChunk:
        return cls(is_final=True, usage=usage, finish_reason=reason)


CompletionStream: TypeAlias = Observable[CompletionChunk]


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
