"""Retry: a call that fails before its first content is made again.

A stream is held back until its first content event or its ``MessageCompleted``; until then a retryable failure, raised
or streamed, leads to a new subscription, which is a new request. After that everything passes as it comes. The last
failure is passed on as it came.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent, Event, MessageStarted, RawChunk, UsageUpdated
from rxllm.runtime._clock import clock
from rxllm.runtime._stream import Stream
from rxllm.values import AdapterError, LLMError, StreamError

log = logging.getLogger("rxllm")


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and how many seconds between: the delay doubles from `base_delay` to `max_delay`, plus `jitter`.

    A provider's Retry-After is kept to, unless it asks for more than `max_retry_after`: then the failure is passed on.
    """

    max_attempts: int = 3
    base_delay: float = 0.5
    max_delay: float = 30.0
    jitter: float = 0.25
    retry_on: frozenset[str] = frozenset(
        {"rate_limited", "provider_unavailable", "timeout", "network_error", "truncated"}
    )
    max_retry_after: float = 60.0

    def delay(self, error: LLMError, attempt: int) -> float:
        """Seconds to wait after the failed `attempt`, the first being 1."""
        asked = (error.retry_after or 0.0) if isinstance(error, AdapterError) else 0.0
        backoff = min(self.max_delay, self.base_delay * 2 ** (attempt - 1))
        return max(asked, backoff) + random.uniform(0.0, self.jitter)

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Whether another attempt follows the failed `attempt`."""
        if not isinstance(error, AdapterError | StreamError) or attempt >= self.max_attempts:
            return False
        asked = (error.retry_after or 0.0) if isinstance(error, AdapterError) else 0.0
        return error.reason in self.retry_on and asked <= self.max_retry_after


Retry = RetryPolicy | Literal["default"] | bool | None


def policy(retry: Retry) -> RetryPolicy:
    """The policy meant by an engine's or a call's ``retry``: False is none at all."""
    match retry:
        case RetryPolicy():
            return retry
        case False:
            return RetryPolicy(max_attempts=1)
        case _:
            return RetryPolicy()


def retrying(make: Callable[[], Observable[Event]], rules: RetryPolicy) -> Stream[Event]:
    """The events of ``make()``, made again while they fail before their first content."""
    if rules.max_attempts <= 1:
        return Stream.of(make())

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return _Attempts(make, rules, observer, scheduler).start()

    return Stream(subscribe)


class _Attempts:
    def __init__(
        self,
        make: Callable[[], Observable[Event]],
        rules: RetryPolicy,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._make = make
        self._rules = rules
        self._observer = observer
        self._scheduler = scheduler
        self._source = SerialDisposable()
        self._timer = SerialDisposable()
        self._attempt = 0

    def start(self) -> abc.DisposableBase:
        self._subscribe()
        return CompositeDisposable(self._source, self._timer)

    def _subscribe(self) -> None:
        self._attempt += 1
        held: list[Event] | None = []
        on_next, failed = self._observer.on_next, False

        def receive(event: Event) -> None:
            nonlocal held, failed
            if held is None:
                on_next(event)
            elif not failed:
                if isinstance(event, ErrorEvent) and self._again(event.error):
                    failed = True
                    return
                held.append(event)
                if not _is_prelude(event):
                    passed, held = held, None
                    for each in passed:
                        on_next(each)

        def fail(error: Exception) -> None:
            if not failed and (held is None or not self._again(error)):
                release()
                self._observer.on_error(error)

        def complete() -> None:
            if not failed:
                release()
                self._observer.on_completed()

        def release() -> None:
            for each in held or ():
                on_next(each)

        subscription = self._source.disposable = SingleAssignmentDisposable()  # before it can fail
        subscription.disposable = self._make().subscribe(receive, fail, complete, scheduler=self._scheduler)

    def _again(self, error: Exception) -> bool:
        if not self._rules.allows(error, self._attempt):
            return False
        assert isinstance(error, LLMError)
        seconds = self._rules.delay(error, self._attempt)
        log.warning("attempt %d failed (%s); the next one in %.1f s", self._attempt, error, seconds)
        timer = self._timer.disposable = SingleAssignmentDisposable()  # before it can fire
        timer.disposable = clock(self._scheduler).schedule_relative(seconds, self._wake)
        return True

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        try:
            self._subscribe()
        except Exception as error:  # the adapter's; nobody above would deliver it
            self._observer.on_error(error)


def _is_prelude(event: Event) -> bool:
    return isinstance(event, MessageStarted | UsageUpdated) or (isinstance(event, RawChunk) and event.kind == "usage")
