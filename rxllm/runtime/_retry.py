"""Retry calls that fail before they have emitted content.

The events of an attempt are held back until its first content arrives.

::

    attempt 1    start--X                      (held back, then dropped)
    attempt 2              start--H--i--end|
    seen         -----------------start,H--i--end|
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import fields, force_setattr, replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent, Event, MessageCompleted, failure_of, is_prelude
from rxllm.runtime._clock import clock, stopwatch
from rxllm.runtime._scope import current_scope, within
from rxllm.runtime._stream import Stream
from rxllm.runtime._unhandled import conclude, fail
from rxllm.runtime.context_variables import current_reader
from rxllm.values import AdapterError, LLMError, StreamError, ValidationError
from rxllm.values.argument_checks import did_you_mean, invalid_option, is_count, is_seconds, must_be

log = logging.getLogger("rxllm")


# The attempts of one subscription


class Plan(Protocol):
    """Supplies the attempts for a subscription, and decides when to give up. The first attempt is number 1."""

    late: bool
    """Whether `again` is also called if an attempt fails after it has emitted content."""

    def source(self, attempt: int) -> Observable[Event]: ...

    def again(self, error: Exception, attempt: int) -> float | None:
        """Return how many seconds to wait before the next attempt, or None to give up."""
        ...

    def failure(self, event: Event) -> Exception | None:
        """Return why the attempt fails with `event`, or None if it does not fail."""
        return failure_of(event)

    def holds(self, event: Event) -> bool:
        """Return whether `event` and the events before it are dropped if the attempt fails next."""
        return is_prelude(event)

    def opens(self, attempt: int) -> Iterable[Event]:
        """Return the events to emit before the first content of the attempt."""
        ...

    def name(self, attempt: int) -> str:
        """Return the name of the attempt."""
        ...

    def note(self, times: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return metadata for the answer of an attempt that follows failed attempts.

        `times` contains the times of all attempts so far. It is empty if the reader did not ask for times.
        """
        ...


class Attempts:
    """Makes the attempts that `plan` describes. `start` returns a disposable that ends them."""

    def __init__(
        self, plan: Plan, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> None:
        self.observer = observer
        self.begun = False  # True once an attempt has emitted events
        self._plan = plan
        self._scheduler = scheduler
        self._scope = current_scope.get()
        self._source = SerialDisposable()
        self._timer = SerialDisposable()
        self._count = 0
        self._is_timed = current_reader.get().is_timed
        self._seconds = stopwatch(scheduler)
        self._start = self._began = self._seconds()
        self._lost: list[Mapping[str, Any]] = []

    def start(self) -> abc.DisposableBase:
        self._subscribe()
        return CompositeDisposable(self._source, self._timer)

    def events_to_emit(self, events: list[Event]) -> list[Event]:
        """Return the events to emit when an attempt produces its first content or fails."""
        if self.begun and isinstance(events[-1], ErrorEvent):
            return events[-1:]  # the events of the earlier attempt remain valid
        self.begun = True
        return [*self._plan.opens(self._count), *events]

    def again(self, error: Exception) -> bool:
        """Schedule the next attempt. Return False if there is none."""
        try:
            with within(self._scope):
                seconds = self._plan.again(error, self._count)
        except Exception as raised:  # raised by one of the user's functions
            self.observer.on_error(raised)
            return True
        if seconds is None:
            return False
        began, ended = self._elapsed(self._began), self._elapsed(self._seconds())
        name = self._plan.name(self._count)
        self._lost.append({"name": name, "began": began, "ended": ended, "error": str(error)})
        timer = self._timer.disposable = SingleAssignmentDisposable()  # assign it before the timer can fire
        timer.disposable = clock(self._scheduler).schedule_relative(seconds, self._wake)
        return True

    def _subscribe(self) -> None:
        self._count += 1
        self._began = self._seconds()
        attempt = _Attempt(self, self._plan)
        subscription = self._source.disposable = SingleAssignmentDisposable()  # assign it before the source can fail
        with within(self._scope):  # otherwise, a retry would start in the failed attempt's scope
            source = self._plan.source(self._count)
            source = source.map(self._annotate) if self._count > 1 else source
            subscription.disposable = source.subscribe(
                attempt.on_next, attempt.on_error, attempt.on_completed, scheduler=self._scheduler
            )

    def _annotate(self, event: Event) -> Event:
        if type(event) is not MessageCompleted:
            return event
        times = {"began": self._elapsed(self._began), "lost": tuple(self._lost)} if self._is_timed else {}
        note = self._plan.note(times)
        return replace(event, metadata={**event.metadata, **note}) if note else event

    def _elapsed(self, seconds: float) -> float:
        return round(seconds - self._start, 6)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        try:
            self._subscribe()
        except BaseException as error:  # no caller will pass the error to `on_error`
            fail(self.observer, error)


class _Attempt:
    """Holds back the events of one attempt until its first content arrives."""

    __slots__ = (
        *("_attempts", "_delivering", "_end", "_failed", "_late", "_observer", "_pass", "_pending", "_plan"),
        "_releasing",
    )

    def __init__(self, attempts: Attempts, plan: Plan) -> None:
        self._attempts = attempts
        self._plan = plan
        self._late = late = plan.late
        self._observer = attempts.observer
        self._pending: list[Event] | None = []
        self._pass: Callable[[Event], object] = self._pass_late if late else self._observer.on_next
        self._releasing = False
        self._failed = False
        self._delivering = False  # stays True if the subscriber raises an exception
        self._end: Callable[[], None] | None = None  # set if the stream ends during the release

    def on_next(self, event: Event) -> None:
        if self._pending is None:
            self._pass(event)
        elif not self._failed:
            self._hold(event, self._pending)

    def on_error(self, error: Exception) -> None:
        if self._failed:
            return
        may_retry = self._pending is not None or (self._late and not self._delivering)
        if may_retry and self._attempts.again(error):
            return
        if self._pending is not None and self._attempts.begun and isinstance(error, LLMError):
            conclude(self._observer, (ErrorEvent(error),))
        else:
            self._finish(lambda: self._observer.on_error(error))

    def on_completed(self) -> None:
        if not self._failed:
            self._finish(self._observer.on_completed)

    def _hold(self, event: Event, events: list[Event]) -> None:
        if self._fails(event):
            return
        events.append(event)
        if not self._plan.holds(event):
            self._release(self._attempts.events_to_emit(events))

    def _release(self, waiting: list[Event]) -> None:
        original, self._pending = self._pass, None
        self._pass, self._releasing = waiting.append, True
        try:
            for event in waiting:  # the list may grow during the loop
                self._deliver(event)
        finally:
            self._pass, self._releasing = original, False
        if self._end is not None:
            self._end()

    def _finish(self, end: Callable[[], None]) -> None:
        if self._releasing:
            self._end = end
            return
        for event in self._pending or ():
            self._observer.on_next(event)
        end()

    def _pass_late(self, event: Event) -> None:
        if not self._failed and not self._fails(event):
            self._deliver(event)

    def _fails(self, event: Event) -> bool:
        failure = self._plan.failure(event) if isinstance(event, ErrorEvent | MessageCompleted) else None
        self._failed = failure is not None and self._attempts.again(failure)
        return self._failed

    def _deliver(self, event: Event) -> None:
        before, self._delivering = self._delivering, True
        self._observer.on_next(event)
        self._delivering = before


def attempting(make: Callable[[], Plan]) -> Stream[Event]:
    """Return a Stream that runs a call in one or more attempts. ``make()`` returns the `Plan` for each subscription."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return Attempts(make(), observer, scheduler).start()

    return Stream(subscribe)


# The retry policy, and a stream that retries according to it


class RetryPolicy(msgspec.Struct, frozen=True):
    """The rules for retrying a failed call.

    `max_attempts` includes the first attempt. The first wait lasts `base_delay` seconds. Each later wait is twice as
    long as the one before it, up to `max_delay`. If a Retry-After header asks for a longer wait, it takes precedence,
    unless `respect_retry_after` is False. If the header asks for more than `max_retry_after` seconds, the call is not
    retried. A random time of up to `jitter` seconds is added to each wait.

    A call is retried only if it fails with an `AdapterError` or a `StreamError` whose reason is in `retry_on`. If the
    account has no credit left, the call is never retried. A refusal counts as an ``AdapterError("content_filter")``. By
    default, it is not retried, because the same model would refuse again; see ``ops.fallback``.

    Raises ``ValidationError("invalid_option")`` if a value is invalid.
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
        force_setattr(self, "retry_on", _reasons(self.retry_on))
        checks = {name: (is_seconds(getattr(self, name)), "a non-negative number of seconds") for name in _SECONDS}
        checks["max_attempts"] = (
            is_count(self.max_attempts),
            "an integer >= 1 (including the first attempt)",
        )
        checks["respect_retry_after"] = type(self.respect_retry_after) is bool, "True or False"
        for name, (fits, expected) in checks.items():
            if not fits:
                raise invalid_option(("retry", name), must_be(expected, getattr(self, name)))
        if unknown := self.retry_on - _REASONS:
            raise invalid_option(("retry", "retry_on"), _unknown_reasons(unknown))

    def delay(self, error: LLMError, attempt: int) -> float:
        """Return how many seconds to wait after attempt number `attempt`. The first attempt is number 1."""
        backoff = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 64))
        return max(self._retry_after(error), backoff) + random.uniform(0.0, self.jitter)

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Return whether to try again after attempt number `attempt` has failed with `error`."""
        if not isinstance(error, AdapterError | StreamError) or attempt >= self.max_attempts:
            return False
        if isinstance(error, AdapterError) and (error.status == 402 or error.code in _SPENT):
            return False
        return error.reason in self.retry_on and self._retry_after(error) <= self.max_retry_after

    def _retry_after(self, error: LLMError) -> float:
        return (error.retry_after or 0.0) if self.respect_retry_after and isinstance(error, AdapterError) else 0.0


_SPENT = ("insufficient_quota", "billing_error", "payment_required")
"""The error codes that mean that the account has no credit left."""

_SECONDS = ("base_delay", "max_delay", "jitter", "max_retry_after")
_REASONS = AdapterError.REASONS | StreamError.REASONS

Retry = RetryPolicy | Mapping[str, Any] | Literal["default"] | bool | None
OnRetry = Callable[[int, float, LLMError], None]


def policy(retry: Retry, base: Retry = "default") -> RetryPolicy:
    """Convert the ``retry`` option of an engine or a call to a `RetryPolicy`.

    A `RetryPolicy` is returned unchanged. True, None and ``"default"`` mean the default policy, and False means that
    there are no retries. A mapping overrides fields of `base` (or of the default policy, if `base` is False).

    >>> policy({"max_attempts": 5}).max_attempts
    5

    Raises ``ValidationError("invalid_option")`` if `retry` is anything else, or is a mapping with an unknown key or an
    invalid value.
    """
    match retry:
        case RetryPolicy():
            return retry
        case Mapping():
            return _override(policy(base or "default"), retry)
        case False:
            return _NEVER
        case None | True | "default":
            return _DEFAULT
        case _:
            expected = "a RetryPolicy, a mapping of its fields, True, False or None"
            raise invalid_option(("retry",), must_be(expected, retry))


def policy_argument(argument: Any) -> RetryPolicy:
    """Convert the `policy` argument of an operator to a `RetryPolicy`.

    Raises ``ValidationError("invalid_option")`` if `argument` is invalid.
    """
    try:
        return policy(argument)
    except ValidationError as error:  # its paths begin with "retry", which is the option's name
        errors = [(("policy", *path[1:]), fault) for path, fault in error.errors]
        raise ValidationError(error.reason, errors=errors) from None


def _override(base: RetryPolicy, values: Mapping[str, Any]) -> RetryPolicy:
    names = {field.name for field in fields(RetryPolicy)}
    options = f"the fields are {', '.join(sorted(names))}"
    if unknown := sorted(map(str, values.keys() - names)):
        errors = [(("retry", name), f"is unknown{did_you_mean(name, names)}; {options}") for name in unknown]
        raise ValidationError("invalid_option", errors=errors)
    return replace(base, **values)


def _reasons(value: Any) -> frozenset[Any]:
    try:
        return frozenset((value,) if isinstance(value, str) else value)
    except TypeError:
        return frozenset((value,))  # the check will report it as an unknown reason


def _unknown_reasons(reasons: Iterable[Any]) -> str:
    names = (f"{reason!r}{did_you_mean(reason, _REASONS) if isinstance(reason, str) else ''}" for reason in reasons)
    return f"cannot contain {', '.join(sorted(names))}; the valid reasons are {', '.join(sorted(_REASONS))}"


_DEFAULT = RetryPolicy()
_NEVER = RetryPolicy(max_attempts=1)


def retrying(
    make: Callable[[], Observable[Event]], rules: RetryPolicy, on_retry: OnRetry | None = None
) -> Stream[Event]:
    """Emit the events of ``make()``.

    If the stream fails before it has emitted content, and if `rules` allow a retry, `make` is called again after a
    delay. ``on_retry(attempt, delay, error)`` is called before each delay.
    """
    if rules.max_attempts <= 1:
        return Stream.of(make())
    return attempting(lambda: _Retrying(make, rules, on_retry))


class _Retrying(Plan):
    late = False

    def __init__(self, make: Callable[[], Observable[Event]], rules: RetryPolicy, on_retry: OnRetry | None) -> None:
        self._make = make
        self._rules = rules
        self._on_retry = on_retry

    def source(self, attempt: int) -> Observable[Event]:
        return self._make()

    def again(self, error: Exception, attempt: int) -> float | None:
        if not self._rules.allows(error, attempt):
            return None
        assert isinstance(error, LLMError)
        seconds = self._rules.delay(error, attempt)
        for before_retry in current_scope.get().before_retry:
            seconds = max(seconds, before_retry(error, seconds))
        provider = getattr(error, "provider", None)
        source = f" of {provider}" if provider else ""
        log.warning("attempt %d%s failed (%s); the next attempt starts in %.1f s", attempt, source, error, seconds)
        if self._on_retry is not None:
            self._on_retry(attempt, seconds, error)
        return seconds

    def opens(self, attempt: int) -> Iterable[Event]:
        return ()

    def name(self, attempt: int) -> str:
        return f"attempt {attempt}"

    def note(self, times: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"retry": times} if times else {}
