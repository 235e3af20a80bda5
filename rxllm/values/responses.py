"""The response to one request, and other items that operators emit: labels, paths, progress, traces."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

import msgspec

from rxllm.values.argument_checks import shorten
from rxllm.values.base import Value, value
from rxllm.values.codec import encode_result
from rxllm.values.errors import LLMError
from rxllm.values.messages import Message, Part, ThinkingPart, attached, shown_attached
from rxllm.values.tools import ToolCall
from rxllm.values.usage import Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "error", "other"]


@value
class Response(Value, Generic[T]):
    """The fold of one response: `message` is all of it, `output_text` its text, `tool_calls` the calls for the client.

    A stream that fails midway is a Response too: `finish_reason` is ``"error"``, `error` is the error, and the other
    fields hold what arrived before it. `id` and `model` are the provider's. `parsed` is the parsed answer if the call
    has a `response_format` or the fold a `parse`. JSON keeps it as plain data; ``serializer.from_json(text,
    response_format=...)`` restores the value. Type checkers assume that it is present, but it is None in a response
    that failed (one from `generate_many` included) or that calls tools.

    `metadata` is everything else the provider reports, under the same name for every provider: ``"service_tier"``,
    ``"system_fingerprint"``, ``"provider"``, ``"native_finish_reason"``, ``"timings"``, the verdicts of its filters.
    ``"logprobs"`` are the log-probabilities of the text's tokens, in order, if requested:
    ``{"token": "Hi", "logprob": -0.1, "top_logprobs": [...]}``.
    """

    _encoders: ClassVar = {"parsed": encode_result}

    message: Message | None = None
    output_text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    error: LLMError | None = None
    parsed: T = cast(Any, None)
    id: str | None = None
    model: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def thinking(self) -> str:
        """The model's thinking, as far as the provider shows it."""
        return "".join(part.text for part in self._parts if isinstance(part, ThinkingPart))

    def raise_for_error(self) -> Response[T]:
        """Raise `error` if there is one; otherwise return this response."""
        if self.error is not None:
            raise self.error
        return self

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self.message.parts if self.message else ()

    def __repr__(self) -> str:
        calls = f", calls={list(self.tool_calls)}" if self.tool_calls else ""
        error = f", {self.error!r}" if self.error else ""
        shown = f"{shorten(self.output_text)!r}{attached(self._parts)}{calls}"
        return f"Response({shown}, {self.finish_reason}, {self.usage.total} tokens{error})"

    def _repr_markdown_(self) -> str:
        calls = "".join(f"\n\n`{call!r}`" for call in self.tool_calls)
        error = f"\n\n**{type(self.error).__name__}**: {self.error}" if self.error else ""
        shown = f"{self.output_text}{shown_attached(self._parts)}{calls}{error}"
        return f"{shown}\n\n*{self.finish_reason}, {self.usage.total} tokens*"


class Labelled(msgspec.Struct, Generic[T_co], frozen=True):
    """An item, and the label of its stream."""

    label: str
    item: T_co


class TextAt(msgspec.Struct, frozen=True):
    """A piece of a string in a JSON answer; `path` has the keys and indexes that lead to the string."""

    path: tuple[str | int, ...]
    text: str


class Progress(msgspec.Struct, frozen=True):
    """The progress of a batch of requests: `done` of `total` have ended, and `failed` of these have no answer.

    `usage` is their total usage. `journaled` is the number of requests that were answered from the journal and not
    sent. `retries` is the number of failed attempts so far that were followed by another.
    """

    done: int
    failed: int
    total: int
    usage: Usage
    journaled: int = 0
    retries: int = 0


class Trace(msgspec.Struct, frozen=True):
    """One signal at one place in a pipe.

    `kind` is the signal, `at` the seconds since the subscription, `count` the number of items before it. `item` is the
    item or the error; None for the other kinds.
    """

    kind: Literal["subscribe", "next", "error", "end", "dispose"]
    at: float
    count: int
    item: Any = None
