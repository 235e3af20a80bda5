"""Retry: a call that fails before its first content is made again.

A stream is held back until its first content event or its ``MessageCompleted``; until then a retryable failure, raised
or streamed, leads to a new subscription, which is a new request. After that everything passes as it comes. The last
failure is passed on as it came.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent, Event, MessageStarted, RawChunk, UsageUpdated
from rxllm.runtime._clock import clock
from rxllm.runtime._stream import Stream
from rxllm.values import AdapterError, LLMError, StreamError, ValidationError

log = logging.getLogger("rxllm")


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and how many seconds between: the delay doubles from `base_delay` to `max_delay`, plus up to `jitter`.

    A provider's Retry-After is kept to, unless it asks for more than `max_retry_after`: then the failure is passed on.
    `retry_on` holds reasons of `AdapterError` and `StreamError`. 0 attempts are one: the first is no retry.

    Raises ``ValidationError("invalid_option")`` for values that make no sense.
    """

    max_attempts: int = 3
    base_delay: float = 0.5
    max_delay: float = 30.0
    jitter: float = 0.25
    retry_on: frozenset[str] = frozenset(
        {"rate_limited", "provider_unavailable", "timeout", "network_error", "truncated"}
    )
    max_retry_after: float = 60.0
    respect_retry_after: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "retry_on", _reasons(self.retry_on))
        checks = {name: _is_seconds(getattr(self, name)) for name in _SECONDS}
        checks["max_attempts"] = type(self.max_attempts) is int and self.max_attempts >= 0
        checks["respect_retry_after"] = type(self.respect_retry_after) is bool
        checks["retry_on"] = self.retry_on <= _REASONS
        wrong = [(("retry", name), f"cannot be {getattr(self, name)!r}") for name, fine in checks.items() if not fine]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    def delay(self, error: LLMError, attempt: int) -> float:
        """Seconds to wait after the failed `attempt`, the first being 1."""
        backoff = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 64))
        return max(self._asked(error), backoff) + random.uniform(0.0, self.jitter)

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Whether another attempt follows the failed `attempt`."""
        if not isinstance(error, AdapterError | StreamError) or attempt >= self.max_attempts:
            return False
        return error.reason in self.retry_on and self._asked(error) <= self.max_retry_after

    def _asked(self, error: LLMError) -> float:
        return (error.retry_after or 0.0) if self.respect_retry_after and isinstance(error, AdapterError) else 0.0


_SECONDS = ("base_delay", "max_delay", "jitter", "max_retry_after")
_REASONS = AdapterError.REASONS | StreamError.REASONS

Retry = RetryPolicy | Mapping[str, Any] | Literal["default"] | bool | None
OnRetry = Callable[[int, float, LLMError], None]


def policy(retry: Retry, base: Retry = "default") -> RetryPolicy:
    """The policy meant by an engine's or a call's ``retry``: False is none at all, a mapping is laid over `base`.

    A mapping asks for retries: over a `base` of False it is laid over the default.

    >>> policy({"max_attempts": 5}).max_attempts
    5

    Raises ``ValidationError("invalid_option")`` for a mapping with other names than `RetryPolicy` has fields.
    """
    match retry:
        case RetryPolicy():
            return retry
        case Mapping():
            return _laid_over(policy(base or "default"), retry)
        case False:
            return RetryPolicy(max_attempts=1)
        case _:
            return RetryPolicy()


def _laid_over(base: RetryPolicy, given: Mapping[str, Any]) -> RetryPolicy:
    known = {spec.name for spec in fields(RetryPolicy)}
    unknown = [
        (("retry", str(name)), f"is unknown; there are {', '.join(sorted(known))}") for name in given.keys() - known
    ]
    if unknown:
        raise ValidationError("invalid_option", errors=sorted(unknown))
    return replace(base, **given)


def _reasons(held: Any) -> frozenset[Any]:
    try:
        return frozenset((held,) if isinstance(held, str) else held)
    except TypeError:
        return frozenset((held,))  # which is no reason


def _is_seconds(held: Any) -> bool:
    return isinstance(held, int | float) and not isinstance(held, bool) and 0 <= held < math.inf


def retrying(
    make: Callable[[], Observable[Event]], rules: RetryPolicy, on_retry: OnRetry | None = None
) -> Stream[Event]:
    """The events of ``make()``, made again while they fail before their first content.

    ``on_retry(attempt, delay, error)`` is called before each wait.
    """
    if rules.max_attempts <= 1:
        return Stream.of(make())

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return _Attempts(make, rules, on_retry, observer, scheduler).start()

    return Stream(subscribe)


class _Attempts:
    def __init__(
        self,
        make: Callable[[], Observable[Event]],
        rules: RetryPolicy,
        on_retry: OnRetry | None,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._make = make
        self._rules = rules
        self._on_retry = on_retry
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
        if self._on_retry is not None:
            self._on_retry(self._attempt, seconds, error)
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
