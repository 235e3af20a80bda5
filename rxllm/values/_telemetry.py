"""The classes of telemetry: what an engine's observers receive while calls run.

=================================  ================================================================================
value                              told
=================================  ================================================================================
`CallStarted`, `CallFinished`      when one model is asked for one response, and when that stream has drained
`FirstToken`                       once a call, when its first content comes
`RetryAttempt`                     before each wait for another attempt at the same call
`StepStarted`, `StepFinished`      round a call and the tools that its response asks for
`ToolStarted`, `ToolFinished`      when a tool begins to run, and when its outcome is known
`ChatStarted`, `ChatFinished`      round the steps of a chat
`ImagesStarted`, `ImagesFinished`  round a call for images
=================================  ================================================================================

Each start has exactly one finish: `outcome` is ``"completed"``, ``"failed"`` or ``"cancelled"``. Durations are in
seconds, on the clock of the subscription's scheduler. They hold no key, no question and no answer; an `error` says what
its raiser said.

`request_id` is the same for everything that one call of the facade does. `id` is the same in all values about one call,
step, chat or tool. `parent_id` is the `id` of what it is part of: the step of a call or a tool, the chat of a step, and
the tool of what a tool asks. `path` holds the ids of the tool calls it runs in, outermost first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rxllm.values._images import ImageUsage
from rxllm.values._response import FinishReason
from rxllm.values._usage import Usage

Outcome = Literal["completed", "failed", "cancelled"]


class _Span(msgspec.Struct, frozen=True, kw_only=True):
    """What all have: see the module."""

    id: str = ""
    parent_id: str | None = None
    path: tuple[str, ...] = ()


class CallStarted(_Span, frozen=True):
    """A model is asked. `provider` is the adapter's, or the adapter's name if it has none."""

    request_id: str
    provider: str
    model: str | None


class FirstToken(_Span, frozen=True):
    """The first content has come, `seconds` after the start: the waits for other attempts are in it."""

    request_id: str
    provider: str
    model: str | None
    seconds: float


class CallFinished(_Span, frozen=True):
    """The response has ended; `finish_reason` and `usage` are the `Response`'s, as far as it came."""

    request_id: str
    provider: str
    model: str | None
    outcome: Outcome
    seconds: float
    finish_reason: FinishReason | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class RetryAttempt(_Span, frozen=True):
    """The attempt number `attempt`, from 1, failed with `error`; the next one is `delay` seconds away."""

    request_id: str
    provider: str
    model: str | None
    attempt: int
    delay: float
    error: Exception


class StepStarted(_Span, frozen=True):
    """A step begins."""

    request_id: str


class StepFinished(_Span, frozen=True):
    """A step has ended, its tools with it; `usage` is the `StepResult`'s, with that of its agents."""

    request_id: str
    outcome: Outcome
    seconds: float
    finish_reason: FinishReason | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class ToolStarted(_Span, frozen=True):
    """A tool runs."""

    request_id: str
    tool: str
    tool_call_id: str


class ToolFinished(_Span, frozen=True):
    """A tool has returned, failed, or was left behind."""

    request_id: str
    tool: str
    tool_call_id: str
    outcome: Outcome
    seconds: float
    error: Exception | None = None


class ChatStarted(_Span, frozen=True):
    """A chat begins."""

    request_id: str


class ChatFinished(_Span, frozen=True):
    """A chat has ended; `halted_reason` and `usage` are the `ChatResult`'s, `steps` how many it has."""

    request_id: str
    outcome: Outcome
    seconds: float
    halted_reason: str | None = None
    steps: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class ImagesStarted(_Span, frozen=True):
    """An image model is asked for `n` images."""

    request_id: str
    provider: str
    model: str | None
    operation: str
    n: int


class ImagesFinished(_Span, frozen=True):
    """The images have come, or will not; `images` is how many they are, `usage` the `ImageResponse`'s."""

    request_id: str
    provider: str
    model: str | None
    operation: str
    outcome: Outcome
    seconds: float
    images: int = 0
    usage: ImageUsage = msgspec.field(default_factory=ImageUsage)
    error: Exception | None = None


Telemetry = (
    CallStarted
    | FirstToken
    | CallFinished
    | RetryAttempt
    | StepStarted
    | StepFinished
    | ToolStarted
    | ToolFinished
    | ChatStarted
    | ChatFinished
    | ImagesStarted
    | ImagesFinished
)
"""What an observer is given."""
