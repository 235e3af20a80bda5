"""Time limits and warnings for silent streams.

* Pings do not reset a timer.
* For most events, only the time is recorded, which is cheap. The timer is usually set again only when it fires.
* Time spent waiting for the consumer does not count as silence.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import Unfinished
from rxllm.events import ErrorEvent, Event, MessageCompleted, is_content
from rxllm.http import NO_TIMEOUTS, Timeouts
from rxllm.operators._event_operators import operate
from rxllm.runtime import Stream, clock, conclude, current_gate, engine_call, fail, stopwatch
from rxllm.values import AdapterError, StreamError
from rxllm.values.argument_checks import check, check_function, is_positive

RESOLUTION = 1e-6
"""The rounding error of the schedulers, in seconds.

A timer may fire early by up to this much. If it were then set again for the remaining time, it could fire early again,
and so on endlessly.
"""

BUSY_SECONDS = 0.01
"""If the timer fires during a delivery, it fires again after this many seconds."""


def time_limits(
    first: float | None = None, idle: float | None = None, total: float | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Limit how long a stream may run, and how long it may be silent.

    ::

        source               --start--H--ping--ping--------i--end--|
        time_limits(idle=15) --start--H--ping--ping--(H,error)|        (H completed, then the error)

    >>> from rxllm import Fake, stream_generate
    >>> slow = stream_generate(Fake(["Hel", ("delay", 60), "lo"]), "Hi").pipe(time_limits(first=5, idle=0.01))
    >>> [type(event).__name__ for event in slow]
    ['MessageStarted', 'TextDelta', 'TextCompleted', 'ErrorEvent']

    `first` limits the wait for the first content. After that, `idle` limits each wait for more content. `total` limits
    the whole duration. All are in seconds. The model's output counts as content, but message starts and ends, usage and
    raw frames do not. All of an agent's events count as content too, except usage and raw frames.

    A timeout completes open blocks and calls. The stream then ends with an ``ErrorEvent`` that contains a
    ``StreamError("timeout")``. If there were no events at all, it ends with ``on_error`` and an
    ``AdapterError("timeout")``. The error's metadata contains the exceeded `limit`, its `seconds`, and the number of
    `events` so far. The connection is closed. While the consumer is behind, only `total` applies. After a
    ``MessageCompleted``, no limit applies until another event arrives.

    The call option ``timeout`` sets the same limits for each attempt. It is a number or a `Timeouts`. An attempt
    that produces no content in time is retried.

    Raises ``ValidationError("invalid_option")`` if a limit is not a positive number.
    """
    limits = Timeouts(first, idle, total)
    if limits == NO_TIMEOUTS:
        return Stream.of

    def operator(source: Observable[Event]) -> Stream[Event]:
        call = engine_call()
        provider = call.provider if call is not None else None
        return Stream(lambda observer, scheduler=None: _Limits(limits, provider, observer, scheduler).start(source))

    return operator


def stall_warning(after: float, fn: Callable[[float, int], object]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Call ``fn(seconds, events)`` if no content arrives for `after` seconds.

    ::

        source                  --start--H------------i--end--|
        stall_warning(5, fn)                   fn                 (5 s after H, with two events)
                                --start--H------------i--end--|

    >>> from rxllm import Fake, stream_generate
    >>> slow = stream_generate(Fake(["Hel", ("delay", 0.4), "lo"]), "Hi")
    >>> warn = lambda seconds, events: print(f"silent after {events} events")
    >>> response = slow.pipe(stall_warning(0.2, warn)).run()
    silent after 2 events

    `fn` is called once per silence. A long wait for the first content counts too. If `fn` raises, the stream ends with
    that exception. See `time_limits` for what counts as content.

    Raises ``ValidationError("invalid_option")`` unless `after` is a positive number and `fn` is a function.
    """
    check("after", after, is_positive(after), "a positive number of seconds")
    check_function("fn", fn)
    return operate(lambda source, observer, scheduler: _Warning(after, fn, observer, scheduler).start(source))


class _Watch:
    """Base class that measures time as events pass through, and that can end the stream."""

    def __init__(self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._scheduler = scheduler
        self._now = stopwatch(scheduler)
        self._began = self._last = self._now()  # `_last` is when the current silence began
        self._events = 0
        self._has_content = False
        self._is_complete = False  # whether a response has ended and no event has followed it
        self._gate = current_gate()
        self._is_behind = False  # whether the consumer is behind
        self._source = SingleAssignmentDisposable()
        self._timer = SerialDisposable()
        self._armed = False
        self._ended = False
        self._guard = threading.RLock()  # the timer and the source may run on different threads

    def see(self, event: Event) -> None: ...

    def due(self) -> float | None:
        """Return the time at which to call `act`, or None if that depends on the next event."""
        raise NotImplementedError

    def act(self) -> Iterable[Event] | BaseException | None:
        """Return the events or the error to end the stream with, or None if the stream continues."""
        raise NotImplementedError

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._arm()
        self._source.disposable = source.subscribe(
            self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler
        )
        return CompositeDisposable(self._source, self._timer)

    def _on_next(self, event: Event) -> None:
        with self._guard:
            if self._ended:
                return
            had_content = self._has_content
            self._record(event)
            self.see(event)
            if not self._armed or had_content is not self._has_content:
                self._arm()
            self._observer.on_next(event)
            if self._gate is not None and self._gate.full and not self._is_behind:
                self._is_behind = True
                self._gate.when_open(self._caught_up)

    def _record(self, event: Event) -> None:
        self._events += 1
        if is_content(event):
            self._last = self._now()
            self._has_content, self._is_complete = True, False
        elif isinstance(event, MessageCompleted | ErrorEvent):
            self._is_complete = True
        elif self._is_complete:
            self._last = self._now()
            self._is_complete = False

    def _caught_up(self) -> None:
        self._last = self._now()
        self._is_behind = False

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
        due = self.due()
        self._armed = due is not None
        if due is not None and due < math.inf:
            self._wake_in(max(0.0, due - self._now()))

    def _wake_in(self, seconds: float) -> None:
        timer = self._timer.disposable = SingleAssignmentDisposable()  # set first: the timer may fire at once
        timer.disposable = clock(self._scheduler).schedule_relative(seconds, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        if not self._guard.acquire(blocking=False):  # an event is being delivered
            self._wake_in(BUSY_SECONDS)
            return
        try:
            if not self._ended:
                self._check_time()
        finally:
            self._guard.release()

    def _check_time(self) -> None:
        if self._is_behind:
            self._last = self._now()
        due = self.due()
        is_due = due is not None and due - self._now() < RESOLUTION
        ending = self.act() if is_due else None
        if ending is None:
            self._arm()
            return
        self._end()
        self._source.dispose()
        if isinstance(ending, BaseException):
            fail(self._observer, ending)
        else:
            conclude(self._observer, ending)


_MESSAGES: Mapping[str, str] = {
    "first": "no content arrived within {:g} s",
    "idle": "no more content arrived for {:g} s",
    "total": "the stream did not end within {:g} s",
}


class _Limits(_Watch):
    def __init__(self, limits: Timeouts, provider: str | None, *subscription: Any) -> None:
        super().__init__(*subscription)
        self._limits = limits
        self._provider = provider
        self._unfinished = Unfinished()
        self.see = self._unfinished.see

    def due(self) -> float | None:
        return None if self._is_complete else min((time for time, _, _ in self._deadlines()), default=math.inf)

    def act(self) -> Iterable[Event] | Exception:
        _, limit, seconds = min(self._deadlines())
        message = f"{_MESSAGES[limit].format(seconds)} (timeout {limit!r}, after {self._events} events)"
        metadata = {"limit": limit, "seconds": seconds, "events": self._events}
        if not self._events:
            return AdapterError("timeout", message, provider=self._provider, metadata=metadata)
        error = StreamError("timeout", message, provider=self._provider, metadata=metadata)
        return [*self._unfinished.close(), ErrorEvent(error)]

    def _deadlines(self) -> Iterable[tuple[float, str, float]]:
        limit, silence = ("idle", self._limits.idle) if self._has_content else ("first", self._limits.first)
        if silence is not None:
            yield self._last + silence, limit, silence
        if self._limits.total is not None:
            yield self._began + self._limits.total, "total", self._limits.total


class _Warning(_Watch):
    def __init__(self, after: float, fn: Callable[[float, int], object], *subscription: Any) -> None:
        super().__init__(*subscription)
        self._after = after
        self._fn = fn
        self._warned: float | None = None  # when the last reported silence began

    def due(self) -> float | None:
        return None if self._is_complete or self._last == self._warned else self._last + self._after

    def act(self) -> BaseException | None:
        self._warned = self._last
        try:
            self._fn(self._now() - self._last, self._events)
        except BaseException as error:
            return error
        return None
