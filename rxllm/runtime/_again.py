"""reactivex's ``retry``, ``catch`` and ``timeout``, as methods of a `Stream`.

They subscribe when reactivex's do and pass on the same items. Two things are added for streams of events:

* If the attempt that has failed had emitted an event, the next one begins with a ``StepRestarted``. Folds then discard
  what the failed attempt had emitted, and ``ops.text`` does not emit the same text again.
* An ``ErrorEvent`` at the end of an attempt counts as a failure, as ``on_error`` does. If nothing follows the failure,
  it is passed on in the form in which it came.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import reactivex
from reactivex import Observable, abc
from reactivex import operators as rx
from reactivex.typing import AbsoluteOrRelativeTime

from rxllm.events import EVENT_CLASSES, ErrorEvent, StepRestarted
from rxllm.values import AdapterError, StreamError
from rxllm.values.argument_checks import check
from rxllm.values.errors import as_llm_error

T = TypeVar("T")

_EVENTS = frozenset(EVENT_CLASSES)
_failure: ContextVar[Exception | None] = ContextVar("rxllm_failure", default=None)


def failure_behind(restarted: StepRestarted) -> Exception:
    """Return the failure behind a `StepRestarted` that is being delivered.

    If the event does not come from one of these methods, only the reason of the failure is known.
    """
    kind = AdapterError if restarted.reason in AdapterError.REASONS else StreamError
    return _failure.get() or kind(restarted.reason if restarted.reason in kind.REASONS else "unknown")


@contextmanager
def _after(failure: Exception) -> Generator[None]:
    token = _failure.set(failure)
    try:
        yield
    finally:
        _failure.reset(token)


class _TimedOutError(StreamError, TimeoutError, is_variant=True):
    """A ``StreamError("timeout")`` that ``except TimeoutError`` catches too."""


class _Attempts:
    """The attempts of one subscription."""

    def __init__(self) -> None:
        self._count = 0
        self._failure: Exception = StreamError("unknown")
        self._ending: ErrorEvent | None = None  # the event with which the last attempt has failed
        self._has_events = False

    def attempt(self, source: Observable[T]) -> Observable[T]:
        """Return `source` as the next attempt, with a ``StepRestarted`` in front if one is needed."""

        def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> Any:
            self._count += 1
            if self._has_events:
                self._has_events = False
                with _after(self._failure):
                    observer.on_next(StepRestarted(as_llm_error(self._failure).reason, self._count))
            return source.subscribe(_Attempt(self, observer), scheduler=scheduler)

        return Observable(subscribe)

    def saw_event(self) -> None:
        self._has_events = True

    def fail(self, error: Exception, ending: ErrorEvent | None = None) -> None:
        self._failure, self._ending = error, ending

    def finish(self, observer: abc.ObserverBase[Any], error: Exception) -> None:
        """Pass on the failure that nothing follows."""
        if self._ending is not None and self._ending.error is error:
            observer.on_next(self._ending)
            observer.on_completed()
        else:
            observer.on_error(error)


class _Attempt(abc.ObserverBase[Any]):
    def __init__(self, attempts: _Attempts, observer: abc.ObserverBase[Any]) -> None:
        self._attempts = attempts
        self._observer = observer
        self._error: ErrorEvent | None = None  # held back until it is known whether it is the last item

    def on_next(self, value: Any) -> None:
        self._let_go()
        if type(value) is ErrorEvent:
            self._error = value
            return
        if type(value) in _EVENTS:
            self._attempts.saw_event()
        self._observer.on_next(value)

    def on_error(self, error: Exception) -> None:
        self._let_go()
        self._attempts.fail(error)
        self._observer.on_error(error)

    def on_completed(self) -> None:
        if self._error is None:
            self._observer.on_completed()
        else:
            self._attempts.fail(self._error.error, self._error)
            self._observer.on_error(self._error.error)

    def _let_go(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self._attempts.saw_event()
            self._observer.on_next(error)


def _in_attempts(make: Callable[[Observable[T], _Attempts], Observable[T]]) -> Callable[[Observable[T]], Observable[T]]:
    def operator(source: Observable[T]) -> Observable[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            attempts = _Attempts()

            def on_error(error: Exception) -> None:
                attempts.finish(observer, error)

            made = make(source, attempts)
            return made.subscribe(observer.on_next, on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def _observable(source: Any, name: str) -> Observable[Any]:
    if isinstance(source, Observable):
        return cast(Observable[Any], source)
    check(
        name, source, hasattr(source, "add_done_callback"), "an Observable or a future, or a function that returns one"
    )
    return reactivex.from_future(source)


def retry(retry_count: int | None) -> Callable[[Observable[T]], Observable[T]]:
    return _in_attempts(lambda source, attempts: attempts.attempt(source).pipe(rx.retry(retry_count)))


def catch(handler: Any) -> Callable[[Observable[T]], Observable[T]]:
    def make(source: Observable[Any], attempts: _Attempts) -> Observable[Any]:
        def other(error: Exception, _: Observable[Any]) -> Observable[Any]:
            return attempts.attempt(_observable(handler(error, source) if callable(handler) else handler, "handler"))

        return attempts.attempt(source).pipe(rx.catch(other))

    return _in_attempts(make)


def timeout(
    duetime: AbsoluteOrRelativeTime, other: Any, scheduler: abc.SchedulerBase | None
) -> Callable[[Observable[T]], Observable[T]]:
    message = (
        f"nothing arrived for {duetime} s" if isinstance(duetime, int | float) else f"nothing arrived in {duetime}"
    )

    def make(source: Observable[Any], attempts: _Attempts) -> Observable[Any]:
        error = _TimedOutError("timeout", message)

        def instead(_: Any = None) -> Observable[Any]:
            if other is None:
                return reactivex.throw(error)
            attempts.fail(error)
            return attempts.attempt(_observable(other, "other"))

        return attempts.attempt(source).pipe(rx.timeout(duetime, reactivex.defer(instead), scheduler))

    return _in_attempts(make)
