"""Share one call among any number of watchers.

* Events wait in each watcher's own `JoinedEvents`.
* The call never waits for a watcher, and no watcher ever waits for another watcher.
* No lock is held while a subscriber is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import StreamCollector, innermost
from rxllm.events import ErrorEvent, Event, Nested, ToolExecutionCompleted, UsageUpdated
from rxllm.operators._event_operators import EVENTS, not_an_event
from rxllm.operators._slow_consumers import continues, join_texts, text_of
from rxllm.runtime import (
    LoopScheduler,
    Stream,
    call_context,
    chosen_loop,
    clock,
    current_gate,
    current_place,
    fail,
    read_by,
    report_unheard,
    schedule_in,
    unpaced,
)
from rxllm.values import EngineError, StreamError
from rxllm.values.argument_checks import check_seconds

MOST = 1024
"""The maximum number of waiting events. When it is exceeded, events that no fold uses are dropped."""


def share_folded(grace: float | None = 0.0) -> Callable[[Observable[Event]], Stream[Event]]:
    """Share one call among any number of watchers.

    ::

        source                --start--H--e--l--l--o--Hello--end--|
        share_folded(5)       --start--H--e--l--l--o--Hello--end--|
         a late watcher                      ^(start-Hel)-l--o--Hello--end--|

    >>> import asyncio
    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> async def main():
    ...     answer = stream_generate(Fake(["Hel", "lo", ("delay", 0.05), "!"]), "Hi").pipe(share_folded(grace=5))
    ...     answer.pipe(ops.text()).subscribe(lambda text: print("early:", text))
    ...     answer.pipe(ops.text()).subscribe(lambda text: print("late:", text))
    ...     print(await answer.pipe(ops.to_response()))
    >>> asyncio.run(main())
    early: Hel
    early: lo
    late: Hello
    early: !
    late: !
    Response('Hello!', stop, 0 tokens)

    Write ``.pipe(share_folded(...))`` once, then subscribe to the result as often as you like. The first watcher starts
    the call. A late watcher first receives the state so far, as events from ``StreamCollector.to_events()``. A fold
    therefore gives every watcher the same result. Past events that folds do not keep, such as tool progress, are
    missing. After the end, a new watcher receives all events at once, then the end.

    The call is cancelled `grace` seconds after the last watcher has left, unless another joins. By default, it is
    cancelled at once. With None, it is never
    cancelled. To stop the call for all watchers, end the source: ``stream.take_until(stop).pipe(share_folded(None))``.
    A call that has ended does not start again. After a cancellation, new watchers receive the events so far and a
    ``StreamError("cancelled")``.

    The call runs on the event loop of its first watcher. All watchers are called on that loop. A watcher delays the
    others only if its functions block the loop. A slow iterator (``for``, ``async for``) receives adjacent deltas
    joined into one. When more than a thousand events are waiting for the iterator, the waiting events that folds do not
    keep are dropped. An exception raised by a watcher goes only to that watcher's ``on_error``.

    A blocking ``run()``, ``for`` or ``show`` on the loop's own thread raises ``EngineError("wrong_loop")``. In a
    notebook, write ``await`` instead.

    Raises ``ValidationError("invalid_option")`` unless `grace` is a number of seconds or None.
    """
    seconds = None if grace is None else check_seconds("grace", grace)

    def operator(source: Observable[Event]) -> Stream[Event]:
        return Stream(_Shared(source, seconds).watch)

    return operator


class _Shared:
    def __init__(self, source: Observable[Event], grace: float | None) -> None:
        self._source = source
        self._grace = grace
        self._lock = RLock()
        self._state = StreamCollector()
        self._watchers: list[Watcher] = []
        self._clock: abc.SchedulerBase | None = None  # the first watcher's clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscription = SingleAssignmentDisposable()
        self._timer = SerialDisposable()  # The timer for the grace period, which begins when the last watcher leaves.
        self._has_failed = False  # Whether the last event was an ErrorEvent. Watchers often leave after one.
        self._has_ended = False
        self._error: Exception | None = None

    def watch(
        self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        with self._lock:
            is_first = self._clock is None
            if self._clock is None:
                self._clock, self._loop = clock(scheduler), chosen_loop()
            watcher = Watcher(observer, self._lock, self._leave, self._state.to_events())
            waits_for_itself = not self._has_ended and self._loop in current_place.get().blocked_loops
            if self._has_ended:
                watcher.finish(self._error)
            elif not waits_for_itself:
                self._watchers.append(watcher)
                self._timer.disposable = Disposable()
        if waits_for_itself:
            observer.on_error(EngineError("wrong_loop", _BLOCKED))
        elif is_first:
            self._start(scheduler)
        elif self._has_ended or not isinstance(self._clock, LoopScheduler) or self._clock.runs_here:
            watcher.deliver(self._clock)
        elif self._clock.has_ended:
            self._end(StreamError("cancelled", "the shared call's event loop is closed"))
        else:
            watcher.deliver_soon(self._clock)
        return Disposable(lambda: self._leave(watcher))

    def _start(self, scheduler: abc.SchedulerBase | None) -> None:
        # The first watcher's back-pressure and error listener must not apply to the shared call.
        with read_by(None, lambda error: False):
            self._subscription.disposable = self._source.subscribe(
                self._on_next, self._end, self._end, scheduler=unpaced(scheduler)
            )

    def _on_next(self, event: Event) -> None:
        try:
            if type(event) not in EVENTS:
                raise not_an_event("share_folded", event)
            with self._lock:
                if self._has_ended:
                    return
                self._state = self._state.apply_event(event)
                self._has_failed = type(event) is ErrorEvent
                watchers = tuple(self._watchers)
                for watcher in watchers:
                    watcher.add(event)
        except Exception as error:  # raised if the item is not an event, or if raw usage has unknown keys
            self._end(error)
            self._subscription.dispose()
        else:
            self._deliver_to(watchers)

    def _end(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended, self._error = True, error
            self._timer.dispose()
            watchers = tuple(self._watchers)
            for watcher in watchers:
                watcher.finish(error)
        self._deliver_to(watchers)

    def _deliver_to(self, watchers: tuple[Watcher, ...]) -> None:
        assert self._clock is not None
        for watcher in watchers:
            watcher.deliver(self._clock)

    def _leave(self, watcher: Watcher) -> None:
        watcher.leave()
        with self._lock:
            if watcher not in self._watchers:
                return
            self._watchers.remove(watcher)
            if self._watchers or self._has_ended or self._grace is None:
                return
            if self._grace > 0 and not (isinstance(self._clock, LoopScheduler) and self._clock.has_ended):
                assert self._clock is not None
                self._timer.disposable = self._clock.schedule_relative(
                    self._grace, lambda scheduler, state: self._stop()
                )
                return
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            if self._watchers or self._has_ended:
                return
            remedy = "subscribe to a new stream, or pass a longer grace period"
            fault = f"the shared call was stopped after {self._grace:g} s without watchers; {remedy}"
            self._end(None if self._has_failed else StreamError("cancelled", fault))
        self._subscription.dispose()


_BLOCKED = (
    "this blocking call would block the shared call; "
    "write 'await stream', 'async for' or rxllm.show(stream, block=False)"
)


class Watcher:
    """One subscription to a shared call.

    Watchers share one lock, and must not wait for one another. A `Backlog` would hold the lock while it delivers.
    """

    def __init__(
        self,
        observer: abc.ObserverBase[Event],
        lock: AbstractContextManager[Any],
        leave: Callable[[Watcher], None],
        events: Iterable[Event],
    ) -> None:
        self.has_left = False
        self._observer = observer
        self._lock = lock  # the call's lock, which guards the waiting events
        self._leave = leave
        self._waiting = JoinedEvents(events)
        self._has_ended = False
        self._error: Exception | None = None
        self._context = call_context()
        self._gate = current_gate()
        self._wake = SerialDisposable()
        self._is_delivering = False
        self._waits_for_gate = False

    def add(self, event: Event) -> None:
        """Add an event. The caller must hold the lock, and must call `deliver` after releasing it."""
        self._waiting.add(event)

    def finish(self, error: Exception | None) -> None:
        """Record the end. The caller must hold the lock, and must call `deliver` after releasing it."""
        self._has_ended, self._error = True, error

    def deliver(self, clock: abc.SchedulerBase) -> None:
        while (events := self._begin(clock)) is not None:
            self._context.run(self._deliver, events)
            with self._lock:  # From here on, another thread may enter the context.
                self._is_delivering = False

    def deliver_soon(self, clock: abc.SchedulerBase) -> None:
        if not self.has_left:
            schedule_in(self._wake, clock, lambda scheduler, state: self.deliver(clock))

    def leave(self) -> None:
        self.has_left = True
        self._wake.dispose()

    def _begin(self, clock: abc.SchedulerBase) -> list[Event] | None:
        """Return the events to deliver, or None if nothing can be delivered now."""
        with self._lock:
            if self._is_delivering or self.has_left or not (self._waiting or self._has_ended):
                return None
            if self._gate is not None and not (self._gate.idle or self._has_ended):
                if not self._waits_for_gate:
                    self._waits_for_gate = True
                    self._gate.when_idle(lambda: self._on_idle(clock))
                return None
            self._is_delivering = True
            return self._waiting.take()

    def _deliver(self, events: list[Event]) -> None:
        try:
            for event in events:
                if self.has_left:
                    return
                self._observer.on_next(event)
        except BaseException as error:  # Other watchers must not be affected.
            self._leave(self)
            fail(self._observer, error)
        else:
            if self._has_ended and not self._waiting and not self.has_left:
                self._deliver_end()

    def _deliver_end(self) -> None:
        self._leave(self)
        try:
            self._observer.on_completed() if self._error is None else self._observer.on_error(self._error)
        except BaseException as error:
            report_unheard(error)

    def _on_idle(self, clock: abc.SchedulerBase) -> None:
        # The consumer may use another thread, but deliveries must happen on the clock's thread.
        self._waits_for_gate = False
        self.deliver_soon(clock)


class JoinedEvents:
    """The events that are waiting for a watcher, joined where possible.

    Adjacent deltas of a block are joined. Of adjacent usage updates, only the last is kept. Each agent's events are
    joined as if they were a separate chat.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._entries: list[_Entry] = []
        self._latest: dict[tuple[str, ...], list[_Entry]] = {}  # the last two entries of each chat, by path
        self._most = MOST
        self._extend(events)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, event: Event) -> None:
        latest = self._latest.setdefault(event.path if type(event) is Nested else (), [])
        text = text_of(event)
        if text is None and _is_usage(event) and latest and _is_usage(latest[-1].event):
            latest[-1].event = event
        elif text is None or not _join(latest, event, text):
            entry = _Entry(event, [] if text is None else [text])
            self._entries.append(entry)
            latest[:] = [*latest[-1:], entry]
        if len(self._entries) > self._most:
            kept = [event for event in self.take() if _is_kept(event)]
            self._most = max(MOST, 2 * len(kept))  # doubling keeps the total cost linear
            self._extend(kept)

    def take(self) -> list[Event]:
        entries, self._entries, self._latest, self._most = self._entries, [], {}, MOST
        return [join_texts(entry.event, entry.texts) if len(entry.texts) > 1 else entry.event for entry in entries]

    def _extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(event)


class _Entry(msgspec.Struct):
    event: Event
    texts: list[str]


def _join(latest: list[_Entry], event: Event, text: str) -> bool:
    # Providers may send usage updates between deltas. The result of a fold does not depend on where they are.
    for entry in reversed(latest):
        if continues(entry.event, event):
            entry.texts.append(text)
            return True
        if not _is_usage(entry.event):
            break
    return False


def _is_usage(event: Event) -> bool:
    return type(innermost(event)) is UsageUpdated


def _is_kept(event: Event) -> bool:
    # An empty state would ignore this event, because it has not seen the tool start.
    if type(innermost(event)) is ToolExecutionCompleted:
        return True
    state = StreamCollector()
    return state.apply_event(event) is not state
