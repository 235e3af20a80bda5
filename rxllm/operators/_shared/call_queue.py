"""The queue of the calls that share a limit, and when each of them begins."""

from __future__ import annotations

import contextvars
import threading
from collections import OrderedDict
from typing import Any, NoReturn

from reactivex import abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.operators._shared.limited_call import LimitedCall
from rxllm.operators._shared.rates import Entry, Rates
from rxllm.runtime import LoopScheduler, blocked_loops, call_loop, clock, fail, stopwatch
from rxllm.runtime.portal import portal
from rxllm.values import EngineError

_BLOCKED = (
    "the calls that have their turn run on the event loop that a blocking call waits on, so they cannot end meanwhile; "
    "write 'await stream' or 'async for'"
)


class Turn:
    """One subscription, which waits, runs, or is over."""

    def __init__(
        self,
        queue: CallQueue,
        call: LimitedCall,
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self.call = call
        self._queue = queue
        self.entry: Entry | None = None  # its tokens, once it has begun
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

    def hold_back(self, seconds: float) -> None:
        self._queue.hold_back(seconds, self.now())

    def retry_in(self, seconds: float) -> float:
        return self._queue.retry_in(seconds, self.now())

    def refuse(self) -> None:
        self._observer.on_error(EngineError("wrong_loop", _BLOCKED))

    def begin(self) -> None:
        self.running.disposable = self.call.subscribe(self._observer, self._scheduler, self.hold_back, self.retry_in)

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


class CallQueue:
    """The subscriptions that wait and those that run. reactivex disposes of a subscription that ends: its turn is over.

    The first in the queue begins when fewer than `concurrent` run and its time has come; one alarm is set for it.
    """

    def __init__(self, rates: Rates, concurrent: int | None) -> None:
        self._rates = rates
        self._concurrent = concurrent
        self._guard = threading.Lock()
        self._waiting: OrderedDict[Turn, None] = OrderedDict()
        self._running: set[Turn] = set()
        self._alarm = SerialDisposable()

    def __reduce__(self) -> NoReturn:
        message = (
            "calls share a rate limit; leave it in the operators of the engine itself, where rxllm.cluster holds all "
            "workers to it, or make one in the other process"
        )
        raise TypeError(message)

    def enter(self, turn: Turn) -> abc.DisposableBase:
        with self._guard:
            is_stuck = self._is_stuck()
            if not is_stuck:
                self._waiting[turn] = None
        if is_stuck:
            turn.refuse()
            return Disposable()
        self._advance(turn)
        return CompositeDisposable(turn.running, Disposable(lambda: self._leave(turn)))

    def hold_back(self, seconds: float, now: float) -> None:
        with self._guard:
            self._rates.hold_back(seconds, now)

    def retry_in(self, seconds: float, now: float) -> float:
        with self._guard:
            return self._rates.retry(seconds, now)

    def _advance(self, entering: Turn | None = None) -> None:
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

    def _first(self) -> tuple[Turn, float] | None:
        """Return the next turn and the seconds it has to wait; with 0 it has left the queue."""
        with self._guard:
            while self._waiting and next(iter(self._waiting)).is_lost:
                self._waiting.popitem(last=False)
            if not self._waiting or self._is_full():
                self._alarm.disposable = None
                return None
            turn = next(iter(self._waiting))
            now = turn.now()
            at = self._rates.earliest(turn.call.reserved, now)
            if at > now:
                return turn, at - now
            turn.entry = self._rates.begin(turn.call.reserved, now)
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

    def _leave(self, turn: Turn) -> None:
        self._drop(turn)
        self._advance()

    def _drop(self, turn: Turn) -> None:
        with self._guard:
            if turn.entry is not None:
                self._rates.settle(turn.entry, turn.call.used, turn.now())
                turn.entry = None
            self._running.discard(turn)
            self._waiting.pop(turn, None)
