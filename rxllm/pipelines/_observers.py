"""Notify an engine's observers through spans: each begins once and finishes once.

A span watches the events of a stream and changes nothing. It finishes when the stream ends, before the subscriber is
notified, or when the stream is disposed. If the last event had already come by then, it does not count as cancelled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.events import Event
from rxllm.runtime import ScopedObserver, Stream, current_scope, new_id, stopwatch, within
from rxllm.telemetry import Outcome, RetryAttempt, Telemetry, Tracer
from rxllm.values import LLMError

log = logging.getLogger("rxllm")

Clock = Callable[[], float]


class Observers:
    """An engine's observers during one call. An observer that raises disturbs nothing; its first error is logged."""

    def __init__(self, functions: Iterable[Callable[[Telemetry], object]] = ()) -> None:
        self._functions = tuple(functions)
        self.tracers = tuple(function for function in self._functions if isinstance(function, Tracer))
        self._shows_content = any(tracer.content for tracer in self.tracers)
        self._failed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._functions)

    @property
    def has_tracers(self) -> bool:
        return bool(self.tracers)

    def tell(self, value: Telemetry, content: Callable[[], Any] | None = None) -> None:
        """Pass `value` to each of them, with the ``content()`` of it to the tracers that ask for that."""
        whole = replace(value, content=content()) if content is not None and self._shows_content else value
        for index, function in enumerate(self._functions):
            shown = whole if isinstance(function, Tracer) and function.content else value
            self._call(index, type(value).__name__, partial(function, shown))

    def request_headers(self, call_id: str) -> dict[str, str]:
        """Return the headers that tracers send with an attempt."""
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
                log.warning("an observer failed at a %s", occasion, exc_info=error)
            return None


class Ids(NamedTuple):
    """The ids of a span."""

    request_id: str
    id: str
    parent_id: str | None
    path: tuple[str, ...]
    session_id: str | None = None

    @property
    def keywords(self) -> dict[str, Any]:
        """The ids that every telemetry value takes by keyword."""
        return {"id": self.id, "parent_id": self.parent_id, "path": self.path, "session_id": self.session_id}


class Span(Protocol):
    """Notifies the observers of one stream."""

    def see(self, event: Event) -> None: ...

    def finish(self, outcome: Outcome, error: Exception | None) -> None: ...


def watched(
    source: Observable[Event],
    begin: Callable[[Clock, Ids], Span],
    request_id: str,
    session_id: str | None = None,
    *,
    is_shared: bool = False,
) -> Stream[Event]:
    """Return `source`, each subscription watched by a span of its own, which is the parent of the spans below it.

    `is_shared` says that calls below have this request id too: a chat's and a step's do, those of an adapter do not.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        scope, subscriber = current_scope.get(), ScopedObserver(observer)
        ids = Ids(request_id, new_id(), scope.parent_id, scope.path, session_id)
        span = begin(stopwatch(scheduler), ids)
        ending = threading.Lock()  # dispose may come from any thread

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

        below = replace(scope, request_id=request_id if is_shared else None, parent_id=ids.id)
        with within(below):
            subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(lambda: finish("cancelled")))  # the inner spans first

    return Stream(subscribe)


def notify_retry(
    observers: Observers, request_id: str, provider: str, model: str | None, session_id: str | None = None
) -> Callable[[int, float, LLMError], None]:
    """Return what ``retry_before_content`` calls before it waits."""

    def on_retry(attempt: int, delay: float, error: LLMError) -> None:
        scope = current_scope.get()  # below the call's span
        ids = Ids(request_id, scope.parent_id or "", None, scope.path, session_id)
        observers.tell(RetryAttempt(request_id, provider, model, attempt, delay, error, **ids.keywords))

    return on_retry
