"""Telemetry: the values that an engine's observers receive about its calls, steps, chats, tools and images.

=================================  ================================================================================
value                              emitted
=================================  ================================================================================
`CallStarted`, `CallFinished`      when a model is asked for a response, and when its stream has ended
`FirstToken`                       once per call, when its first content arrives
`RetryAttempt`                     before each wait for another attempt at a call
`StepStarted`, `StepFinished`      around a call and the tools that its response calls
`ToolStarted`, `ToolFinished`      when a tool begins to run, and when its outcome is known
`ChatStarted`, `ChatFinished`      around the steps of a chat
`ImagesStarted`, `ImagesFinished`  around a call for images
=================================  ================================================================================

Each start has exactly one finish: `outcome` is ``"completed"``, ``"failed"`` or ``"cancelled"``. Durations are in
seconds, on the clock of the subscription's scheduler; observers are called immediately. The values hold no key, no
question and no answer, except in the `content` that a `Tracer` may request. An `error` is the raised error itself.

`session_id` is the conversation's. `request_id` is the same in all values of one facade call. `id` is the same in all
values about one call, step, chat or tool. `parent_id` is the `id` of the enclosing unit: the step around a call or a
tool, the chat around a step, and the tool around an agent's chat. `path` holds the ids of the enclosing tool calls,
outermost first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rxllm.values import Trace
from rxllm.values.images import ImageUsage
from rxllm.values.messages import Message
from rxllm.values.requests import Request
from rxllm.values.responses import FinishReason
from rxllm.values.usage import Usage

__all__ = [
    "CallDetails",
    "CallFinished",
    "CallStarted",
    "ChatFinished",
    "ChatStarted",
    "FirstToken",
    "ImagesFinished",
    "ImagesStarted",
    "Outcome",
    "RetryAttempt",
    "StepFinished",
    "StepStarted",
    "Telemetry",
    "ToolFinished",
    "ToolStarted",
    "Trace",
    "Tracer",
]

Outcome = Literal["completed", "failed", "cancelled"]


class _Span(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of all values; the module describes them."""

    id: str = ""
    parent_id: str | None = None
    path: tuple[str, ...] = ()
    session_id: str | None = None


class _RequestSpan(_Span, frozen=True):
    request_id: str


class _ModelSpan(_RequestSpan, frozen=True):
    provider: str
    model: str | None


class CallDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a call: the first five fields are set from the start, the others at the finish.

    `parameters` are the fields of the `Request` that are set, by name, without its schema. `metadata` is the caller's.
    `address` and `port` are the server's. `queued` is how long the call waited in ``rate_limited``, in seconds.
    `attempts` is the number of requests sent. `chunks` are the times at which chunks of the answer arrived, in seconds
    since its request was sent; they are kept only for a `Tracer`. `response_id` and `response_model` are the
    provider's.
    """

    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    address: str | None = None
    port: int | None = None
    queued: float = 0.0
    attempts: int = 0
    chunks: tuple[float, ...] = ()
    response_id: str | None = None
    response_model: str | None = None


class CallStarted(_ModelSpan, frozen=True):
    """A model is called. `provider` is the adapter's, or the adapter's name if it has no provider.

    `content` is a Request with the messages and tools alone.
    """

    details: CallDetails = msgspec.field(default_factory=CallDetails)
    content: Request | None = None


class FirstToken(_ModelSpan, frozen=True):
    """The first content has arrived, `seconds` after the start, including the waits between attempts."""

    seconds: float


class CallFinished(_ModelSpan, frozen=True):
    """The response has ended; `finish_reason` and `usage` are the `Response`'s, even if it is incomplete.

    `content` is a message with its text and tool calls, or None if it has neither.
    """

    outcome: Outcome
    seconds: float
    finish_reason: FinishReason | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None
    details: CallDetails = msgspec.field(default_factory=CallDetails)
    content: Message | None = None


class RetryAttempt(_ModelSpan, frozen=True):
    """Attempt number `attempt`, counted from 1, failed with `error`; the next one is `delay` seconds away."""

    attempt: int
    delay: float
    error: Exception


class StepStarted(_RequestSpan, frozen=True):
    """A step begins; `metadata` is the caller's."""

    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class StepFinished(_RequestSpan, frozen=True):
    """A step and its tools have ended; `usage` is the `StepResult`'s, with its agents' usage."""

    outcome: Outcome
    seconds: float
    finish_reason: FinishReason | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class ToolStarted(_RequestSpan, frozen=True):
    """A tool is about to run; `content` is its arguments. An agent is a tool; the next values are about its chat.

    A context variable that an observer sets now is visible in the tool's function only.
    """

    tool: str
    tool_call_id: str
    description: str = ""
    is_agent: bool = False
    content: Mapping[str, Any] | None = None


class ToolFinished(_RequestSpan, frozen=True):
    """A tool has returned, has failed, or was abandoned; `content` is its result."""

    tool: str
    tool_call_id: str
    outcome: Outcome
    seconds: float
    error: Exception | None = None
    content: Any = None


class ChatStarted(_RequestSpan, frozen=True):
    """A chat begins; `metadata` is the caller's."""

    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class ChatFinished(_RequestSpan, frozen=True):
    """A chat has ended; `halted_reason` and `usage` are the `ChatResult`'s, `steps` the number of its steps."""

    outcome: Outcome
    seconds: float
    halted_reason: str | None = None
    steps: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class ImagesStarted(_ModelSpan, frozen=True):
    """An image model is called for `n` images."""

    operation: str
    n: int
    details: CallDetails = msgspec.field(default_factory=CallDetails)


class ImagesFinished(_ModelSpan, frozen=True):
    """The call for images has ended; `images` is their number, `usage` the `ImageResponse`'s."""

    operation: str
    outcome: Outcome
    seconds: float
    images: int = 0
    usage: ImageUsage = msgspec.field(default_factory=ImageUsage)
    error: Exception | None = None
    details: CallDetails = msgspec.field(default_factory=CallDetails)


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
"""A value that an observer receives."""


class Tracer:
    """The base class of observers that write traces, such as ``rxllm.otel``'s.

    It also observes the agents among an engine's tools, at every depth and whatever their engine. With `content` the
    values have the messages, tools, arguments and results, but not the model's reasoning.

    >>> from rxllm import Engine, Fake, generate
    >>> from rxllm.telemetry import Tracer
    >>> class Printing(Tracer):
    ...     content = True
    ...     def __call__(self, value):
    ...         print(type(value).__name__, getattr(value, "content", None))
    >>> generate(Engine(Fake("Hello"), observers=[Printing()]), "Hi").run()
    CallStarted Request(messages=(Message('user', 'Hi'),))
    FirstToken None
    CallFinished Message('assistant', 'Hello')
    Response('Hello', stop, 0 tokens)
    """

    content: bool = False

    def __call__(self, value: Telemetry) -> object:
        """Receive a value; a subclass must define it."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, value)")

    def request_headers(self, call_id: str) -> Mapping[str, str]:
        """Return headers for the next attempt at the call `call_id`. Headers from elsewhere override them."""
        return {}
