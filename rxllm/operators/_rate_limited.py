"""Not too many calls at once, nor too soon."""

from __future__ import annotations

import contextvars
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import (
    CompositeDisposable,
    Disposable,
    SerialDisposable,
    SingleAssignmentDisposable,
)
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.runtime import LoopScheduler, Stream, call_loop, clock, fail, stopwatch
from rxllm.runtime._portal import portal
from rxllm.values import ValidationError
from rxllm.values.arguments import is_positive

T = TypeVar("T")

_SHORTEST = 1e-6
"""Seconds that are not waited for: virtual time is no finer."""


def rate_limited(
    per_second: float | None = None, concurrent: int | None = None
) -> Callable[[Observable[T]], Stream[T]]:
    """Subscriptions wait their turn: `concurrent` of them at a time, begun ``1 / per_second`` seconds apart.

    ::

        calls                        12 3
        rate_limited(concurrent=2)   --A----a--|
                                     ---B------------b--|
                                     -----------C----c--|       (begins when the first has ended)

    >>> from rxllm import Engine, Fake, generate_many
    >>> engine = Engine(Fake("Hi"), operators=[rate_limited(per_second=500, concurrent=2)])
    >>> [response.output_text for response in generate_many(engine, ["a", "b", "c"])]
    ['Hi', 'Hi', 'Hi']

    One operator has one queue, which all its subscriptions share, in any thread: in an engine, all its calls, in their
    order. A subscription that is disposed leaves the queue. Only what is above it waits: in ``engine.operators`` each
    of the retry's attempts belongs to the call that has its turn.

    Raises ``ValidationError("invalid_option")`` without a limit, for a `per_second` that is no number above 0 and a
    `concurrent` below 1.
    """
    wrong: list[tuple[tuple[str, ...], str]] = []
    if per_second is None and concurrent is None:
        wrong.append((("per_second",), "give this, or concurrent, or both"))
    if per_second is not None and not is_positive(per_second):
        wrong.append((("per_second",), f"must be None or a number above 0, not {per_second!r}"))
    if concurrent is not None and (type(concurrent) is not int or concurrent < 1):
        wrong.append((("concurrent",), f"must be None or at least 1, not {concurrent!r}"))
    if wrong:
        raise ValidationError("invalid_option", errors=wrong)
    line = _Line(1.0 / per_second if per_second else 0.0, concurrent)

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return line.enter(_Turn(source, observer, scheduler))

        return Stream(subscribe)

    return operator


class _Turn:
    """One subscription that waits, runs, or is over."""

    def __init__(
        self, source: Observable[Any], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> None:
        self._source = source
        self._observer = observer
        self._scheduler = scheduler
        self._clock = clock(scheduler)
        self._context = contextvars.copy_context()  # the turn may be given by another call's end
        self._virtual = isinstance(scheduler, VirtualTimeScheduler)
        # All real clocks are one here, whatever they call the time: their turns are compared.
        self.now = stopwatch(scheduler if self._virtual else None)
        is_on_a_loop = scheduler is None or isinstance(scheduler, LoopScheduler)
        self._loop = call_loop() if is_on_a_loop else None
        self.running = SerialDisposable()

    @property
    def is_lost(self) -> bool:
        """Whether its loop has ended under it. A call that waited for a timer there is told nothing."""
        return self._loop is not None and self._loop.is_closed()

    def alarm(self) -> abc.SchedulerBase:
        """The clock to wait with. It is not the loop of the call, which may end while others wait behind it."""
        return self._clock if self._virtual else LoopScheduler(portal().loop)

    def begin(self) -> None:
        self.running.disposable = self._source.subscribe(self._observer, scheduler=self._scheduler)

    def begin_there(self) -> None:
        """Begin soon, on the subscription's own loop and in its context. Raises ``RuntimeError`` if that has ended."""
        timer = self.running.disposable = SingleAssignmentDisposable()  # before it can fire, on another thread
        timer.disposable = self._clock.schedule(self._act)

    def _act(self, scheduler: abc.SchedulerBase, state: Any = None) -> None:
        self._context.run(self._begin_later)

    def _begin_later(self) -> None:
        try:
            self.begin()
        except BaseException as error:  # the source's own; nobody above would deliver it
            fail(self._observer, error)


class _Line:
    """Who waits, and who may go. A subscription that has ended is disposed of by reactivex: that ends its turn.

    The first that waits goes when fewer than so many run and its time has come; one alarm is set for that.
    """

    def __init__(self, interval: float, concurrent: int | None) -> None:
        self._interval = interval
        self._concurrent = concurrent
        self._guard = threading.Lock()
        self._waiting: OrderedDict[_Turn, None] = OrderedDict()
        self._running: set[_Turn] = set()
        self._next = -1e300  # when the next may begin
        self._set_for: float | None = None  # the time that the alarm was last set for
        self._alarm = SerialDisposable()

    def enter(self, turn: _Turn) -> abc.DisposableBase:
        with self._guard:
            self._waiting[turn] = None
        self._advance(turn)
        return CompositeDisposable(turn.running, Disposable(lambda: self._leave(turn)))

    def _advance(self, entering: _Turn | None = None) -> None:
        """Let all go who may, and set the alarm for the next."""
        while (found := self._first()) is not None:
            turn, wait = found
            if wait:
                alarm = self._alarm.disposable = SingleAssignmentDisposable()
                alarm.disposable = turn.alarm().schedule_relative(wait, self._ring)
                return
            try:
                turn.begin() if turn is entering else turn.begin_there()
            except BaseException as error:
                self._drop(turn)
                if turn is entering or not isinstance(error, RuntimeError):  # else its loop is gone, and it with it
                    self._advance()
                    raise

    def _ring(self, scheduler: abc.SchedulerBase, state: Any = None) -> None:
        self._advance()

    def _first(self) -> tuple[_Turn, float] | None:
        """The next, and how long it has to wait; if that is 0, it has left the queue."""
        with self._guard:
            while self._waiting and next(iter(self._waiting)).is_lost:
                self._waiting.popitem(last=False)
            if not self._waiting or self._is_full():
                self._alarm.disposable = None
                return None
            turn = next(iter(self._waiting))
            now = turn.now()
            if self._next - now > _SHORTEST:
                self._set_for = self._next
                return turn, self._next - now
            # One that has waited for its time keeps to the grid, however late the alarm rang.
            self._next = (self._next if self._set_for == self._next else now) + self._interval
            self._running.add(self._waiting.popitem(last=False)[0])
            return turn, 0.0

    def _is_full(self) -> bool:
        if self._concurrent is None or len(self._running) < self._concurrent:
            return False
        self._running = {turn for turn in self._running if not turn.is_lost}
        return len(self._running) >= self._concurrent

    def _leave(self, turn: _Turn) -> None:
        self._drop(turn)
        self._advance()

    def _drop(self, turn: _Turn) -> None:
        with self._guard:
            self._running.discard(turn)
            self._waiting.pop(turn, None)
