"""Responses, and other items that operators emit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

import msgspec

from rxllm.values.argument_checks import shorten
from rxllm.values.base import Value, value
from rxllm.values.codec import encode_result
from rxllm.values.drawing import card_html
from rxllm.values.errors import LLMError
from rxllm.values.messages import Message, Part, ThinkingPart, attached, shown_attached
from rxllm.values.times import Measured
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
class Response(Measured, Value, Generic[T]):
    """A model's response to one request.

    `message` is the whole response. `output_text` is its text. `tool_calls` are the calls that the client must run.
    The provider sets `id` and `model`.

    A stream that fails also produces a Response. Its `finish_reason` is ``"error"``, and `error` is the exception. The
    other fields contain the data received so far.

    `parsed` is the answer, parsed into the call's `response_format`, or the result of an operator's `parse` argument.
    It is None if the response calls tools or has failed, but type checkers assume that it is present. In JSON, it is
    plain data; ``serializer.from_json(text, response_format=...)`` restores the object.

    `metadata` is everything else that the provider reports. Its keys are the same for every provider:
    ``"service_tier"``, ``"system_fingerprint"``, ``"provider"``, ``"native_finish_reason"``, ``"timings"``, and keys
    for content filters. ``"logprobs"``, if requested, has an entry for each token of the text: ``{"token": "Hi",
    "logprob": -0.1, "top_logprobs": [...]}``.
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

    html = card_html

    @property
    def thinking(self) -> str:
        """The text of the model's thinking, or as much of it as the provider reveals."""
        return "".join(part.text for part in self._parts if isinstance(part, ThinkingPart))

    @property
    def refused(self) -> bool:
        """Whether the model refused to answer, or a filter stopped the request or the answer."""
        return self.finish_reason == "content_filter" or getattr(self.error, "reason", None) == "content_filter"

    def raise_for_error(self) -> Response[T]:
        """Return this response, or raise `error` if it is set."""
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
    """An item and the label of the stream that emitted it. It can be unpacked, as in ``for label, item in merged``."""

    label: str
    item: T_co

    def __iter__(self) -> Iterator[Any]:
        return iter((self.label, self.item))


class Timed(msgspec.Struct, Generic[T_co], frozen=True):
    """An item and the time at which it was emitted.

    `at` is in seconds since the subscription or the start of the run. It can be unpacked, as in
    ``for at, item in timed``.
    """

    at: float
    item: T_co

    def __iter__(self) -> Iterator[Any]:
        return iter((self.at, self.item))


class TextAt(msgspec.Struct, frozen=True):
    """A piece of a string in a JSON answer.

    `path` contains the keys and indexes that lead to the string.
    """

    path: tuple[str | int, ...]
    text: str


class Progress(msgspec.Struct, frozen=True):
    """The progress of a batch of requests.

    * `done`: the number of requests that have ended, out of `total`. If the requests arrive over time, `total` is how
      many have arrived.
    * `failed`: the number of requests that ended without an answer.
    * `usage`: the total usage of the requests that have ended.
    * `journaled`: the number of requests that were answered from the journal.
    * `retries`: the number of failed attempts that were repeated.
    * `seconds_p50` and `seconds_p95`: the median and the 95th percentile of the durations of completed calls. A
      duration includes retries but not waits for a rate limit.
    """

    done: int
    failed: int
    total: int
    usage: Usage
    journaled: int = 0
    retries: int = 0
    seconds_p50: float | None = None
    seconds_p95: float | None = None


class Trace(msgspec.Struct, frozen=True):
    """A signal that passed a traced point in a pipe.

    `at` is in seconds since the subscription. `count` is the number of items before this signal. `item` is the item or
    the error, or None if the signal has neither.
    """

    kind: Literal["subscribe", "next", "error", "end", "dispose"]
    at: float
    count: int
    item: Any = None
