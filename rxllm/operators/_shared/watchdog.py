"""The clock of one subscription, and its one timer.

The timer is lazy: it is armed again when it fires, not when an event comes, so an event costs a look at the clock and
no timer. Only two events arm it: the first content, and the one that ends a stall.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any, Protocol

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.events import ErrorEvent, Event, MessageCompleted
from rxllm.runtime import clock, conclude, current_gate, fail, stopwatch
from rxllm.runtime._idle_timeout import is_content

BUSY_SECONDS = 0.01


class Heard:
    """What has come so far. A consumer that is behind makes its source wait: that is no silence of the model."""

    def __init__(self, scheduler: abc.SchedulerBase | None) -> None:
        self.now = stopwatch(scheduler)
        self.began = self.now()
        self.last = self.began  # when it began, then when content came
        self.events = 0
        self.spoken = False  # there has been content
        self.over = False  # a response is complete, and nothing has come since
        self._gate = current_gate.get()
        self._behind = False

    def hear(self, event: Event) -> None:
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
        """Begin to count anew if the consumer is behind."""
        if self._behind:
            self.last = self.now()

    def _caught_up(self) -> None:
        self.last = self.now()
        self._behind = False


class Rule(Protocol):
    """What a `Watch` does with the time."""

    def see(self, event: Event) -> None: ...

    def due(self, heard: Heard) -> float | None:
        """When it is time to `act`, on the clock of `heard`; infinity is never, None is to be asked again."""
        ...

    def act(self, heard: Heard) -> Iterable[Event] | BaseException | None:
        """It is time: what the stream ends with, or None to go on."""
        ...


class Watch:
    """Passes events on while `rule` watches the time."""

    def __init__(
        self, rule: Rule, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> None:
        self._rule = rule
        self._observer = observer
        self._scheduler = scheduler
        self._heard = Heard(scheduler)
        self._source = SingleAssignmentDisposable()
        self._timer = SerialDisposable()
        self._armed = False
        self._ended = False
        # The timer may be another thread's than the source's.
        self._guard = threading.RLock()

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._arm()
        self._source.disposable = source.subscribe(
            self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler
        )
        return CompositeDisposable(self._source, self._timer)

    def _on_next(self, event: Event) -> None:
        heard = self._heard
        with self._guard:
            if self._ended:
                return
            spoken = heard.spoken
            heard.hear(event)
            self._rule.see(event)
            if not self._armed or spoken is not heard.spoken:
                self._arm()
            self._observer.on_next(event)
            heard.delivered()

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
        due = self._rule.due(self._heard)
        self._armed = due is not None
        if due is not None and due < math.inf:
            self._wake_in(max(0.0, due - self._heard.now()))

    def _wake_in(self, seconds: float) -> None:
        timer = self._timer.disposable = SingleAssignmentDisposable()  # before it can fire
        timer.disposable = clock(self._scheduler).schedule_relative(seconds, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        if not self._guard.acquire(blocking=False):  # an event is being delivered: that is no silence
            self._wake_in(BUSY_SECONDS)
            return
        try:
            if not self._ended:
                self._look()
        finally:
            self._guard.release()

    def _look(self) -> None:
        self._heard.excuse()
        due = self._rule.due(self._heard)
        if due is None or due > self._heard.now():
            self._arm()
            return
        last_words = self._rule.act(self._heard)
        if last_words is None:
            self._arm()
            return
        self._end()
        self._source.dispose()
        if isinstance(last_words, BaseException):
            fail(self._observer, last_words)
        else:
            conclude(self._observer, last_words)
