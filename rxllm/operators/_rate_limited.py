"""Limit how many calls run at once, and how often one begins."""

from __future__ import annotations

import contextvars
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.operators._shared.operate import operate, shared
from rxllm.runtime import LoopScheduler, Stream, blocked_loops, call_loop, clock, fail, stopwatch
from rxllm.runtime._portal import portal
from rxllm.values import EngineError
from rxllm.values.argument_checks import check, invalid_option, is_count, is_positive

T = TypeVar("T")

_SHORTEST = 1e-6
"""A wait of fewer seconds is skipped: it is the resolution of virtual time."""

_BLOCKED = (
    "the calls that have their turn run on the event loop that a blocking call waits on, so they cannot end meanwhile; "
    "write 'await stream' or 'async for'"
)


def rate_limited(
    per_second: float | None = None, concurrent: int | None = None
) -> Callable[[Observable[T]], Stream[T]]:
    """Queue subscriptions: at most `concurrent` run at once, and they begin ``1 / per_second`` seconds apart.

    ::

        calls                        12 3
        rate_limited(concurrent=2)   --A----a--|
                                     ---B------------b--|
                                     -----------C----c--|       (begins when the first has ended)

    >>> from rxllm import Engine, Fake, generate_many
    >>> engine = Engine(Fake("Hi"), operators=[rate_limited(per_second=500, concurrent=2)])
    >>> [response.output_text for response in generate_many(engine, ["a", "b", "c"])]
    ['Hi', 'Hi', 'Hi']

    Each operator has one queue for all its subscriptions, in any thread and in their order; in an engine, for all its
    calls. A subscription that is disposed leaves the queue. In ``engine.operators`` the attempts of a retry belong to
    the call that has its turn, and do not queue again. A blocking ``run()`` or ``for`` that would wait for calls on the
    loop that it blocks raises ``EngineError("wrong_loop")``; there, ``await`` the stream.

    Raises ``ValidationError("invalid_option")`` without a limit, unless `per_second` is a number above 0, and unless
    `concurrent` is a whole number of at least 1.
    """
    if per_second is None and concurrent is None:
        raise invalid_option("per_second", "is missing: pass per_second, concurrent, or both")
    check("per_second", per_second, per_second is None or is_positive(per_second), "None or a number above 0")
    fits = concurrent is None or is_count(concurrent)
    check("concurrent", concurrent, fits, "None or a whole number of at least 1")
    queue = _Queue(1.0 / per_second if per_second else 0.0, concurrent)
    return shared(operate(lambda source, observer, scheduler: queue.enter(_Turn(source, observer, scheduler))))


class _Turn:
    """One subscription, which waits, runs, or is over."""

    def __init__(
        self, source: Observable[Any], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> None:
        self._source = source
        self._observer = observer
        self._scheduler = scheduler
        self._clock = clock(scheduler)
        self._context = contextvars.copy_context()  # the turn may begin where another call ends
        self._virtual = isinstance(scheduler, VirtualTimeScheduler)
        # Turns are compared across schedulers, so all real ones share one clock.
        self.now = stopwatch(scheduler if self._virtual else None)
        is_on_a_loop = scheduler is None or isinstance(scheduler, LoopScheduler)
        self.loop = call_loop() if is_on_a_loop else None
        self.running = SerialDisposable()

    @property
    def is_lost(self) -> bool:
        """Whether its loop is closed. A call that waited for a timer there is never notified."""
        return self.loop is not None and self.loop.is_closed()

    def alarm(self) -> abc.SchedulerBase:
        """Return the scheduler to wait with: not the call's own loop, which may end while others wait in the queue."""
        return self._clock if self._virtual else LoopScheduler(portal().loop)

    def refuse(self) -> None:
        self._observer.on_error(EngineError("wrong_loop", _BLOCKED))

    def begin(self) -> None:
        self.running.disposable = self._source.subscribe(self._observer, scheduler=self._scheduler)

    def begin_there(self) -> None:
        """Begin soon, on the subscription's own loop and in its context. Raises ``RuntimeError`` if that is closed."""
        timer = self.running.disposable = SingleAssignmentDisposable()  # before it can fire, on another thread
        timer.disposable = self._clock.schedule(self._act)

    def _act(self, scheduler: abc.SchedulerBase, state: Any = None) -> None:
        self._context.run(self._begin_later)

    def _begin_later(self) -> None:
        try:
            self.begin()
        except BaseException as error:  # the source raised, and nothing above would deliver it
            fail(self._observer, error)


class _Queue:
    """The subscriptions that wait and those that run. reactivex disposes of a subscription that ends: its turn is over.

    The first in the queue begins when fewer than `concurrent` run and its time has come; one alarm is set for it.
    """

    def __init__(self, interval: float, concurrent: int | None) -> None:
        self._interval = interval
        self._concurrent = concurrent
        self._guard = threading.Lock()
        self._waiting: OrderedDict[_Turn, None] = OrderedDict()
        self._running: set[_Turn] = set()
        self._next = -1e300  # when the next may begin
        self._set_for: float | None = None  # the time for which the alarm was last set
        self._alarm = SerialDisposable()

    def __reduce__(self) -> NoReturn:
        message = (
            "calls share a rate limit; leave it in the operators of the engine itself, where rxllm.cluster holds all "
            "workers to it, or make one in the other process"
        )
        raise TypeError(message)

    def enter(self, turn: _Turn) -> abc.DisposableBase:
        with self._guard:
            is_stuck = self._is_stuck()
            if not is_stuck:
                self._waiting[turn] = None
        if is_stuck:
            turn.refuse()
            return Disposable()
        self._advance(turn)
        return CompositeDisposable(turn.running, Disposable(lambda: self._leave(turn)))

    def _advance(self, entering: _Turn | None = None) -> None:
        """Begin all turns that may begin, and set the alarm for the next."""
        while (first := self._first()) is not None:
            turn, wait = first
            if wait:
                alarm = self._alarm.disposable = SingleAssignmentDisposable()
                alarm.disposable = turn.alarm().schedule_relative(wait, self._ring)
                return
            try:
                turn.begin() if turn is entering else turn.begin_there()
            except BaseException as error:
                self._drop(turn)
                is_lost = isinstance(error, RuntimeError)  # its loop is closed
                if turn is entering or not is_lost:
                    self._advance()
                    raise

    def _ring(self, scheduler: abc.SchedulerBase, state: Any = None) -> None:
        self._advance()

    def _first(self) -> tuple[_Turn, float] | None:
        """Return the next turn and the seconds it has to wait; with 0 it has left the queue."""
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
            # A turn that waited for its time keeps the interval, however late the alarm rang.
            self._next = (self._next if self._set_for == self._next else now) + self._interval
            self._running.add(self._waiting.popitem(last=False)[0])
            return turn, 0.0

    def _is_stuck(self) -> bool:
        """Whether the turns on loops that the subscriber blocks take all places, which they cannot leave meanwhile."""
        blocked = blocked_loops.get()
        if self._concurrent is None or not blocked:
            return False
        return sum(turn.loop in blocked for turn in (*self._running, *self._waiting)) >= self._concurrent

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
