"""Limit the number of concurrent calls, and the rate of calls and tokens.

* A call waits in a queue until a slot is free and the rates allow it to start.
* Each call runs on its own event loop, in its own context.
* The queue has one timer, the alarm, which wakes its first call.
* When a call ends, its actual usage replaces its reservation.
* If a call's loop closes, the call is lost. It then leaves the queue or frees its slot.
* If the user passes a `Limiter`, it replaces the queue.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, NoReturn, TypeVar, overload

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.events import ErrorEvent
from rxllm.operators._cost import NOTHING, OUTPUT_TOKENS, Estimate, ResponseCount
from rxllm.operators._event_operators import operate, shared
from rxllm.runtime import (
    EngineCall,
    Limiter,
    LoopScheduler,
    Stream,
    call_loop,
    clock,
    current_place,
    current_scope,
    engine_call,
    fail,
    result_of,
    schedule_in,
    scoped,
    stopwatch,
    within,
)
from rxllm.runtime.portal import portal
from rxllm.values import AdapterError, EngineError, LLMError, Usage, estimated_tokens
from rxllm.values.argument_checks import check, explains_call, invalid_option, is_count, is_positive, shown

T = TypeVar("T")

MAX_HOLD = 600.0
"""The maximum number of seconds by which a failed call can delay other calls."""

MINUTE = 60.0

RESOLUTION = 1e-6
"""Two virtual times count as equal if they are no more than this many seconds apart."""


@overload
def rate_limited(limiter: Limiter, /) -> Callable[[Observable[T]], Stream[T]]: ...
@overload
def rate_limited(
    per_second: float | None = None,
    concurrent: int | None = None,
    *,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> Callable[[Observable[T]], Stream[T]]: ...
@explains_call("ops.rate_limited(requests_per_minute=500, concurrent=8)")
def rate_limited(
    per_second: float | Limiter | None = None,
    concurrent: int | None = None,
    *,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> Callable[[Observable[T]], Stream[T]]:
    """Queue subscriptions to stay within rate limits.

    ::

        calls                        12 3
        rate_limited(concurrent=2)   --A----a--|
                                     ---B------------b--|
                                     -----------C----c--|       (starts when the first has ended)

    >>> from rxllm import Engine, Fake, generate_many
    >>> limit = rate_limited(requests_per_minute=500, tokens_per_minute=200_000, concurrent=2)
    >>> [response.output_text for response in generate_many(Engine(Fake("Hi"), operators=[limit]), ["a", "b", "c"])]
    ['Hi', 'Hi', 'Hi']

    At most `concurrent` subscriptions run at the same time. They start at least ``1 / per_second`` seconds apart.
    `requests_per_minute` and `tokens_per_minute` limit the total in any 60-second window. A call within the limits
    starts immediately.

    A call reserves tokens for its messages and tools, as estimated by ``rxllm.count_tokens``. It also reserves its
    `max_tokens`, or 1,000 tokens if that is not set. Reported usage replaces the reservation when the call ends. Tokens
    beyond the reservation are recorded as used when the call ends. A call that reserves more than the whole limit waits
    until no other call has used tokens in the past 60 seconds. `tokens_per_minute` works only in
    ``Engine(operators=[...])``. In a pipe, it raises ``EngineError``.

    If a call fails with a Retry-After, all calls wait that long, up to 600 seconds. In an engine, retried failures have
    the same effect. After a ``rate_limited`` failure without a Retry-After, all calls wait for the retry policy's
    delay. Each attempt counts towards `requests_per_minute`.

    A `Limiter` passed as `per_second` decides when each call starts. Several machines can share a `Limiter`. Like
    `tokens_per_minute`, it works only in an engine's operators.

    Each operator has one first-in, first-out queue for all threads. All calls of an engine share it. A retry keeps its
    call's slot. A disposed subscription leaves the queue. A blocking ``run()`` or ``for`` raises
    ``EngineError("wrong_loop")`` if it would block the calls it waits for. Use ``await stream`` instead.

    Raises ``ValidationError("invalid_option")`` if no limit is given. `per_second` must be a positive number or a
    `Limiter`, and the other limits must be integers >= 1.
    """
    counts = {
        "concurrent": concurrent,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    for name, count in counts.items():
        check(name, count, count is None or is_count(count), "None or an integer >= 1")
    expected = "None, a positive number, or a Limiter (an object with acquire, settle and hold_back)"
    if isinstance(per_second, Limiter):
        check("per_second", per_second, not isinstance(per_second, type), expected)
        if any(count is not None for count in counts.values()):
            raise invalid_option("concurrent", "must be omitted, like all other limits, because a Limiter has its own")
        return _operator(partial(_PermittedCall, per_second), needs_call=True)
    check("per_second", per_second, per_second is None or is_positive(per_second), expected)
    if per_second is None and all(count is None for count in counts.values()):
        raise invalid_option("per_second", f"is missing: pass at least one of per_second, {', '.join(counts)}")
    queue = _Queue(1.0 / per_second if per_second else 0.0, concurrent, requests_per_minute, tokens_per_minute)
    return _operator(partial(_QueuedCall, queue), needs_call=tokens_per_minute is not None)


_IN_AN_ENGINE = (
    "rate_limited with tokens_per_minute or a Limiter cannot be used in a pipe, because it needs the request; write "
    "Engine(..., operators=[ops.rate_limited(...)])"
)


Operator = Callable[[Observable[Any]], Stream[Any]]


def _operator(make: Callable[..., _Call], needs_call: bool) -> Operator:
    def operator(source: Observable[Any]) -> Stream[Any]:
        call = engine_call()
        if call is None and needs_call:
            raise EngineError("unknown_option", _IN_AN_ENGINE)
        limit: Operator = operate(lambda source, observer, scheduler: make(call, source, observer, scheduler).start())
        return limit(source)

    return shared(operator)


class _Call:
    """One subscription to a rate-limited source. Tokens are counted only if an engine made the call."""

    def __init__(
        self,
        call: EngineCall | None,
        source: Observable[Any],
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._source = source
        self.observer = observer
        self.scheduler = scheduler
        self._scope = current_scope.get()
        self._is_engine_call = call is not None
        estimate = NOTHING
        if call is not None:
            # Reserving the longest possible answer would allow too few calls.
            usage = Usage(estimated_tokens(call.request), call.request.max_tokens or OUTPUT_TOKENS)
            estimate = Estimate(usage, None, call.request.max_tokens)
        self.reserved = estimate.usage.total
        self._count = ResponseCount(estimate)
        self._time = stopwatch(scheduler)
        self._entered = self._time()
        self.running = SerialDisposable()

    @property
    def used(self) -> int:
        return self._count.tokens

    def start(self) -> abc.DisposableBase:
        raise NotImplementedError

    def hold_back(self, seconds: float) -> None:
        raise NotImplementedError

    def retry_in(self, seconds: float) -> float:
        """Return how many seconds to wait before a retry."""
        raise NotImplementedError

    def begin(self) -> None:
        source, scope = self._source, self._scope
        if self._is_engine_call:
            queued = scope.queued + self._time() - self._entered
            source = scoped(
                source, replace(scope, before_retry=(*scope.before_retry, self._before_retry), queued=queued)
            )
        with within(scope):
            self.running.disposable = source.subscribe(
                self._on_next, self._on_error, self.observer.on_completed, scheduler=self.scheduler
            )

    def begin_later(self) -> None:
        try:
            self.begin()
        except BaseException as error:
            fail(self.observer, error)

    def _on_next(self, item: Any) -> None:
        if type(item) is ErrorEvent:
            self._apply_retry_after(item.error, getattr(item.error, "retry_after", None))
        self._count.see(item)
        self.observer.on_next(item)

    def _on_error(self, error: Exception) -> None:
        self._apply_retry_after(error, getattr(error, "retry_after", None))
        self.observer.on_error(error)

    def _before_retry(self, error: LLMError, seconds: float) -> float:
        self._apply_retry_after(error, seconds)
        return self.retry_in(seconds)

    def _apply_retry_after(self, error: object, seconds: float | None) -> None:
        if seconds and isinstance(error, AdapterError) and (error.retry_after or error.reason == "rate_limited"):
            self.hold_back(min(seconds, MAX_HOLD))


class _PermittedCall(_Call):
    def __init__(self, limiter: Limiter, *subscription: Any) -> None:
        super().__init__(*subscription)
        self._limiter = limiter
        self._permit = SingleAssignmentDisposable()

    def start(self) -> abc.DisposableBase:
        permitted = result_of(self._acquire).subscribe(
            lambda _: self.begin_later(), self.observer.on_error, scheduler=self.scheduler
        )
        return CompositeDisposable(self.running, self._permit, permitted)

    async def _acquire(self) -> None:
        acquiring: object = self._limiter.acquire(self.reserved)
        if not inspect.isawaitable(acquiring):
            name, remedy = type(self._limiter).__name__, "write async def acquire(self, tokens)"
            raise TypeError(f"{name}.acquire must return an awaitable, not {shown(acquiring)}; {remedy}")
        permit = await acquiring
        # If the call has been disposed, this releases the permit immediately.
        self._permit.disposable = Disposable(lambda: self._limiter.settle(permit, self.used))

    def hold_back(self, seconds: float) -> None:
        self._limiter.hold_back(seconds)

    def retry_in(self, seconds: float) -> float:
        return seconds


class _QueuedCall(_Call):
    def __init__(self, queue: _Queue, *subscription: Any) -> None:
        super().__init__(*subscription)
        self._queue = queue
        self.entry: Entry | None = None  # the tokens that the call has reserved, or None before it begins
        self._clock = clock(self.scheduler)
        self._context = contextvars.copy_context()  # needed because the end of another call may start this one
        self._is_virtual = isinstance(self.scheduler, VirtualTimeScheduler)
        # Call times are compared with one another, so all calls must use the same clock.
        self.now = stopwatch(self.scheduler if self._is_virtual else None)
        is_on_a_loop = self.scheduler is None or isinstance(self.scheduler, LoopScheduler)
        self.loop = call_loop() if is_on_a_loop else None

    @property
    def is_lost(self) -> bool:
        return self.loop is not None and self.loop.is_closed()

    def start(self) -> abc.DisposableBase:
        if not self._queue.enter(self):
            self.observer.on_error(EngineError("wrong_loop", _BLOCKED))
            return Disposable()
        self._queue.advance(self)
        return CompositeDisposable(self.running, Disposable(lambda: self._queue.leave(self)))

    def begin_on_loop(self) -> None:
        """Schedule the call on its own loop. Raises ``RuntimeError`` if the loop is closed."""
        schedule_in(self.running, self._clock, lambda scheduler, state: self._context.run(self.begin_later))

    def alarm(self) -> abc.SchedulerBase:
        """Return a scheduler for the queue's alarm.

        It does not use the call's own loop, because that loop may close before the alarm goes off.
        """
        return self._clock if self._is_virtual else LoopScheduler(portal().loop)

    def hold_back(self, seconds: float) -> None:
        self._queue.hold_back(seconds, self.now())

    def retry_in(self, seconds: float) -> float:
        return self._queue.retry_in(seconds, self.now())


_BLOCKED = "this blocking call would block the calls that it is waiting for; write 'await stream' or 'async for'"


class _Queue:
    def __init__(self, interval: float, concurrent: int | None, requests: int | None, tokens: int | None) -> None:
        self._interval = interval
        self._concurrent = concurrent
        self._requests = _RateWindow(inf if requests is None else requests)
        self._tokens = _RateWindow(inf if tokens is None else tokens)
        self._next = -inf  # The end of the current interval.
        self._expected: float | None = None  # The due time of the last call that waited.
        self._held_until = -inf
        self._guard = threading.Lock()
        self._waiting: OrderedDict[_QueuedCall, None] = OrderedDict()
        self._running: set[_QueuedCall] = set()
        self._alarm = SerialDisposable()

    def __reduce__(self) -> NoReturn:
        message = (
            "a rate limit cannot be pickled; to use it with rxllm.cluster, put it into the engine's operators; "
            "otherwise, create it in the process that receives the pickle"
        )
        raise TypeError(message)

    def enter(self, call: _QueuedCall) -> bool:
        """Append `call` to the queue and return True, or return False if the call could never start.

        A call can never start if its subscriber blocks the event loops of earlier calls, whether running or
        waiting, and there are enough of these calls to fill all slots.
        """
        blocked = current_place.get().blocked_loops
        with self._guard:
            if self._concurrent is not None and blocked:
                stuck = sum(other.loop in blocked for other in (*self._running, *self._waiting))
                if stuck >= self._concurrent:
                    return False
            self._waiting[call] = None
        return True

    def advance(self, entering: _QueuedCall | None = None) -> None:
        while (first := self._take_first()) is not None:
            call, wait = first
            if wait:
                alarm = self._alarm.disposable = SingleAssignmentDisposable()
                alarm.disposable = call.alarm().schedule_relative(wait, lambda scheduler, state: self.advance())
                return
            try:
                call.begin() if call is entering else call.begin_on_loop()
            except BaseException as error:
                self._drop(call)
                is_lost = isinstance(error, RuntimeError)  # the call's loop has been closed
                if call is entering or not is_lost:
                    self.advance()
                    raise

    def leave(self, call: _QueuedCall) -> None:
        self._drop(call)
        self.advance()

    def hold_back(self, seconds: float, now: float) -> None:
        with self._guard:
            self._held_until = max(self._held_until, now + seconds)

    def retry_in(self, seconds: float, now: float) -> float:
        """Count a retry, and return how many seconds to wait before it."""
        with self._guard:
            at = self._requests.earliest(1, max(now + seconds, self._held_until))
            self._requests.add(1, at, now)
            return at - now

    def _take_first(self) -> tuple[_QueuedCall, float] | None:
        """Return the first call in the queue and how many seconds it still has to wait.

        A call that can start now is removed from the queue.
        """
        with self._guard:
            while self._waiting and next(iter(self._waiting)).is_lost:
                self._waiting.popitem(last=False)
            if not self._waiting or self._is_full():
                self._alarm.disposable = None
                return None
            call = next(iter(self._waiting))
            now = call.now()
            at = self._tokens.earliest(
                call.reserved, self._requests.earliest(1, max(self._next, self._held_until, now))
            )
            if at - now > RESOLUTION:
                self._expected = at
                return call, at - now
            # If the alarm was late, its delay must not carry over to the calls after this one.
            self._next = (self._next if self._expected == self._next else now) + self._interval
            self._requests.add(1, now, now)
            call.entry = self._tokens.add(call.reserved, now, now)
            self._running.add(self._waiting.popitem(last=False)[0])
            return call, 0.0

    def _is_full(self) -> bool:
        if self._concurrent is None or len(self._running) < self._concurrent:
            return False
        self._running = {call for call in self._running if not call.is_lost}
        return len(self._running) >= self._concurrent

    def _drop(self, call: _QueuedCall) -> None:
        with self._guard:
            if call.entry is not None:
                self._tokens.correct(call.entry, call.used, call.now())
                call.entry = None
            self._running.discard(call)
            self._waiting.pop(call, None)


Entry = list[float]
"""The time at which an amount was used, and the amount. The amount is corrected once the actual usage is known."""


class _RateWindow:
    """Limits the total in any 60-second window.

    An amount above the limit is allowed if nothing else is used in that window.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._entries: list[Entry] = []  # sorted by time; the time of a planned retry is in the future
        self._total = 0.0

    def earliest(self, amount: float, at: float) -> float:
        """Return the earliest time, no earlier than `at`, at which there is room for `amount` under the limit."""
        excess = self._total + amount - self._limit
        for time, used in self._entries:
            if time + MINUTE > at + RESOLUTION:
                if excess <= 0:
                    break
                at = time + MINUTE
            excess -= used
        return at

    def add(self, amount: float, at: float, now: float) -> Entry:
        entry = [at, amount]
        if self._limit == inf:
            return entry
        old = 0
        while old < len(self._entries) and self._entries[old][0] + MINUTE <= now + RESOLUTION:
            self._total -= self._entries[old][1]
            old += 1
        del self._entries[:old]
        insort(self._entries, entry, key=itemgetter(0))
        self._total += amount
        return entry

    def correct(self, entry: Entry, amount: float, now: float) -> None:
        """Correct the amount of `entry`. If the new amount is larger, the difference is recorded as used at `now`."""
        if amount > entry[1]:
            self.add(amount - entry[1], now, now)
        elif any(entry is other for other in self._entries):
            self._total += amount - entry[1]
            entry[1] = amount
