"""Watch the time that passes between the events of one subscription.

The timer is lazy: it is set again when it fires, not at each event, so an event costs a look at the clock and no timer.
Only two events set it: the first content, and the one that ends a stall.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any, Protocol

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent, Event, MessageCompleted, is_content
from rxllm.runtime import clock, conclude, current_gate, fail, stopwatch

RESOLUTION = 1e-6
"""Seconds that schedulers round to: a timer may fire so much early, and one for less would fire at once, for ever."""

BUSY_SECONDS = 0.01


class Activity:
    """When events arrived. While the consumer is behind, its source waits: the model is not silent then."""

    def __init__(self, scheduler: abc.SchedulerBase | None) -> None:
        self.now = stopwatch(scheduler)
        self.began = self.now()
        self.last = self.began  # the last content, at first the beginning
        self.events = 0
        self.spoken = False  # content has arrived
        self.over = False  # a response is complete, and nothing has arrived since
        self._gate = current_gate.get()
        self._behind = False

    def record(self, event: Event) -> None:
        self.events += 1
        if is_content(event):
            self.last = self.now()
            self.spoken, self.over = True, False
        elif isinstance(event, MessageCompleted | ErrorEvent):
            self.over = True
        elif self.over:
            self.last = self.now()
            self.over = False

    def delivered(self) -> None:
        if self._gate is not None and self._gate.full and not self._behind:
            self._behind = True
            self._gate.when_open(self._caught_up)

    def excuse(self) -> None:
        """Restart the silence if the consumer is behind."""
        if self._behind:
            self.last = self.now()

    def _caught_up(self) -> None:
        self.last = self.now()
        self._behind = False


class Rule(Protocol):
    """Decides what a `Watch` waits for, and what happens then."""

    def see(self, event: Event, /) -> None: ...

    def due(self, activity: Activity, /) -> float | None:
        """Return when to `act`, on the clock of `activity`; infinity is never, None to ask again at the next event."""
        ...

    def act(self, activity: Activity, /) -> Iterable[Event] | BaseException | None:
        """Return what the stream ends with; None to continue."""
        ...


class Watch:
    """Passes events on while `rule` watches the time."""

    def __init__(
        self, rule: Rule, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> None:
        self._rule = rule
        self._observer = observer
        self._scheduler = scheduler
        self._activity = Activity(scheduler)
        self._source = SingleAssignmentDisposable()
        self._timer = SerialDisposable()
        self._armed = False
        self._ended = False
        self._guard = threading.RLock()  # the timer may be on another thread than the source

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._arm()
        self._source.disposable = source.subscribe(
            self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler
        )
        return CompositeDisposable(self._source, self._timer)

    def _on_next(self, event: Event) -> None:
        activity = self._activity
        with self._guard:
            if self._ended:
                return
            spoken = activity.spoken
            activity.record(event)
            self._rule.see(event)
            if not self._armed or spoken is not activity.spoken:
                self._arm()
            self._observer.on_next(event)
            activity.delivered()

    def _on_error(self, error: Exception) -> None:
        with self._guard:
            if self._end():
                self._observer.on_error(error)

    def _on_completed(self) -> None:
        with self._guard:
            if self._end():
                self._observer.on_completed()

    def _end(self) -> bool:
        first, self._ended = not self._ended, True
        self._timer.dispose()
        return first

    def _arm(self) -> None:
        due = self._rule.due(self._activity)
        self._armed = due is not None
        if due is not None and due < math.inf:
            self._wake_in(max(0.0, due - self._activity.now()))

    def _wake_in(self, seconds: float) -> None:
        timer = self._timer.disposable = SingleAssignmentDisposable()  # before it can fire
        timer.disposable = clock(self._scheduler).schedule_relative(seconds, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        if not self._guard.acquire(blocking=False):  # an event is being delivered
            self._wake_in(BUSY_SECONDS)
            return
        try:
            if not self._ended:
                self._look()
        finally:
            self._guard.release()

    def _look(self) -> None:
        self._activity.excuse()
        due = self._rule.due(self._activity)
        is_due = due is not None and due - self._activity.now() < RESOLUTION
        ending = self._rule.act(self._activity) if is_due else None
        if ending is None:
            self._arm()
            return
        self._end()
        self._source.dispose()
        if isinstance(ending, BaseException):
            fail(self._observer, ending)
        else:
            conclude(self._observer, ending)
