"""The values that an engine's observers receive.

=================================  ================================================================================
value                              when it is emitted
=================================  ================================================================================
`CallStarted`, `CallFinished`      when a model call starts, and when its stream ends
`FirstToken`                       once per call, when the first piece of content arrives
`RetryAttempt`                     when an attempt at a call has failed, before the wait for the next attempt
`Reattached`                       when an answer continues over a new connection after the old one has dropped
`StepStarted`, `StepFinished`      when a step starts, and when its response and its tools have finished
`ToolStarted`, `ToolFinished`      when a tool starts running, and when its outcome is known
`ChatStarted`, `ChatFinished`      before the first step of a chat, and after the last one
`ImagesStarted`, `ImagesFinished`  when an image call starts, and when it ends
=================================  ================================================================================

Every start is followed by exactly one finish, whose `outcome` is ``"completed"``, ``"failed"`` or ``"cancelled"``.
Durations are in seconds, and are measured by the subscription's scheduler. Observers are called synchronously. Values
never contain an API key. Questions and answers appear only in `content`, and only if a `Tracer` requests it. An `error`
is the exception that was raised.

`session_id` identifies the conversation. All values from one call to a function such as ``rxllm.chat`` have the same
`request_id`. All values about the same model call, step, chat or tool have the same `id`. `parent_id` is the `id` of
the enclosing operation: a chat encloses its steps, a step encloses its model call and its tools, and an agent's tool
encloses the agent's chat. `path` lists the ids of the enclosing tool calls, outermost first.
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
    "PREFIX_NOTES",
    "CallDetails",
    "CallFinished",
    "CallStarted",
    "ChatFinished",
    "ChatStarted",
    "FirstToken",
    "ImagesFinished",
    "ImagesStarted",
    "Outcome",
    "Reattached",
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
    """The fields that all telemetry values share; see the module's docstring."""

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
    """Details of a call.

    The first five fields are set when the call starts, and the others are set when it finishes. `parameters` maps the
    names of settings, such as ``max_tokens``, to their values. A response schema appears only as ``"json"``. `metadata`
    is the caller's metadata. `address` and `port` identify the server. `queued` is how many seconds the call waited in
    ``rate_limited``. `attempts` is the number of requests that were sent. `chunks` are the times at which the
    chunks of the answer arrived, in seconds since the request. They are recorded only for a `Tracer`. `response_id` and
    `response_model` are reported by the provider. `notes` says what the request shares with the one before it, and what
    the model did not read: the entries of the response's metadata that `PREFIX_NOTES` names.
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
    notes: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


PREFIX_NOTES = (
    "prefix",
    "refused_thoughts",
    "input_transformations",
    "cache_miss_reason",
    "prompt_cache_diagnostics",
)
"""The entries of a response's metadata about the request's prefix.

The first two are rxllm's own: a `PrefixReport`, and the ``error`` and places of thoughts that the server refused. The
others are the provider's.
"""


class CallStarted(_ModelSpan, frozen=True):
    """A model call has started.

    `provider` is the adapter's provider or, if it has none, the adapter's name. `content` is a `Request` that contains
    only the messages and the tools.
    """

    details: CallDetails = msgspec.field(default_factory=CallDetails)
    content: Request | None = None


class FirstToken(_ModelSpan, frozen=True):
    """Content has begun to arrive. `seconds` is the time since the call started, including waits between attempts."""

    seconds: float


class CallFinished(_ModelSpan, frozen=True):
    """The response has ended.

    `finish_reason` and `usage` are taken from the `Response`, even if it is incomplete. If the call was cancelled,
    `finish_reason` is None. If it failed, `finish_reason` is ``"error"``. `content` is a message that contains the
    response's text and tool calls, or None if there are none.

    Providers bill cancelled calls, but report their usage only at the end. If a call was cancelled before, `usage` is
    empty, and `estimated_usage` is an estimate from the request and the text so far, as ``ops.budget`` makes it.
    """

    outcome: Outcome
    seconds: float
    finish_reason: FinishReason | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None
    details: CallDetails = msgspec.field(default_factory=CallDetails)
    content: Message | None = None
    estimated_usage: Usage | None = None


class RetryAttempt(_ModelSpan, frozen=True):
    """An attempt has failed with `error`.

    `attempt` is the number of the failed attempt, counted from 1. The next attempt starts in `delay` seconds. In a
    durable run, number 0 stands for the request that an earlier process sent. That attempt fails if the answer that
    the provider kept cannot be read.
    """

    attempt: int
    delay: float
    error: Exception


class Reattached(_ModelSpan, frozen=True):
    """The rest of an answer has begun to arrive. `seconds` is the time since the connection dropped with `error`."""

    seconds: float
    error: Exception


class StepStarted(_RequestSpan, frozen=True):
    """A step has started. `metadata` is the caller's metadata."""

    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class StepFinished(_RequestSpan, frozen=True):
    """A step and its tools have finished. `usage` is taken from the `StepResult`, and includes the agents' usage."""

    outcome: Outcome
    seconds: float
    finish_reason: FinishReason | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class ToolStarted(_RequestSpan, frozen=True):
    """A tool is about to run.

    `content` contains the tool's arguments. If the tool is an agent, a `Tracer` then also receives the values of the
    agent's chat. If an observer sets a context variable when it receives a `ToolStarted`, only the tool's function sees
    the change.
    """

    tool: str
    tool_call_id: str
    description: str = ""
    is_agent: bool = False
    content: Mapping[str, Any] | None = None


class ToolFinished(_RequestSpan, frozen=True):
    """A tool has returned, failed or been abandoned. `content` is the tool's result."""

    tool: str
    tool_call_id: str
    outcome: Outcome
    seconds: float
    error: Exception | None = None
    content: Any = None


class ChatStarted(_RequestSpan, frozen=True):
    """A chat has started. `metadata` is the caller's metadata."""

    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


class ChatFinished(_RequestSpan, frozen=True):
    """A chat has ended after `steps` steps. `halted_reason` and `usage` are taken from the `ChatResult`."""

    outcome: Outcome
    seconds: float
    halted_reason: str | None = None
    steps: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)
    error: Exception | None = None


class ImagesStarted(_ModelSpan, frozen=True):
    """A call for `n` images has started."""

    operation: str
    n: int
    details: CallDetails = msgspec.field(default_factory=CallDetails)


class ImagesFinished(_ModelSpan, frozen=True):
    """An image call has ended. `images` is the number of images. `usage` is taken from the `ImageResponse`."""

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
    | Reattached
    | StepStarted
    | StepFinished
    | ToolStarted
    | ToolFinished
    | ChatStarted
    | ChatFinished
    | ImagesStarted
    | ImagesFinished
)
"""Any value that an observer can receive."""


class Tracer:
    """The base class for observers that write traces.

    A tracer also observes its engine's agents, including nested agents and agents that use a different engine. If
    `content` is True, the values also contain messages, tools, arguments and results, but not the model's reasoning.

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
        """Receive a value. Subclasses must define this method."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, value)")

    def request_headers(self, call_id: str) -> Mapping[str, str]:
        """Return headers for the next attempt at the call `call_id`. Headers of the adapter and of the call override
        these."""
        return {}
