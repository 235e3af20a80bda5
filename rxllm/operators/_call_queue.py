"""The queue of the calls that share a limit: what each may use, and when it begins."""

from __future__ import annotations

import contextvars
import inspect
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from operator import itemgetter
from typing import Any, NoReturn

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.events import ErrorEvent
from rxllm.operators._cost import NOTHING, OUTPUT_TOKENS, Estimate, ResponseCount
from rxllm.runtime import (
    EngineCall,
    Limiter,
    LoopScheduler,
    call_loop,
    clock,
    current_place,
    current_scope,
    fail,
    result_of,
    scoped,
    stopwatch,
    within,
)
from rxllm.runtime.portal import portal
from rxllm.values import AdapterError, EngineError, LLMError, Usage, estimated_tokens
from rxllm.values.argument_checks import shown

# When calls may begin


MINUTE = 60.0

SHORTEST = 1e-6
"""Times that are closer are the same, in seconds: it is the resolution of virtual time."""

Entry = list[float]
"""A time and an amount. The amount changes when it is known better."""


class RateWindow:
    """At most `limit` in any 60 seconds. An amount above the limit waits until nothing else counts."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._entries: list[Entry] = []  # by their times, of which some may be to come
        self._total = 0.0

    def earliest(self, amount: float, at: float) -> float:
        """Return when `amount` may be used: `at`, or as soon after that as there is room."""
        excess = self._total + amount - self._limit
        for time, used in self._entries:
            if time + MINUTE > at + SHORTEST:
                if excess <= 0:
                    break
                at = time + MINUTE
            excess -= used
        return at

    def add(self, amount: float, at: float, now: float) -> Entry:
        """Count `amount` as used at a time that `earliest` has returned."""
        entry = [at, amount]
        if self._limit == inf:
            return entry
        old = 0
        while old < len(self._entries) and self._entries[old][0] + MINUTE <= now + SHORTEST:
            self._total -= self._entries[old][1]
            old += 1
        del self._entries[:old]
        insort(self._entries, entry, key=itemgetter(0))
        self._total += amount
        return entry

    def correct(self, entry: Entry, amount: float, now: float) -> None:
        """Count `amount` in place of that of `entry`; what is more than it counts as used now."""
        if amount > entry[1]:
            self.add(amount - entry[1], now, now)
        elif any(entry is other for other in self._entries):
            self._total += amount - entry[1]
            entry[1] = amount


class Rates:
    """The limits of calls by time. Those who use it take turns; `now` is the time of the call in question."""

    def __init__(self, interval: float, requests: int | None, tokens: int | None) -> None:
        self._interval = interval
        self._requests = RateWindow(inf if requests is None else requests)
        self._tokens = RateWindow(inf if tokens is None else tokens)
        self._next = -inf  # the interval is over then
        self._set_for: float | None = None  # what `earliest` has returned last, if that was to come
        self._held_until = -inf

    def earliest(self, tokens: int, now: float) -> float:
        """Return when a call may begin that may use `tokens`: `now`, or later."""
        at = max(self._next, self._held_until, now)
        at = self._tokens.earliest(tokens, self._requests.earliest(1, at))
        at = now if at - now <= SHORTEST else at
        if at > now:
            self._set_for = at
        return at

    def begin(self, tokens: int, now: float) -> Entry:
        """Count a call that begins; return what counts its tokens."""
        # A call that waited for its time keeps the interval, however late the alarm rang.
        self._next = (self._next if self._set_for == self._next else now) + self._interval
        self._requests.add(1, now, now)
        return self._tokens.add(tokens, now, now)

    def settle(self, entry: Entry, tokens: int, now: float) -> None:
        """Count the tokens that the call with this entry has used in place of those that it might use."""
        self._tokens.correct(entry, tokens, now)

    def hold_back(self, seconds: float, now: float) -> None:
        """Let no call begin for so long."""
        self._held_until = max(self._held_until, now + seconds)

    def retry(self, seconds: float, now: float) -> float:
        """Count another attempt of a call, in so many seconds or later; return in how many."""
        at = self._requests.earliest(1, max(now + seconds, self._held_until))
        self._requests.add(1, at, now)
        return at - now


# A call under a limiter: what it may use, what it has used, and how long its provider asks to wait


LONGEST = 600.0
"""For how many seconds a provider holds calls back; after that one of them asks it again."""


class LimitedCall:
    """One subscription to `source`, whose tokens are counted if it is the answer to an engine's call.

    ``hold_back(seconds)`` is called when the provider asks to wait; ``retry_in(seconds)``, before another attempt in so
    many seconds, returns in how many it may begin.
    """

    def __init__(self, source: Observable[Any], call: EngineCall | None, now: Callable[[], float]) -> None:
        self._source = source
        self._now, self._came = now, now()
        self._is_engine_call = call is not None
        request = NOTHING if call is None else _estimate(call)
        self._count = ResponseCount(request)
        self.reserved = request.usage.total

    @property
    def used(self) -> int:
        return self._count.tokens

    def subscribe(
        self,
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
        hold_back: Callable[[float], object],
        retry_in: Callable[[float], float],
    ) -> abc.DisposableBase:
        def obey(error: object, seconds: float | None) -> None:
            if seconds and isinstance(error, AdapterError) and (error.retry_after or error.reason == "rate_limited"):
                hold_back(min(seconds, LONGEST))

        def on_next(item: Any) -> None:
            if type(item) is ErrorEvent:
                obey(item.error, getattr(item.error, "retry_after", None))
            self._count.see(item)
            observer.on_next(item)

        def on_error(error: Exception) -> None:
            obey(error, getattr(error, "retry_after", None))
            observer.on_error(error)

        def before_retry(error: LLMError, seconds: float) -> float:
            obey(error, seconds)
            return retry_in(seconds)

        source = self._source
        if self._is_engine_call:
            scope = current_scope.get()
            queued = scope.queued + self._now() - self._came
            source = scoped(source, replace(scope, before_retry=(*scope.before_retry, before_retry), queued=queued))
        return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)


def _estimate(call: EngineCall) -> Estimate:
    # The catalogue's longest answer, which a Budget reserves, would let few calls run at a time.
    request = call.request
    return Estimate(Usage(estimated_tokens(request), request.max_tokens or OUTPUT_TOKENS), None, request.max_tokens)


class PermittedCall:
    """A call that begins when a `Limiter` of the user's permits it."""

    def __init__(
        self,
        limiter: Limiter,
        call: LimitedCall,
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._limiter = limiter
        self._call = call
        self._observer = observer
        self._scheduler = scheduler
        self._scope = current_scope.get()
        self._running = SingleAssignmentDisposable()
        self._permit = SingleAssignmentDisposable()

    def start(self) -> abc.DisposableBase:
        permitted = result_of(self._acquire).subscribe(self._begin, self._observer.on_error, scheduler=self._scheduler)
        return CompositeDisposable(self._running, self._permit, permitted)

    async def _acquire(self) -> None:
        acquiring: object = self._limiter.acquire(self._call.reserved)
        if not inspect.isawaitable(acquiring):
            remedy = "write async def acquire(self, tokens)"
            raise TypeError(
                f"{type(self._limiter).__name__}.acquire must return an awaitable, not {shown(acquiring)}; {remedy}"
            )
        permit = await acquiring
        # Here, not in `_begin`, which a call that is disposed meanwhile does not reach.
        self._permit.disposable = Disposable(lambda: self._limiter.settle(permit, self._call.used))

    def _begin(self, _: None) -> None:
        try:
            with within(self._scope):
                self._running.disposable = self._call.subscribe(
                    self._observer, self._scheduler, self._limiter.hold_back, lambda seconds: seconds
                )
        except BaseException as error:  # the source raised, and nothing above would deliver it
            fail(self._observer, error)


# The queue of the calls that share a limit, and when each of them begins


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
        blocked = current_place.get().blocked_loops
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
