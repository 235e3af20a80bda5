"""Let any number of watchers watch one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import RLock
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import StreamCollector
from rxllm.events import ErrorEvent, Event
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.watcher import Watcher
from rxllm.runtime import LoopScheduler, Stream, blocked_loops, chosen_loop, clock, read_by, unpaced
from rxllm.values import EngineError, StreamError
from rxllm.values.argument_checks import check_seconds


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
            waits_for_itself = not self._has_ended and self._loop in blocked_loops.get()
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
