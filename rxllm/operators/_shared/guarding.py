"""Hold events back until the text before them has passed its check.

===========  ============================================  ====================================================
a part       until                                         events behind it
===========  ============================================  ====================================================
open         its sentence, or its block, ends              wait
complete     fewer than `AT_ONCE` checks run               wait
in check     its verdict                                   wait
passed                                                     are released, in order
tripped      the parts before it have passed               are dropped; an error ends the stream
late         `max_lag` seconds                             ``fail``: as tripped; ``release``: released nevertheless
===========  ============================================  ====================================================

The source is disposed at the first trip, even if earlier parts are still being checked. With ``release`` a trip ends
the stream at once, and the end of a response ends its late checks. One loop, `_drain`, does everything that may call
foreign code, one step after another and without the lock, whichever thread brings an event, a verdict or the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import RLock
from typing import Any, Literal

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import Unfinished
from rxllm.events import ChatCompleted, ErrorEvent, Event, MessageCompleted, StepCompleted
from rxllm.operators._shared.guard_parts import GuardParts, Part
from rxllm.runtime import (
    Hold,
    check_failed,
    check_late,
    clock,
    conclude,
    fail,
    paced,
    result_of,
    stopwatch,
    verdict_error,
)
from rxllm.values import StreamError
from rxllm.values._response import shorten

AT_ONCE = 4
"""How many checks of a stream run at the same time."""

MOST = 1024
"""How many events wait before the source has to."""

_SHOWN = 80
_ENDS = (MessageCompleted, ErrorEvent, StepCompleted, ChatCompleted)


class GuardSettings(msgspec.Struct, frozen=True):
    """The arguments of ``guard``; `sees_before` is whether `check` takes the text before a part too."""

    check: Callable[..., Any]
    sees_before: bool
    every: Literal["sentence"] | int
    max_lag: float | None
    on_late: Literal["fail", "release"]
    thinking: bool

    def verdict(self, part: Part) -> Any:
        return self.check(part.text, part.before) if self.sees_before else self.check(part.text)


class _Check:
    """A part, and what is known of it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.verdict: Any = None
        self.is_done = part.text.isspace()
        self.error: StreamError | None = None
        self.due = math.inf
        self.subscription = SingleAssignmentDisposable()

    def see(self, verdict: Any) -> None:
        self.verdict = verdict


class _Waiting(msgspec.Struct):
    """An event, or a function to call in its place, that waits for the first `parts` parts."""

    item: Event | Callable[[], None]
    parts: int
    due: float


class Guarding(abc.DisposableBase):
    """One subscription."""

    def __init__(
        self, settings: GuardSettings, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._scheduler = scheduler
        self._lock = RLock()
        self._parts = GuardParts(settings.every, settings.thinking)
        self._queue: deque[_Waiting] = deque()
        self._checks: deque[_Check] = deque()  # of the parts from the first that has not passed
        self._complete: deque[_Check] = deque()  # those that have not begun
        self._running: list[_Check] = []
        self._passed = 0  # parts
        self._shown = 0  # parts that have been released, checked or not
        self._unfinished = Unfinished()
        self._begun = False  # an event has been released
        self._tripped = False
        self._failure: BaseException | None = None
        self._draining = False
        self._ended = False
        self._gate = Hold(lambda: len(self._queue) >= MOST, self._before_tools)
        self._source = SingleAssignmentDisposable()
        self._timer = SerialDisposable()
        self._armed = math.inf  # when the timer fires
        self._time = 0.0
        self._now = stopwatch(scheduler) if settings.max_lag is not None else float  # 0.0

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._source.disposable = paced(source, self._gate).subscribe(
            self._on_next, self._fail, self._on_completed, scheduler=self._scheduler
        )
        return self

    def dispose(self) -> None:
        with self._lock:
            self._ended = True
            checks = list(self._checks)
            for waiting in (self._queue, self._checks, self._complete, self._running):
                waiting.clear()
        self._source.dispose()
        self._timer.dispose()
        for check in checks:
            check.subscription.dispose()

    # What comes

    def _on_next(self, event: Event) -> None:
        try:
            with self._lock:
                if self._ended or self._tripped:
                    return
                for item, parts in self._parts.feed(event):
                    self._wait(item, parts)
        except Exception as error:  # it is not an event
            self._fail(error)
        else:
            self._drain()

    def _on_completed(self) -> None:
        self._last(self._complete_stream)

    def _before_tools(self, start: Callable[[], None]) -> None:
        # Called by ``run_tools`` upstream, whose context the tools need.
        self._last(partial(copy_context().run, start))

    def _last(self, item: Callable[[], None]) -> None:
        """Call `item` after what has come so far."""
        with self._lock:
            self._parts.close()
            self._wait(item, self._parts.count)
        self._drain()

    def _wait(self, item: Event | Callable[[], None], parts: int) -> None:
        due = math.inf if self._settings.on_late == "fail" else self._now() + (self._settings.max_lag or 0.0)
        self._queue.append(_Waiting(item, parts, due))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._source.dispose()
        self._drain()

    def _judge(self, check: _Check, error: BaseException | None = None) -> None:
        """Take the verdict of `check`, or the `error` that it raised."""
        if error is not None and not isinstance(error, Exception):
            self._fail(error)
            return
        function = self._settings.check
        fault = verdict_error(function, check.verdict) if error is None else check_failed(function, error)
        self._end_check(check, fault)
        self._drain()

    def _end_check(self, check: _Check, error: StreamError | None = None) -> None:
        with self._lock:
            if check.is_done:
                return
            check.is_done = True
            if check in self._running:
                self._running.remove(check)
            if error is not None:
                error.metadata = {**error.metadata, "text": shorten(check.part.text, _SHOWN)}
                check.error = error
                self._tripped = True
        check.subscription.dispose()
        if error is not None:
            self._source.dispose()

    # What follows from it

    def _drain(self) -> None:
        with self._lock:
            if self._draining:
                return
            self._draining = True
        while (step := self._next()) is not None:
            try:
                step()
            except BaseException as error:  # the subscriber's: whoever calls may not deliver it
                self.dispose()
                fail(self._observer, error)

    def _next(self) -> Callable[[], None] | None:
        """Return what to do next; None if there is nothing, and then the drain is over."""
        with self._lock:
            self._time = max(self._time, self._now())
            self._advance()
            step = None if self._ended else self._failing() or self._releasing() or self._cutting() or self._checking()
            if step is None:
                self._draining = False
                self._arm()
            return step

    def _advance(self) -> None:
        self._take_complete()
        if len(self._queue) >= MOST and not self._checks:
            self._parts.close()  # only its end can make room
            self._take_complete()

    def _take_complete(self) -> None:
        for part in self._parts.complete:
            check = _Check(part)
            self._checks.append(check)
            self._complete.append(check)
        self._parts.complete.clear()
        while self._checks and self._checks[0].is_done and self._checks[0].error is None:
            self._passed = self._checks.popleft().part.number

    def _failing(self) -> Callable[[], None] | None:
        return None if self._failure is None else partial(self._raise, self._failure)

    def _releasing(self) -> Callable[[], None] | None:
        if not self._queue:
            return None
        waiting = self._queue[0]
        if waiting.parts > self._passed and (self._tripped or waiting.due > self._time):
            return None
        self._shown = max(self._shown, waiting.parts)
        self._queue.popleft()
        return partial(self._release, waiting)

    def _cutting(self) -> Callable[[], None] | None:
        if not self._tripped:
            return None
        first = next(check for check in self._checks if check.error is not None)
        counts = first is self._checks[0] or self._settings.on_late == "release"
        return partial(self._cut, first.error) if counts else None

    def _checking(self) -> Callable[[], None] | None:
        while self._complete and self._complete[0].is_done:
            self._complete.popleft()
        if not self._complete or self._tripped:
            return None
        if len(self._running) < AT_ONCE:
            check = self._complete.popleft()
            self._running.append(check)
            return partial(self._check, check)
        oldest = self._running[0]  # released unchecked, it gives way
        return partial(self._end_check, oldest) if oldest.part.number <= self._shown else None

    def _release(self, waiting: _Waiting) -> None:
        item = waiting.item
        if waiting.parts > self._passed and (callable(item) or isinstance(item, _ENDS)):
            self._give_up(waiting.parts)
        if callable(item):
            item()
            return
        self._begun = True
        self._unfinished.see(item)
        self._observer.on_next(item)
        if len(self._queue) == MOST // 2:
            self._gate.open()

    def _give_up(self, parts: int) -> None:
        """End the checks of the first so many parts: their response is over."""
        for check in [check for check in self._checks if check.part.number <= parts]:
            self._end_check(check)

    def _check(self, check: _Check) -> None:
        settings = self._settings
        if settings.max_lag is not None and settings.on_late == "fail":
            check.due = self._now() + settings.max_lag
        check.subscription.disposable = paced(result_of(partial(settings.verdict, check.part)), None).subscribe(
            check.see, partial(self._judge, check), partial(self._judge, check), scheduler=self._scheduler
        )

    # Its ends

    def _complete_stream(self) -> None:
        self.dispose()
        conclude(self._observer)

    def _raise(self, error: BaseException) -> None:
        self.dispose()
        fail(self._observer, error)

    def _cut(self, error: Any) -> None:
        self.dispose()
        if self._begun:
            conclude(self._observer, [*self._unfinished.close(), ErrorEvent(error)])
        else:
            self._observer.on_error(error)

    # Its time

    def _arm(self) -> None:
        due = min((check.due for check in self._running), default=math.inf)
        if self._queue:
            due = min(due, self._queue[0].due)
        if due < self._armed and not self._ended:
            self._armed = due
            wait = max(due - self._time, 0.0)
            self._timer.disposable = clock(self._scheduler).schedule_relative(wait, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._time = max(self._now(), self._armed)  # a clock may be a little slower than its timer
            self._armed = math.inf
            late = [check for check in self._running if check.due <= self._time]
        for check in late:
            self._end_check(check, check_late(self._settings.check, self._settings.max_lag or 0.0))
        self._drain()
