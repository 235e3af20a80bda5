"""Let any number of watchers watch one call, from whenever they join."""

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
from rxllm.operators._slow_consumers import continues, joined, text_of
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
    unpaced,
)
from rxllm.values import EngineError, StreamError
from rxllm.values.argument_checks import check_seconds

# One watcher of a shared call. What it is not ready for waits for it, joined; the call does not wait


MOST = 1024
"""When so many events wait for a watcher, it misses what the fold does not keep."""


class Backlog:
    """The events that wait for a watcher: adjacent deltas of a block are one, and of usages the last is left.

    Adjacent are those between which nothing else of the same chat waits: agents that run at once do not part them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._entries: list[_Entry] = []
        self._latest: dict[tuple[str, ...], list[_Entry]] = {}  # of each chat, by its path: at most two
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
            self._most = max(MOST, 2 * len(kept))  # so that the cost stays linear
            self._extend(kept)

    def take(self) -> list[Event]:
        """Return what waits; then nothing waits."""
        entries, self._entries, self._latest, self._most = self._entries, [], {}, MOST
        return [joined(entry.event, entry.texts) if len(entry.texts) > 1 else entry.event for entry in entries]

    def _extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(event)


class _Entry(msgspec.Struct):
    event: Event
    texts: list[str]


def _join(latest: list[_Entry], event: Event, text: str) -> bool:
    # Some providers send a usage with each delta: in the fold, the two pass each other.
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
    if type(innermost(event)) is ToolExecutionCompleted:  # of an execution that the fold keeps
        return True
    state = StreamCollector()
    return state.apply_event(event) is not state


class Watcher:
    """One subscription to a shared call.

    A watcher is ready unless its ``on_next`` runs, on some thread, or its iterator has items left to take. It is called
    in the context of its own subscription: with its own gate, scope and listener.
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
        self._lock = lock  # of the call: it guards what waits, and no subscriber is called while it is held
        self._leave = leave
        self._waiting = Backlog(events)
        self._has_ended = False
        self._error: Exception | None = None
        self._context = call_context()
        self._gate = current_gate()
        self._wake = SerialDisposable()
        self._is_delivering = False
        self._waits_for_gate = False

    def add(self, event: Event) -> None:
        """Let `event` wait, under the lock; `deliver` follows."""
        self._waiting.add(event)

    def finish(self, error: Exception | None) -> None:
        """Let the end wait, under the lock; `deliver` follows."""
        self._has_ended, self._error = True, error

    def deliver(self, clock: abc.SchedulerBase) -> None:
        """Deliver what waits, unless that is being done already or the watcher is not ready: then it is done later."""
        while (events := self._begin(clock)) is not None:
            self._context.run(self._deliver, events)
            with self._lock:  # another thread may enter the context now, and not before
                self._is_delivering = False

    def deliver_soon(self, clock: abc.SchedulerBase) -> None:
        """Deliver what waits on the clock's own thread."""

        def deliver(scheduler: abc.SchedulerBase, state: Any) -> None:
            self.deliver(clock)

        if not self.has_left:
            self._wake.disposable = clock.schedule(deliver)

    def leave(self) -> None:
        """Deliver nothing more."""
        self.has_left = True
        self._wake.dispose()

    def _begin(self, clock: abc.SchedulerBase) -> list[Event] | None:
        """Return what waits: nothing if only the end does, and None if there is nothing to do now."""
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
        except BaseException as error:  # the subscriber's own: it harms no other
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
        # The reader that takes an item may be on another thread; it should not do this work.
        self._waits_for_gate = False
        self.deliver_soon(clock)


# Let any number of watchers watch one call


def share_folded(grace: float | None) -> Callable[[Observable[Event]], Stream[Event]]:
    """Share one call among any number of watchers; a late one gets what has been said so far, then live events.

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

    The first watcher starts the call; ``.pipe(share_folded(...))`` once, then subscribe as often as you like. What a
    late watcher gets first is ``StreamCollector.to_events()`` of the call, so every fold gives the same result wherever
    it joined; what the fold does not keep, such as the progress of tools, is missing. After the end a watcher gets all
    of it at once, and the end or the error.

    Leaving is not stopping. `grace` seconds after the last watcher has left, unless another comes, the call ends; with
    0 it ends at once, with None never by itself. To stop it for all, end the source:
    ``stream.take_until(stop).pipe(share_folded(None))``. A call that has ended does not begin again: a watcher that
    comes after the grace gets what had come until then, and a ``StreamError("cancelled")``.

    The call runs on the loop of its first watcher, and calls all watchers there, late ones too, whatever thread they
    subscribe on. No watcher makes the call or another watcher wait, as long as its functions do not block that loop:
    for an iterator (``for``, ``async for``) that is behind, adjacent deltas are joined, and when more than a thousand
    events wait nevertheless, it misses what a late watcher misses. A watcher that raises gets its exception in its own
    ``on_error``, and harms no other. A blocking ``run()``, ``for`` or ``show`` on that loop's own thread would stop the
    call that it waits for, and raises ``EngineError("wrong_loop")`` instead; in a notebook, ``await`` the stream.

    Raises ``ValidationError("invalid_option")`` unless `grace` is a number of seconds or None.
    """
    seconds = None if grace is None else check_seconds("grace", grace)

    def operator(source: Observable[Event]) -> Stream[Event]:
        return Stream(_Shared(source, seconds).watch)

    return operator


_BLOCKED = (
    "the shared call runs on the event loop that a blocking call waits on, so it cannot go on meanwhile; "
    "write 'await stream' or 'async for', or rxllm.show(stream, block=False)"
)


class _Shared:
    """One call: its state, and who watches it. Nobody's code is called while the lock is held."""

    def __init__(self, source: Observable[Event], grace: float | None) -> None:
        self._source = source
        self._grace = grace
        self._lock = RLock()
        self._state = StreamCollector()
        self._watchers: list[Watcher] = []
        self._clock: abc.SchedulerBase | None = None  # from the first watcher on
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscription = SingleAssignmentDisposable()
        self._timer = SerialDisposable()  # while nobody watches
        self._has_failed = False  # its last event is an ErrorEvent: a watcher may leave there, and the call is over
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
            self._end(StreamError("cancelled", "the event loop of the shared call is closed"))
        else:
            watcher.deliver_soon(self._clock)
        return Disposable(lambda: self._leave(watcher))

    def _start(self, scheduler: abc.SchedulerBase | None) -> None:
        # Neither the first watcher's pace nor its listener is that of the call.
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
        except Exception as error:  # a raw usage with unknown keys
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
                self._timer.disposable = self._clock.schedule_relative(self._grace, self._on_grace)
                return
        self._stop()

    def _on_grace(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            if self._watchers or self._has_ended:
                return
            remedy = "subscribe to a new stream, or pass a longer grace"
            after = f"nobody had watched the shared call for {self._grace:g} s, so it was stopped: {remedy}"
            self._end(None if self._has_failed else StreamError("cancelled", after))
        self._subscription.dispose()
