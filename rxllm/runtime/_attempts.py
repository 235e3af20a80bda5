"""Subscribe to a stream of events again and again until an attempt succeeds.

Each attempt is held back until its first content or its ``MessageCompleted``; one that fails earlier leaves no trace.

::

    attempt 1    start--X                      (held back, then dropped)
    attempt 2              start--H--i--end|
    seen         -----------------start,H--i--end|
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent, Event, is_prelude
from rxllm.runtime._clock import clock
from rxllm.runtime._scope import current_scope, within
from rxllm.runtime._stream import Stream
from rxllm.runtime._unhandled import conclude, fail
from rxllm.values import LLMError


class Plan(Protocol):
    """The attempts of one subscription, counted from 1."""

    late: bool
    """Whether `again` decides on failures after the first content too."""

    def source(self, attempt: int) -> Observable[Event]: ...

    def again(self, error: Exception, attempt: int) -> float | None:
        """Return the seconds until the next attempt after `attempt` failed; None passes its failure on."""
        ...

    def opens(self, attempt: int) -> Iterable[Event]:
        """Return the events to emit before those of `attempt`, whose first content has come."""
        ...


class Attempts:
    """One subscription to the attempts of `plan`; `start` returns its disposable."""

    def __init__(
        self, plan: Plan, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> None:
        self.observer = observer
        self.begun = False  # whether an attempt has been passed on
        self._plan = plan
        self._scheduler = scheduler
        self._scope = current_scope.get()
        self._source = SerialDisposable()
        self._timer = SerialDisposable()
        self._count = 0

    def start(self) -> abc.DisposableBase:
        self._subscribe()
        return CompositeDisposable(self._source, self._timer)

    def opened(self, events: list[Event]) -> list[Event]:
        """Return what to emit for an attempt whose `events` end with its first content."""
        if self.begun and isinstance(events[-1], ErrorEvent):
            return events[-1:]  # a later attempt failed at once: the events of the earlier one stand
        self.begun = True
        return [*self._plan.opens(self._count), *events]

    def again(self, error: Exception) -> bool:
        """Return whether the failure of the latest attempt is dealt with."""
        try:
            with within(self._scope):
                seconds = self._plan.again(error, self._count)
        except Exception as raised:  # from a function of the user's
            self.observer.on_error(raised)
            return True
        if seconds is None:
            return False
        timer = self._timer.disposable = SingleAssignmentDisposable()  # before it can fire
        timer.disposable = clock(self._scheduler).schedule_relative(seconds, self._wake)
        return True

    def _subscribe(self) -> None:
        self._count += 1
        attempt = _Attempt(self, self._plan.late)
        subscription = self._source.disposable = SingleAssignmentDisposable()  # before it can fail
        with within(self._scope):  # a later attempt is subscribed to where an earlier one failed
            subscription.disposable = self._plan.source(self._count).subscribe(
                attempt.on_next, attempt.on_error, attempt.on_completed, scheduler=self._scheduler
            )

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        try:
            self._subscribe()
        except BaseException as error:  # from the adapter: nothing above would deliver it
            fail(self.observer, error)


class _Attempt:
    """One attempt: held, then passed on. Events that arrive while the held ones are released wait behind them."""

    __slots__ = ("_attempts", "_delivering", "_end", "_failed", "_late", "_observer", "_pass", "_pending", "_releasing")

    def __init__(self, attempts: Attempts, late: bool) -> None:
        self._attempts = attempts
        self._late = late
        self._observer = attempts.observer
        self._pending: list[Event] | None = []
        self._pass: Callable[[Event], object] = self._pass_late if late else self._observer.on_next
        self._releasing = False
        self._failed = False  # and its failure is dealt with
        self._delivering = False  # stays True when a subscriber raises, which is not a failed attempt
        self._end: Callable[[], None] | None = None  # an end that came during the release

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
        if isinstance(event, ErrorEvent) and self._attempts.again(event.error):
            self._failed = True
            return
        events.append(event)
        if not is_prelude(event):
            self._release(self._attempts.opened(events))

    def _release(self, waiting: list[Event]) -> None:
        original, self._pending = self._pass, None
        self._pass, self._releasing = waiting.append, True
        try:
            for event in waiting:  # it may grow meanwhile
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
        if isinstance(event, ErrorEvent) and not self._failed and self._attempts.again(event.error):
            self._failed = True
        if not self._failed:
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        before, self._delivering = self._delivering, True
        self._observer.on_next(event)
        self._delivering = before


def attempting(make: Callable[[], Plan]) -> Stream[Event]:
    """Return a stream that makes attempts; ``make()`` returns a new `Plan` for each subscription."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return Attempts(make(), observer, scheduler).start()

    return Stream(subscribe)
