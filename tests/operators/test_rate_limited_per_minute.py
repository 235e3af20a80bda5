from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable
from reactivex.testing import TestScheduler

from rxllm import (
    AdapterError,
    Budget,
    Engine,
    EngineError,
    Fake,
    Usage,
    ValidationError,
    generate,
    generate_many,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.runtime import Limiter
from tests.operators.test_rate_limited import uses

ANSWER = ["Hi", Usage(5, 5)]
QUICK = {"base_delay": 0.0, "jitter": 0.0}


class Asked:
    """An adapter that notes when it is asked, in virtual time."""

    provider = "fake"

    def __init__(self, *scripts: Any) -> None:
        self.fake = Fake(scripts=scripts)
        self.times: list[float] = []

    def stream(self, request: Any, call: Any) -> Observable[Any]:
        source = self.fake.stream(request, call)

        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            self.times.append(scheduler.clock)
            return source.subscribe(observer, scheduler=scheduler)

        return Observable(subscribe)


def asked_at(
    operator: Any,
    scripts: Sequence[Any],
    calls: Sequence[float],
    until: float = 10_000,
    retry: Any = False,
    others: Sequence[Any] = (),
    **options: Any,
) -> list[float]:
    adapter, scheduler = Asked(*scripts), TestScheduler()
    engine = Engine(adapter, operators=[operator, *others], retry=retry)
    for at in calls:
        answer = generate(engine, "Hi", **options)
        scheduler.schedule_absolute(
            at, lambda *_, answer=answer: answer.subscribe(on_error=lambda error: None, scheduler=scheduler) and None
        )
    scheduler.schedule_absolute(until, lambda *_: scheduler.stop())
    scheduler.start()
    return adapter.times


def test_so_many_requests_begin_in_any_60_seconds() -> None:
    begun = uses(ops.rate_limited(requests_per_minute=2), "a|", [(at, None) for at in (0, 10, 11, 12, 65, 200)])
    assert [at for at, _ in begun] == [0, 10, 60, 70, 120, 200]


def test_so_many_tokens_are_reserved_in_any_60_seconds() -> None:
    # 5 tokens of the message and 95 of the answer, which takes a while.
    slow = [("delay", 100), "Hi", Usage(5, 95)]
    limit = ops.rate_limited(tokens_per_minute=200)
    assert asked_at(limit, [slow] * 4, [1, 2, 3, 4], max_tokens=95) == [1, 2, 61, 62]


def test_what_a_call_did_not_use_is_free_for_the_next() -> None:
    # Each reserves 1005, and uses 10 within the second.
    limit = ops.rate_limited(tokens_per_minute=1015)
    answer = [("delay", 1), *ANSWER]
    assert asked_at(limit, [answer] * 3, [1, 1, 1]) == [1, 2, 61]


def test_what_a_call_used_beyond_its_estimate_counts_from_its_end() -> None:
    greedy = [("delay", 10), "Hi", Usage(5, 300)]
    limit = ops.rate_limited(tokens_per_minute=200)
    assert asked_at(limit, [greedy, ANSWER], [1, 2], max_tokens=195) == [1, 71]


def test_a_call_that_fails_has_used_its_messages_at_most() -> None:
    limit = ops.rate_limited(tokens_per_minute=1015)
    refused = [("error", "authentication_failed")]
    assert asked_at(limit, [refused, refused, ANSWER], [1, 2, 3]) == [1, 2, 3]


def test_a_request_above_the_limit_waits_until_nothing_else_counts() -> None:
    limit = ops.rate_limited(tokens_per_minute=500)
    assert asked_at(limit, [ANSWER] * 3, [1, 2, 3]) == [1, 61, 121]


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, 90), st.integers(0, 95)), min_size=1, max_size=25),
)
def test_the_limits_hold_in_every_60_seconds(requests: int, calls: list[tuple[float, float, int]]) -> None:
    """Whatever a call has reserved, and does not give back, is within the limit; and all calls begin."""
    scripts = [[("delay", seconds), "Hi", Usage(5, tokens)] for _, seconds, tokens in calls]
    limit = ops.rate_limited(requests_per_minute=requests, tokens_per_minute=300)
    begun = asked_at(limit, scripts, [at for at, _, _ in calls], max_tokens=95)
    assert len(begun) == len(calls)
    used = [5 + tokens for _, _, tokens in calls]
    for start in begun:
        within = [index for index, at in enumerate(begun) if start <= at < start + 60 - 1e-5]
        assert len(within) <= requests
        assert sum(used[index] for index in within) <= 300


BUSY = [("error", AdapterError("rate_limited", retry_after=20.0))]


def test_a_retry_after_holds_back_all_calls() -> None:
    limit = ops.rate_limited(concurrent=4)
    assert asked_at(limit, [BUSY, ANSWER, ANSWER], [1, 2, 30]) == [1, 21, 30]


def test_a_retry_after_that_the_policy_deals_with_holds_back_all_calls() -> None:
    limit = ops.rate_limited(concurrent=4)
    assert asked_at(limit, [BUSY, *[ANSWER] * 3], [1, 2, 3], retry=QUICK) == [1, 21, 21, 21]


def test_a_call_that_is_retried_for_another_reason_waits_as_well() -> None:
    limit = ops.rate_limited(concurrent=4)
    torn = [("delay", 3), ("error", "network_error")]
    assert asked_at(limit, [torn, BUSY, ANSWER, ANSWER], [1, 2], retry=QUICK) == [1, 2, 22, 22]


def test_a_rate_limit_without_a_retry_after_holds_back_for_the_delay_of_the_retry() -> None:
    limit = ops.rate_limited(concurrent=4)
    busy = [("error", "rate_limited")]
    assert asked_at(limit, [busy, ANSWER, ANSWER], [1, 2], retry={"base_delay": 8.0, "jitter": 0.0}) == [1, 9, 9]


def test_other_failures_hold_nobody_back() -> None:
    limit = ops.rate_limited(concurrent=4)
    torn = [("error", "network_error")]
    assert asked_at(limit, [torn, ANSWER, ANSWER], [1, 2], retry={"base_delay": 8.0, "jitter": 0.0}) == [1, 2, 9]


def test_nobody_is_held_back_for_more_than_ten_minutes() -> None:
    tomorrow = [("error", AdapterError("rate_limited", retry_after=86_400.0))]
    assert asked_at(ops.rate_limited(concurrent=1), [tomorrow, ANSWER], [1, 2]) == [1, 601]


def test_attempts_count_as_requests_and_wait_for_room() -> None:
    limit = ops.rate_limited(requests_per_minute=2)
    torn = [("error", "network_error")]
    assert asked_at(limit, [torn, torn, *[ANSWER] * 2], [1, 50], retry=QUICK) == [1, 1, 61, 61]


def test_retries_are_limited_with_a_budget_too() -> None:
    """A budget hides what it counts from the calls of other operators, and that alone."""
    torn = [("error", "network_error")]
    others = [ops.budget(Budget(tokens=100_000))]
    limit = ops.rate_limited(requests_per_minute=2)
    assert asked_at(limit, [torn, torn, *[ANSWER] * 2], [1, 50], retry=QUICK, others=others) == [1, 1, 61, 61]
    limit = ops.rate_limited(concurrent=4)
    assert asked_at(limit, [BUSY, ANSWER, ANSWER], [1, 2], retry=QUICK, others=others) == [1, 21, 21]


def test_a_budget_and_a_limit_of_tokens_go_together() -> None:
    shared = Budget(tokens=100_000)
    operators = [ops.budget(shared), ops.rate_limited(tokens_per_minute=200_000, concurrent=2)]
    engine = Engine(Fake(["Hi", Usage(5, 5)]), operators=operators)
    assert len(list(generate_many(engine, ["a"] * 20))) == 20
    assert (shared.spent.tokens, shared.spent.calls, shared.spent.reserved) == (200, 20, 0)


def test_tokens_are_counted_in_engines_only() -> None:
    for limit in (ops.rate_limited(tokens_per_minute=5), ops.rate_limited(Places(1))):
        with pytest.raises(EngineError, match=r"write Engine\(\.\.\., operators="):
            stream_generate(Fake("Hi"), "Hi").pipe(limit)


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute"])
@pytest.mark.parametrize("value", [0, 1.5, "2", True])
def test_wrong_limits_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        ops.rate_limited(**{name: value})


class Places:
    """A limiter of so many calls at a time, which notes what it hears."""

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.heard: list[Any] = []

    async def acquire(self, tokens: int) -> int:
        await self.places.acquire()
        self.heard.append(tokens)
        return len(self.heard)

    def settle(self, permit: int, tokens: int) -> None:
        self.heard.append((permit, tokens))
        self.places.release()

    def hold_back(self, seconds: float) -> None:
        self.heard.append(seconds)


def limited(limiter: Limiter, *scripts: Any, **options: Any) -> Engine:
    return Engine(Fake(scripts=scripts), operators=[ops.rate_limited(limiter)], **options)


def test_a_limiter_of_ones_own_permits_calls_and_hears_of_their_ends() -> None:
    places = Places(1)
    responses = list(generate_many(limited(places, ANSWER, ANSWER), ["Hi", "Hi"], max_tokens=20))
    assert [response.output_text for response in responses] == ["Hi", "Hi"]
    assert places.heard == [25, (1, 10), 25, (3, 10)]


def test_a_limiter_hears_of_rate_limits_also_of_those_that_are_retried() -> None:
    places = Places(1)
    busy = [("error", AdapterError("rate_limited", retry_after=0.01))]
    assert generate(limited(places, busy, ANSWER, retry=QUICK), "Hi").run().output_text == "Hi"
    assert generate(limited(places, busy, retry=False), "Hi").pipe(ops.errors_as_events()).run() is not None
    assert places.heard == [1005, 0.01, (1, 10), 1005, 0.01, (4, 5)]


async def _leave(make: Callable[[], Any], seconds: float) -> None:
    subscription = make().subscribe(on_error=lambda error: None)
    await asyncio.sleep(seconds)
    subscription.dispose()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_call_that_is_disposed_gives_its_permit_back(seconds: float) -> None:
    async def main() -> None:
        places = Places(1)
        engine = limited(places, [("delay", 60), "Late"], ANSWER)
        await _leave(lambda: generate(engine, "Hi"), seconds)
        assert not places.places.locked()
        assert sum(isinstance(note, tuple) for note in places.heard) == sum(isinstance(n, int) for n in places.heard)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_call_that_is_disposed_while_it_waits_is_not_permitted() -> None:
    async def main() -> None:
        places = Places(1)
        await places.places.acquire()
        await _leave(lambda: generate(limited(places, ANSWER), "Hi"), 0.02)
        places.places.release()
        await asyncio.sleep(0.01)
        assert places.heard == []
        assert not places.places.locked()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_what_a_limiter_raises_is_the_error_of_the_call() -> None:
    class Broken(Places):
        async def acquire(self, tokens: int) -> int:
            raise LookupError("no scheduler")

    with pytest.raises(LookupError, match="no scheduler"):
        generate(limited(Broken(1), ANSWER), "Hi").run()


def test_what_is_no_limiter_is_refused_with_what_one_has() -> None:
    class Half:
        def acquire(self, tokens: int) -> int:
            return tokens

    class Sync(Half):
        def settle(self, permit: Any, tokens: int) -> None: ...
        def hold_back(self, seconds: float) -> None: ...

    for wrong in (Half(), Sync, "5"):
        with pytest.raises(ValidationError, match=r"a Limiter .an object with acquire, settle and hold_back., not "):
            ops.rate_limited(cast(Any, wrong))
    with pytest.raises(TypeError, match=r"Sync.acquire must return an awaitable, not \d+; write async def acquire"):
        generate(limited(cast(Any, Sync()), ANSWER), "Hi").run()
    with pytest.raises(TypeError, match=r"write ops.rate_limited.requests_per_minute=500"):
        ops.rate_limited(**cast(Any, {"rpm": 500}))


def test_a_limiter_goes_without_other_limits() -> None:
    with pytest.raises(ValidationError, match="a Limiter has its own"):
        ops.rate_limited(Places(1), concurrent=2)  # type: ignore[call-overload]
