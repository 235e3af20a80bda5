"""Run an operator in virtual time, and record its behaviour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from reactivex import Observable, abc, typing
from reactivex.disposable import Disposable, SerialDisposable
from reactivex.testing import TestScheduler

from rxllm.testing.marbles import Note, Operator

Make = Callable[[], Operator]

EVERY = 2
"""The number of ticks from one item to the next. A run can be disposed at the tick in between."""

SILENCE = 600
"""The number of extra ticks that a silent source waits before its last item."""

LIMIT = 10_000
"""The number of ticks that a run lasts."""


class Clock(TestScheduler):
    """A virtual clock that counts its pending timers."""

    def __init__(self) -> None:
        super().__init__()
        self._timers: dict[int, abc.DisposableBase] = {}
        self._count = 0

    @property
    def tick(self) -> int:
        return int(self.to_seconds(self.now))

    @property
    def waiting(self) -> int:
        """The number of scheduled actions that have not run yet."""
        return sum(not getattr(timer, "is_disposed", False) for timer in self._timers.values())

    def schedule_absolute(
        self, duetime: typing.AbsoluteTime, action: typing.ScheduledAction[Any], state: Any = None
    ) -> abc.DisposableBase:
        self._count += 1
        number = self._count

        def run(scheduler: abc.SchedulerBase, state: Any = None) -> abc.DisposableBase | None:
            self._timers.pop(number, None)
            return action(scheduler, state)

        timer = self._timers[number] = super().schedule_absolute(duetime, run, state)
        return timer

    def at(self, tick: int, do: Callable[[], object]) -> None:
        """Call ``do()`` at `tick`. The call does not count as a pending timer."""

        def run(scheduler: abc.SchedulerBase, state: Any = None) -> None:
            do()

        super().schedule_absolute(float(tick), run)


class Source(Observable[Any]):
    """A cold source that emits an item every `EVERY` ticks.

    It waits another `silence` ticks before the last item. After that item, it completes, or fails with `error`. Without
    a clock, it emits everything at once. A subscriber's exception ends the source and is passed to ``on_error``. `uses`
    lists the ticks at which each subscription began and ended. `unheard` lists the exceptions that ``on_completed`` and
    ``on_error`` raised.
    """

    def __init__(
        self, items: Iterable[Any], error: Exception | None = None, clock: Clock | None = None, silence: int = 0
    ) -> None:
        super().__init__()
        self.uses: list[tuple[int, int | None]] = []
        self.schedulers: list[abc.SchedulerBase | None] = []
        self.unheard: list[Exception] = []
        self._items = list(items)
        self._error = error
        self._clock = clock
        self._silence = silence

    def released(self, tick: int) -> bool:
        return all(until is not None and until <= tick for _, until in self.uses)

    def _subscribe_core(
        self, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        number = len(self.uses)
        start = self._tick()
        self.uses.append((start, None))
        self.schedulers.append(scheduler)

        def deliver(index: int) -> None:
            if self.uses[number][1] is None:
                self._deliver(observer, index)

        def release() -> None:
            if self.uses[number][1] is None:
                self.uses[number] = (start, self._tick())

        for index in range(len(self._items) + 1):
            if self._clock is None:
                deliver(index)
            else:
                silence = self._silence if index >= len(self._items) - 1 else 0
                self._clock.at(start + (index + 1) * EVERY + silence, lambda index=index: deliver(index))
        return Disposable(release)

    def _tick(self) -> int:
        return 0 if self._clock is None else self._clock.tick

    def _deliver(self, observer: abc.ObserverBase[Any], index: int) -> None:
        try:
            if index < len(self._items):
                observer.on_next(self._items[index])
                return
        except Exception as error:
            self._end(observer, error)
        else:
            self._end(observer, self._error)

    def _end(self, observer: abc.ObserverBase[Any], error: Exception | None) -> None:
        try:
            observer.on_completed() if error is None else observer.on_error(error)
        except Exception as unheard:
            self.unheard.append(unheard)


class OperatorRun:
    """One subscription to `stream`.

    `notes` lists the notifications, with their times in ticks since the start. `late` lists the notifications that
    followed disposal. `left_over` describes the timers and threads that remained at the end. `escaped` is an error that
    did not reach ``on_error``. ``on_item(run, number)`` is called for each item.
    """

    def __init__(
        self, stream: Observable[Any], clock: Clock, on_item: Callable[[OperatorRun, int], None] | None = None
    ) -> None:
        self.notes: list[Note] = []
        self.left_over: str | None = None
        self.escaped: Exception | None = None
        self._before_dispose: int | None = None  # the number of notifications that arrived before disposal
        self._stream = stream
        self._clock = clock
        self._on_item = on_item
        self._subscription = SerialDisposable()
        self._threads: set[threading.Thread] = set()
        self._start = 0

    @property
    def values(self) -> list[Any]:
        return [value for _, kind, value in self.notes if kind == "next"]

    @property
    def ends(self) -> list[Note]:
        return [note for note in self.notes if note[1] != "next"]

    @property
    def late(self) -> list[Note]:
        return [] if self._before_dispose is None else self.notes[self._before_dispose :]

    def begin(self) -> Self:
        """Subscribe to the stream at the current tick, and record what it emits."""
        self._start = self._clock.tick
        self._threads = set(threading.enumerate())
        self._subscription.disposable = self._stream.subscribe(
            self._next,
            lambda error: self._record_end("error", error),
            lambda: self._record_end("end", None),
            scheduler=self._clock,
        )
        return self

    def run(self, dispose_at: int | None = None) -> Self:
        """Subscribe, and let `LIMIT` ticks pass. If `dispose_at` is given, unsubscribe after that many ticks."""
        try:
            self.begin()
            if dispose_at is not None:
                self._clock.at(self._start + dispose_at, self.dispose)
            self._pass_time()
        except Exception as error:
            self.escaped = error
        return self

    def _pass_time(self) -> None:
        try:
            self._clock.advance_to(float(self._start + LIMIT))
        except Exception as error:  # raised by a timer; such an error would end a Stream too
            if self.ends or self._before_dispose is not None:
                raise
            self._clock.stop()
            self._subscription.dispose()
            self._record_end("error", error)
            self._clock.advance_to(float(self._start + LIMIT))

    def dispose(self) -> None:
        self._before_dispose = len(self.notes)
        self._subscription.dispose()
        self._record_left_over()

    def _next(self, item: Any) -> None:
        self.notes.append((self._clock.tick - self._start, "next", item))
        if self._on_item is not None:
            self._on_item(self, len(self.values) - 1)

    def _record_end(self, kind: str, error: Exception | None) -> None:
        self.notes.append((self._clock.tick - self._start, kind, error))
        # The callback runs after every subscriber has been notified of the end.
        self._clock.at(self._clock.tick, self._record_left_over)

    def _record_left_over(self) -> None:
        threads = sorted(thread.name for thread in set(threading.enumerate()) - self._threads)
        if self.left_over is None and (threads or self._clock.waiting):
            running = f", and the threads {threads} were running" if threads else ""
            self.left_over = f"{self._clock.waiting} timers were pending{running}"


def run_operator(
    make: Make,
    items: Sequence[Any],
    error: Exception | None = None,
    *,
    dispose_at: int | None = None,
    on_item: Callable[[OperatorRun, int], None] | None = None,
    at_once: bool = False,
    silence: int = 0,
) -> tuple[OperatorRun, Source]:
    """Run the operator on a new source of `items`. Return the run and the source."""
    clock = Clock()
    source = Source(items, error, None if at_once else clock, silence)
    return OperatorRun(source.pipe(make()), clock, on_item).run(dispose_at), source
