"""Limit how many calls run at once, and how often one begins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from reactivex import Observable, abc

from rxllm.operators._call_queue import CallQueue, LimitedCall, PermittedCall, Rates, Turn
from rxllm.operators._event_operators import operate, shared
from rxllm.runtime import EngineCall, Limiter, Stream, engine_call, stopwatch
from rxllm.values import EngineError
from rxllm.values.argument_checks import check, explains_call, invalid_option, is_count, is_positive

T = TypeVar("T")


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
    """Queue subscriptions: at most `concurrent` run at once, and they begin ``1 / per_second`` seconds apart.

    ::

        calls                        12 3
        rate_limited(concurrent=2)   --A----a--|
                                     ---B------------b--|
                                     -----------C----c--|       (begins when the first has ended)

    >>> from rxllm import Engine, Fake, generate_many
    >>> limit = rate_limited(requests_per_minute=500, tokens_per_minute=200_000, concurrent=2)
    >>> [response.output_text for response in generate_many(Engine(Fake("Hi"), operators=[limit]), ["a", "b", "c"])]
    ['Hi', 'Hi', 'Hi']

    `requests_per_minute` and `tokens_per_minute` hold for any 60 seconds; within them calls begin as they come. A call
    reserves its messages and tools, as ``rxllm.count_tokens`` estimates them, and its `max_tokens`, or else 1,000 for
    the answer. At its end what the provider states takes the place of this; what is more than it counts from then on.
    A call that reserves more than the limit waits until nothing else counts. Only an engine knows the request, so with
    `tokens_per_minute` the operator is for ``Engine(operators=[...])``; in a pipe it raises ``EngineError``.

    A failure with a Retry-After holds back all calls for so long, 600 seconds at most. So does, in an engine, one that
    its retry policy deals with (if it is ``rate_limited``, also for the policy's own delay), and other calls that wait
    to be tried again wait as long. Each attempt counts as one of the `requests_per_minute`.

    With a `Limiter` in place of `per_second`, as of several machines, it decides when a call begins.

    Each operator has one queue for all its subscriptions, in any thread and in their order; in an engine, for all its
    calls. A subscription that is disposed leaves the queue. In ``engine.operators`` the attempts of a retry belong to
    the call that has its turn, and do not queue again. A blocking ``run()`` or ``for`` that would wait for calls on the
    loop that it blocks raises ``EngineError("wrong_loop")``; there, ``await`` the stream.

    Raises ``ValidationError("invalid_option")`` without a limit, unless `per_second` is a number above 0, and unless
    the others are whole numbers of at least 1.
    """
    counts = {
        "concurrent": concurrent,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    for name, count in counts.items():
        check(name, count, count is None or is_count(count), "None or a whole number of at least 1")
    expected = "None, a number above 0 or a Limiter (an object with acquire, settle and hold_back)"
    if isinstance(per_second, Limiter):
        check("per_second", per_second, not isinstance(per_second, type), expected)
        if any(count is not None for count in counts.values()):
            raise invalid_option("concurrent", "must be left out, as the other limits: a Limiter has its own")
        return _operator(partial(_permit, per_second), needs_call=True)
    check("per_second", per_second, per_second is None or is_positive(per_second), expected)
    if per_second is None and all(count is None for count in counts.values()):
        raise invalid_option("per_second", f"is missing: pass per_second, {', '.join(counts)}, or several of them")
    rates = Rates(1.0 / per_second if per_second else 0.0, requests_per_minute, tokens_per_minute)
    return _operator(partial(_enter, CallQueue(rates, concurrent)), needs_call=tokens_per_minute is not None)


Begin = Callable[[LimitedCall, abc.ObserverBase[Any], abc.SchedulerBase | None], abc.DisposableBase]


def _operator(begin: Begin, needs_call: bool) -> Callable[[Observable[Any]], Stream[Any]]:
    def operator(source: Observable[Any]) -> Stream[Any]:
        call = engine_call()
        if call is None and needs_call:
            raise EngineError("unknown_option", _IN_AN_ENGINE)
        return operate(partial(_begin, begin, call))(source)

    return shared(operator)


_IN_AN_ENGINE = (
    "rate_limited cannot count the tokens of a stream in a pipe, whose request it does not know; "
    "write Engine(..., operators=[ops.rate_limited(...)])"
)


def _begin(
    begin: Begin,
    call: EngineCall | None,
    source: Observable[Any],
    observer: abc.ObserverBase[Any],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    return begin(LimitedCall(source, call, stopwatch(scheduler)), observer, scheduler)


def _enter(
    queue: CallQueue, call: LimitedCall, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
) -> abc.DisposableBase:
    return queue.enter(Turn(queue, call, observer, scheduler))


def _permit(
    limiter: Limiter, call: LimitedCall, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
) -> abc.DisposableBase:
    return PermittedCall(limiter, call, observer, scheduler).start()
