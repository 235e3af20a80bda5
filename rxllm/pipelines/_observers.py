"""Notify an engine's observers of calls, steps, chats and images.

* Each call, step, chat and image call has a span.
* A span begins once, finishes once, and never changes events.
* A span finishes before the subscriber is notified that the stream has ended.
* A stream that is disposed after its last event does not count as cancelled.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    StepCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.runtime import (
    ScopedObserver,
    Stream,
    current_scope,
    is_content,
    new_id,
    provider_name,
    stopwatch,
    subscriber_error,
    tool_id,
    within,
)
from rxllm.telemetry import (
    PREFIX_NOTES,
    CallDetails,
    CallFinished,
    CallStarted,
    ChatFinished,
    ChatStarted,
    FirstToken,
    ImagesFinished,
    ImagesStarted,
    Outcome,
    Reattached,
    RetryAttempt,
    StepFinished,
    StepStarted,
    Telemetry,
    ToolFinished,
    ToolStarted,
    Tracer,
)
from rxllm.tools import AgentTool
from rxllm.values import (
    Call,
    ChatResult,
    ImageRequest,
    ImageResponse,
    LLMError,
    Message,
    ProviderPart,
    Request,
    Response,
    StepResult,
    ThinkingPart,
    Tool,
    ToolCall,
    ToolCallPart,
    estimated_usage,
)
from rxllm.values.secret_names import masked

log = logging.getLogger("rxllm")

Clock = Callable[[], float]


class Observers:
    """The observers that are notified during a call.

    If an observer raises an error, the call continues. Only each observer's first error is logged.
    """

    def __init__(self, functions: Iterable[Callable[[Telemetry], object]]) -> None:
        self._functions = tuple(functions)
        self.tracers = tuple(function for function in self._functions if isinstance(function, Tracer))
        self._shows_content = any(tracer.content for tracer in self.tracers)
        self._failed: set[int] = set()

    def notify(self, value: Telemetry, content: Callable[[], Any] | None = None) -> None:
        """Pass `value` to each observer. Tracers with ``content=True`` also receive the result of ``content()``."""
        whole = replace(value, content=content()) if content is not None and self._shows_content else value
        for index, function in enumerate(self._functions):
            shown = whole if isinstance(function, Tracer) and function.content else value
            self._call(index, type(value).__name__, partial(function, shown))

    def request_headers(self, call_id: str) -> dict[str, str]:
        headers: dict[str, str] = {}
        for index, function in enumerate(self._functions):
            if isinstance(function, Tracer):
                headers |= self._call(index, "request", partial(function.request_headers, call_id)) or {}
        return headers

    def _call(self, index: int, occasion: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            if index not in self._failed:
                self._failed.add(index)
                log.warning("an observer failed to handle a %s", occasion, exc_info=error)
            return None


class Ids(NamedTuple):
    request_id: str
    id: str
    parent_id: str | None
    path: tuple[str, ...]
    session_id: str | None = None

    @property
    def keywords(self) -> dict[str, Any]:
        return {"id": self.id, "parent_id": self.parent_id, "path": self.path, "session_id": self.session_id}


def watch_stream(
    source: Observable[Event],
    begin: Callable[[Clock, Ids], Span],
    request_id: str,
    session_id: str | None = None,
    *,
    is_shared: bool = False,
) -> Stream[Event]:
    """Return `source` with a span around each subscription.

    Spans that begin within the subscription are children of its span. With `is_shared`, model calls within the
    subscription share the span's request id.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        scope, subscriber = current_scope.get(), ScopedObserver(observer)
        ids = Ids(request_id, new_id(), scope.parent_id, scope.path, session_id)
        span = begin(stopwatch(scheduler), ids)
        ending = threading.Lock()  # any thread can dispose of the subscription

        def finish(outcome: Outcome, error: Exception | None = None) -> None:
            if ending.acquire(blocking=False):
                span.finish(outcome, error)

        def on_next(event: Event) -> None:
            if not ending.locked():
                span.see(event)
            subscriber.on_next(event)

        def on_error(error: Exception) -> None:
            finish("failed", error)
            subscriber.on_error(error)

        def on_completed() -> None:
            finish("completed")
            subscriber.on_completed()

        def on_dispose() -> None:
            error = subscriber_error.get()
            finish("cancelled" if error is None else "failed", error)

        id = request_id if is_shared else None
        below = replace(scope, request_id=id, parent_id=ids.id, begin_attempt=span.begin_attempt)
        with within(below):
            subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        # Dispose the source first, so that the inner spans finish before this span.
        return CompositeDisposable(subscription, Disposable(on_dispose))

    return Stream(subscribe)


def notify_retry(
    observers: Observers, request_id: str, provider: str, model: str | None, session_id: str | None = None
) -> Callable[[int, float, LLMError], None]:
    def on_retry(attempt: int, delay: float, error: LLMError) -> None:
        scope = current_scope.get()  # the scope that the call's span has set
        ids = Ids(request_id, scope.parent_id or "", None, scope.path, session_id)
        observers.notify(RetryAttempt(request_id, provider, model, attempt, delay, error, **ids.keywords))

    return on_retry


_PARAMETERS = ("temperature", "top_p", "max_tokens", "stop", "seed", "reasoning_effort")
_PASSED_THROUGH = ("top_k", "frequency_penalty", "presence_penalty")
_PORTS = {"https": 443, "http": 80}


def details(request: Request | ImageRequest, adapter: Any) -> CallDetails:
    """Return the details of a model call. This function must run in the scope of that call."""
    values = {name: getattr(request, name, None) for name in _PARAMETERS}
    values |= {name: request.options.get(name) for name in _PASSED_THROUGH}
    parameters = {name: value for name, value in values.items() if value not in (None, ())}
    if isinstance(request, Request) and request.response_format not in (None, "text"):
        parameters["response_format"] = "json"  # the schema might reveal content
    address, port = _server(adapter)
    notes, queued = masked(request.metadata), current_scope.get().queued
    return CallDetails(parameters=parameters, metadata=notes, address=address, port=port, queued=queued)


def _server(adapter: Any) -> tuple[str | None, int | None]:
    url = getattr(adapter, "base_url", None)
    if not isinstance(url, str):
        return None, None
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # the port is not a number
        return None, None


def request_content(request: Request) -> Request:
    return Request(messages=tuple(map(_without_reasoning, request.messages)), tools=request.tools)


def response_content(response: Response[Any]) -> Message | None:
    if not (response.output_text or response.tool_calls):
        return None
    return Message("assistant", response.output_text, tool_calls=tuple(map(_bare, response.tool_calls)))


def _without_reasoning(message: Message) -> Message:
    content = message.content
    if isinstance(content, tuple):
        content = tuple(part for part in content if not isinstance(part, ThinkingPart | ProviderPart | ToolCallPart))
    return dataclasses.replace(message, content=content, tool_calls=tuple(map(_bare, message.tool_calls)), metadata={})


def _bare(call: ToolCall) -> ToolCall:
    return dataclasses.replace(call, metadata={name: note for name, note in call.metadata.items() if name == "server"})


_CHUNKS = frozenset({TextDelta, ThinkingDelta, ToolCallStarted, ToolCallDelta, FileAdded})
"""The types of events that count as chunks, because they add to the answer.

Completed events, such as ``TextCompleted``, are left out, because they repeat what has already arrived.
"""


class Span:
    """Reports one stream to the observers."""

    def __init__(self, observers: Observers, now: Clock, ids: Ids) -> None:
        self._observers = observers
        self._now = now
        self._ids = ids
        self._began = now()

    def begin_attempt(self, call: Call) -> Call:
        """Begin an attempt, and return the `call` to use for it."""
        return call

    def see(self, event: Any) -> None:
        """Handle one of the stream's events."""

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        """Notify the observers that the stream has ended."""

    @property
    def _seconds(self) -> float:
        return self._now() - self._began


class _SpanWithAttempts(Span):
    """The span of an adapter call, with the number of attempts and the times of the latest attempt's chunks."""

    def __init__(
        self, observers: Observers, now: Clock, ids: Ids, adapter: Any, request: Request | ImageRequest
    ) -> None:
        super().__init__(observers, now, ids)
        self._start = details(request, adapter)
        self._attempts = 0
        self._attempt_began = 0.0
        self._chunks: list[float] = []

    def begin_attempt(self, call: Call) -> Call:
        """Count an attempt, and return `call` with the headers that the tracers add."""
        self._attempts += 1
        self._attempt_began = self._now()
        self._chunks.clear()
        headers = self._observers.request_headers(current_scope.get().parent_id or "")  # the call's span
        return dataclasses.replace(call, trace_headers=headers) if headers else call

    def _details(self, response: Response[Any] | ImageResponse) -> CallDetails:
        return replace(
            self._start,
            attempts=self._attempts,
            chunks=tuple(self._chunks),
            response_id=response.id,
            response_model=response.model,
            notes={name: response.metadata[name] for name in PREFIX_NOTES if name in response.metadata},
        )


class CallSpan(_SpanWithAttempts):
    def __init__(self, observers: Observers, now: Clock, ids: Ids, adapter: Any, request: Request) -> None:
        super().__init__(observers, now, ids, adapter, request)
        self._about = (ids.request_id, provider_name(adapter), request.model)
        self._request = request
        self._state = StreamCollector()
        self._has_begun = self._has_ended = False
        started = CallStarted(*self._about, self._start, **ids.keywords)
        observers.notify(started, lambda: request_content(request))

    def begin_attempt(self, call: Call) -> Call:
        """Count an attempt, and return `call` with functions that notify the observers.

        They are called when the adapter has reconnected, when an earlier process's answer has been lost, and before the
        adapter itself sends a changed request.
        """
        notified = {"on_reattached": self._reattached, "on_lost": self._lost, "on_retry": self._retried}
        return dataclasses.replace(super().begin_attempt(call), **notified)

    def _reattached(self, seconds: float, error: Exception) -> None:
        self._observers.notify(Reattached(*self._about, seconds, error, **self._ids.keywords))

    def _lost(self, error: Exception) -> None:
        self._observers.notify(RetryAttempt(*self._about, 0, 0.0, error, **self._ids.keywords))

    def _retried(self, error: Exception) -> None:
        self._observers.notify(RetryAttempt(*self._about, self._attempts, 0.0, error, **self._ids.keywords))

    def see(self, event: Event) -> None:
        with suppress(Exception):  # the caller's own fold will raise the same error
            self._state = self._state.apply_event(event)
        if type(event) is MessageCompleted or type(event) is ErrorEvent:
            self._has_ended = True
            return
        if type(event) in _CHUNKS and self._observers.tracers:
            self._chunks.append(self._now() - self._attempt_began)
        if not self._has_begun and is_content(event):
            self._has_begun = True
            self._observers.notify(FirstToken(*self._about, self._seconds, **self._ids.keywords))

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        response = self._state.to_response()
        error = error or response.error
        outcome = _settle_outcome(outcome, self._has_ended, error)
        reason = None if outcome == "cancelled" else "error" if error else response.finish_reason
        end = (outcome, self._seconds, reason, response.usage, error, self._details(response))
        finished = CallFinished(*self._about, *end, **self._ids.keywords)
        if outcome == "cancelled" and not response.usage.total:
            answer = response.thinking + response.output_text
            finished = replace(finished, estimated_usage=estimated_usage(self._request, answer))
        self._observers.notify(finished, lambda: response_content(response))


class StepSpan(Span):
    def __init__(
        self, observers: Observers, now: Clock, ids: Ids, metadata: Mapping[str, Any], tools: Iterable[Tool] = ()
    ) -> None:
        super().__init__(observers, now, ids)
        self._known = {tool.name: tool for tool in tools}
        self._tools: dict[str, tuple[str, float]] = {}  # each running tool's name and start time, by call id
        self._has_ended = False
        self._result: StepResult | None = None
        observers.notify(StepStarted(ids.request_id, metadata, **ids.keywords))

    def see(self, event: Event) -> None:
        match event:
            case ToolExecutionStarted(id=id, name=name):
                began, tool = self._now(), self._known.get(name)
                about = (self._ids.request_id, name, id, tool.description if tool else "", isinstance(tool, AgentTool))
                self._observers.notify(ToolStarted(*about, **self._tool_keywords(id)), lambda: event.arguments)
                self._tools[id] = (name, began)
                if self._has_ended:  # another thread has just disposed of the stream
                    self._finish_tool(id, "cancelled", None)
            case ToolExecutionCompleted(id=id, error=error) if id in self._tools:  # a denied call never started
                self._finish_tool(id, "failed" if error else "completed", error, event.result)
            case StepCompleted(result=result):
                self._result = result
            case _:
                pass

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        self._has_ended = True
        for id in list(self._tools):  # a halted agent is not cancelled
            self._finish_tool(id, "completed" if self._result else "cancelled", None)
        response = self._result.response if self._result else None
        error = error or (response.error if response else None)
        outcome = _settle_outcome(outcome, response is not None, error)
        finished = StepFinished(self._ids.request_id, outcome, self._seconds, error=error, **self._ids.keywords)
        if self._result:
            reason, usage = self._result.response.finish_reason, self._result.usage
            finished = replace(finished, finish_reason=reason, usage=usage)
        self._observers.notify(finished)

    def _finish_tool(self, id: str, outcome: Outcome, error: LLMError | None, result: Any = None) -> None:
        running = self._tools.pop(id, None)
        if running is None:  # another thread has already reported the end
            return
        name, began = running
        about, seconds = (self._ids.request_id, name, id), self._now() - began
        finished = ToolFinished(*about, outcome, seconds, error, **self._tool_keywords(id))
        self._observers.notify(finished, lambda: result)

    def _tool_keywords(self, tool_call_id: str) -> dict[str, Any]:
        return {**self._ids.keywords, "id": tool_id(self._ids.id, tool_call_id), "parent_id": self._ids.id}


class ChatSpan(Span):
    def __init__(self, observers: Observers, now: Clock, ids: Ids, metadata: Mapping[str, Any]) -> None:
        super().__init__(observers, now, ids)
        self._result: ChatResult | None = None
        observers.notify(ChatStarted(ids.request_id, metadata, **ids.keywords))

    def see(self, event: Event) -> None:
        if isinstance(event, ChatCompleted):
            self._result = event.unparsed or event.result

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        result = self._result
        error = error or (result.error if result else None)
        outcome = _settle_outcome(outcome, result is not None, error)
        finished = ChatFinished(self._ids.request_id, outcome, self._seconds, error=error, **self._ids.keywords)
        if result:
            steps = len(result.steps)
            finished = replace(finished, halted_reason=result.halted_reason, steps=steps, usage=result.usage)
        self._observers.notify(finished)


class ImagesSpan(_SpanWithAttempts):
    def __init__(self, observers: Observers, now: Clock, ids: Ids, adapter: Any, request: ImageRequest) -> None:
        super().__init__(observers, now, ids, adapter, request)
        self._about = (ids.request_id, provider_name(adapter), request.model, request.operation)
        self._response: ImageResponse | None = None
        observers.notify(ImagesStarted(*self._about, request.n, self._start, **ids.keywords))

    def see(self, event: Any) -> None:
        self._response = event

    def finish(self, outcome: Outcome, error: Exception | None) -> None:
        outcome = _settle_outcome(outcome, self._response is not None, error)
        response = self._response or ImageResponse()
        end = (outcome, self._seconds, len(response.images), response.usage, error, self._details(response))
        self._observers.notify(ImagesFinished(*self._about, *end, **self._ids.keywords))


def _settle_outcome(outcome: Outcome, has_ended: bool, error: Exception | None) -> Outcome:
    if outcome == "cancelled" and not has_ended:
        return outcome
    return "failed" if error is not None else "completed"
