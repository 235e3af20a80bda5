"""Limits of calls at once and of requests and tokens a minute."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable
from reactivex.scheduler import HistoricalScheduler, NewThreadScheduler, VirtualTimeScheduler
from reactivex.testing import TestScheduler

from rxllm import (
    AdapterError,
    Budget,
    Engine,
    EngineError,
    Event,
    Fake,
    Request,
    TextDelta,
    Usage,
    ValidationError,
    generate,
    generate_many,
    stream_generate,
)
from rxllm import operators as ops
from rxllm.runtime import Limiter, call_loop
from rxllm.testing.loopback import Loopback, Pause, Reply, chat_chunk, chat_finish
from rxllm.testing.marbles import START, cold
from rxllm.testing.virtual_time import Clock
from tests.operators.threads import together
from tests.runtime.support import model
from tests.waiting import turns, until, wait_until

# rate_limited


Calls = list[tuple[int, int | None]]  # when each subscribes, and when it is disposed


def uses(
    operator: Callable[[Observable[Any]], Observable[Any]],
    marbles: str,
    calls: Calls,
    scheduler: TestScheduler | None = None,
) -> list[tuple[int, int]]:
    """When the source is used, if it is called so."""
    scheduler = scheduler or TestScheduler()
    source = cold(scheduler, marbles, {"X": ValueError("no")})
    piped = source.pipe(operator)
    subscriptions: dict[int, Any] = {}
    for number, (begin, end) in enumerate(calls):

        def subscribe(*_: Any, number: int = number) -> None:
            subscriptions[number] = piped.subscribe(on_error=lambda error: None, scheduler=scheduler)

        scheduler.schedule_absolute(START + begin, subscribe)
        if end is not None:
            scheduler.schedule_absolute(START + end, lambda *_, number=number: subscriptions[number].dispose())
    scheduler.start()
    return [(int(each.subscribe) - START, int(each.unsubscribe) - START) for each in source.subscriptions]


def test_no_more_than_so_many_at_a_time_in_their_order() -> None:
    assert uses(ops.rate_limited(concurrent=2), "---a--|", [(0, None), (1, None), (2, None), (3, None)]) == [
        (0, 6),
        (1, 7),
        (6, 12),
        (7, 13),
    ]


def test_they_begin_apart() -> None:
    assert uses(ops.rate_limited(per_second=0.25), "-a|", [(0, None), (1, None), (2, None), (20, None)]) == [
        (0, 2),
        (4, 6),
        (8, 10),
        (20, 22),
    ]


def test_both_limits_at_once() -> None:
    limited = ops.rate_limited(per_second=0.5, concurrent=1)
    assert uses(limited, "a|", [(0, None), (0, None), (0, None)]) == [(0, 1), (2, 3), (4, 5)]


def test_a_failure_gives_its_place_free() -> None:
    assert uses(ops.rate_limited(concurrent=1), "--X", [(0, None), (0, None)]) == [(0, 2), (2, 4)]


def test_a_dispose_gives_its_place_free_and_leaves_the_queue() -> None:
    calls: Calls = [(0, 3), (1, 2), (1, None)]
    assert uses(ops.rate_limited(concurrent=1), "-----a|", calls) == [(0, 3), (3, 9)]


def test_a_dispose_while_it_waits_for_its_time() -> None:
    assert uses(ops.rate_limited(per_second=0.1), "a|", [(0, None), (1, 5), (30, None)]) == [(0, 1), (30, 31)]


def test_a_dispose_gives_its_time_free() -> None:
    calls: Calls = [(0, None), (1, 5), (2, 4), (6, None), (7, None)]
    assert uses(ops.rate_limited(per_second=0.1), "a|", calls) == [(0, 1), (10, 11), (20, 21)]


def test_they_begin_apart_from_when_the_last_has_begun() -> None:
    calls: Calls = [(0, None), (5, None), (6, None)]
    assert uses(ops.rate_limited(per_second=0.25), "a|", calls) == [(0, 1), (5, 6), (9, 10)]


def test_an_alarm_that_rings_late_makes_no_later_one_later() -> None:
    class Late(TestScheduler):
        def schedule_relative(self, duetime: Any, action: Any, state: Any = None) -> Any:
            return super().schedule_relative(self.to_seconds(duetime) + 1.0, action, state)

    limited = ops.rate_limited(per_second=0.25)
    assert uses(limited, "|", [(0, None)] * 3, Late()) == [(0, 1), (5, 6), (9, 10)]


@pytest.mark.parametrize("scheduler", [TestScheduler(), HistoricalScheduler()])
def test_thirds_of_a_second_are_no_trouble(scheduler: VirtualTimeScheduler) -> None:
    """Dates know microseconds and no less."""
    ended: list[int] = []
    limited = Observable[str](lambda observer, scheduler=None: observer.on_completed()).pipe(  # type: ignore[arg-type]
        ops.rate_limited(per_second=3)
    )
    for number in range(10):
        limited.subscribe(on_completed=partial(ended.append, number), scheduler=scheduler)
    scheduler.start()
    assert ended == list(range(10))


def test_nothing_is_left_waiting_when_all_have_left() -> None:
    scheduler = Clock()
    limited = cold(scheduler, "----a|", {}).pipe(ops.rate_limited(per_second=0.01, concurrent=2))
    subscriptions = [limited.subscribe(scheduler=scheduler) for _ in range(3)]
    for each in subscriptions:
        each.dispose()
    assert scheduler.waiting == 0


def test_a_source_that_fails_in_its_subscription_gives_its_place_free() -> None:
    def at_once(observer: Any, scheduler: Any = None) -> Any:
        observer.on_next("Hi")

    def refuse(what: Any) -> None:
        raise LookupError("mine")

    limited = Observable[str](at_once).pipe(ops.rate_limited(concurrent=1))
    with pytest.raises(LookupError):
        limited.subscribe(refuse)
    seen: list[str] = []
    limited.subscribe(seen.append)
    assert seen == ["Hi"]


def test_schedulers_that_tell_another_time_wait_no_longer() -> None:
    """A scheduler of reactivex's counts from 1970, a loop from its start."""
    limited = Observable[str](lambda observer, scheduler=None: observer.on_completed()).pipe(  # type: ignore[arg-type]
        ops.rate_limited(per_second=1000)
    )
    ended = threading.Event()
    limited.subscribe(scheduler=NewThreadScheduler())
    limited.subscribe(on_completed=ended.set)
    wait_until(ended.is_set)


def test_a_turn_that_waits_for_its_time_on_a_loop_that_ends_holds_up_nobody() -> None:
    limit = ops.rate_limited(per_second=10, concurrent=1)
    engine = Engine(Fake("Hi"), operators=[limit])

    async def wait_in_vain() -> None:
        assert (await generate(engine, "Hi")).output_text == "Hi"
        generate(engine, "Hi").subscribe(on_error=lambda error: None)

    asyncio.run(wait_in_vain())
    assert generate(engine, "Hi").run().output_text == "Hi"


def test_a_call_that_a_loop_has_left_without_a_word_holds_no_place() -> None:
    engine = Engine(Fake([("delay", 60), "Late"], ["Hi"]), operators=[ops.rate_limited(concurrent=1)])

    async def leave() -> None:
        generate(engine, "Hi").subscribe(on_error=lambda error: None)
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert generate(engine, "Hi").run().output_text == "Hi"


@pytest.mark.parametrize("count", [1, 50])
def test_calls_awaited_on_a_loop_that_is_closed_under_them_hold_no_place(count: int) -> None:
    limited = Engine(Fake([("delay", 60), "Late"], ["Hi"]), operators=[ops.rate_limited(concurrent=1)])
    waiting: list[Any] = []

    async def ask() -> Any:
        return await generate(limited, "Hi")

    async def leave() -> None:
        waiting.extend(asyncio.ensure_future(ask()) for _ in range(2))
        await turns(count)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    left = asyncio.all_tasks(loop)
    with warnings.catch_warnings(action="ignore"):
        loop.close()
    assert asyncio.run(ask()).output_text == "Hi"
    for task in (*waiting, *left):  # asyncio would complain of them in another test
        task._log_destroy_pending = False
        if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:
            task.get_coro().close()


def test_many_that_wait_on_a_loop_that_has_ended_are_passed_over() -> None:
    limit = ops.rate_limited(per_second=5, concurrent=1)
    held = Observable[Any](lambda observer, scheduler=None: None)  # type: ignore[arg-type, return-value]
    first = held.pipe(limit).subscribe()

    async def wait_in_vain() -> None:
        for _ in range(2000):
            held.pipe(limit).subscribe()

    asyncio.run(wait_in_vain())
    first.dispose()
    assert generate(Engine(Fake("Hi"), operators=[limit]), "Hi").run().output_text == "Hi"


def test_a_turn_begins_in_its_own_context_and_on_its_own_loop() -> None:
    limit = ops.rate_limited(concurrent=1)
    who = contextvars.ContextVar("who", default="nobody")
    began: list[tuple[str, bool]] = []

    def look(observer: Any, scheduler: Any = None) -> None:
        began.append((who.get(), call_loop() is loop))

    held = Observable[Any](lambda observer, scheduler=None: None).pipe(limit).subscribe()  # type: ignore[arg-type, return-value]

    async def wait() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        who.set("me")
        Observable[Any](look).pipe(limit).subscribe()  # type: ignore[arg-type]
        await asyncio.to_thread(contextvars.Context().run, held.dispose)
        await until(lambda: bool(began))

    loop: Any = None
    asyncio.run(wait())
    assert began == [("me", True)]


@pytest.mark.sockets
def test_all_the_calls_of_an_engine_share_it_in_threads_too() -> None:
    """The server counts how many it answers at a time."""
    live = peak = 0
    guard = threading.Lock()

    def body() -> Any:
        nonlocal live, peak
        with guard:
            live += 1
            peak = max(peak, live)
        yield chat_chunk("Hi")
        yield Pause(0.005)
        while peak < 2:
            yield Pause(0.001)
        with guard:
            live -= 1  # before the client can know that this is the end
        yield chat_finish()
        yield b"data: [DONE]\n\n"

    with Loopback(lambda _: Reply(body())) as server:
        engine = model(server).with_operators(ops.rate_limited(concurrent=2))
        texts: list[str] = []

        def ask() -> None:
            texts.append(generate(engine, "Hi").run().output_text)

        async def others() -> None:
            texts.extend(each.output_text for each in await asyncio.gather(*(_answer(engine) for _ in range(4))))

        together(*[ask] * 4, lambda: asyncio.run(others()))
        assert texts == ["Hi"] * 8
    assert peak == 2


async def _answer(engine: Engine) -> Any:
    return await generate(engine, "Hi")


def test_a_queue_outlives_a_loop_that_ends_with_calls_in_it() -> None:
    """Those who wait on a loop that is gone are passed over."""
    limit = ops.rate_limited(concurrent=1)
    engine = Engine(Fake([("delay", 0.02), "Hi"]), operators=[limit])
    held = Observable[Any](lambda observer, scheduler=None: None)  # type: ignore[arg-type, return-value]
    first = held.pipe(limit).subscribe()

    async def wait_in_vain() -> None:
        generate(engine, "Hi").subscribe(on_error=lambda error: None)

    asyncio.run(wait_in_vain())
    first.dispose()
    assert generate(engine, "Hi").run().output_text == "Hi"


def test_many_requests() -> None:
    engine = Engine(Fake("Hi"), operators=[ops.rate_limited(per_second=1000, concurrent=2)])
    assert [each.output_text for each in generate_many(engine, ["a"] * 5)] == ["Hi"] * 5


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({}, "per_second"),
        ({"per_second": 0}, "per_second"),
        ({"per_second": float("nan")}, "per_second"),
        ({"per_second": "2"}, "per_second"),
        ({"concurrent": 0}, "concurrent"),
        ({"concurrent": 1.5}, "concurrent"),
        ({"concurrent": True}, "concurrent"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        ops.rate_limited(**limits)


@pytest.mark.filterwarnings("ignore:.*blocks this thread's event loop:RuntimeWarning")
def test_who_blocks_the_loop_of_the_calls_before_it_does_not_wait_for_them() -> None:
    async def main() -> None:
        for concurrent in (1, 2, 3):
            asked, free = list[Request](), asyncio.Event()

            async def answer(
                request: Request, call: Any, asked: list[Request] = asked, free: asyncio.Event = free
            ) -> AsyncIterator[Event]:
                asked.append(request)
                yield TextDelta("Hel")
                if len(asked) <= 2:
                    await free.wait()
                yield TextDelta("lo")

            engine = Engine(answer, operators=[ops.rate_limited(concurrent=concurrent)])
            first = [asyncio.ensure_future(generate(engine, "Hi")) for _ in range(2)]
            await turns()
            assert len(asked) == min(concurrent, 2)
            if concurrent <= 2:
                with pytest.raises(EngineError, match="await stream") as caught:
                    generate(engine, "Hi").run()
                assert caught.value.reason == "wrong_loop"
            else:
                assert generate(engine, "Hi").run().output_text == "Hello"
            free.set()
            responses = await asyncio.gather(*first, asyncio.to_thread(generate(engine, "Hi").run))
            assert [response.output_text for response in responses] == ["Hello"] * 3
            assert generate(engine, "Hi").run().output_text == "Hello"

    asyncio.run(main())


# rate_limited_per_minute


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


def test_tokens_that_a_call_did_not_use_are_free_for_the_next() -> None:
    # Each reserves 1005, and uses 10 within the second.
    limit = ops.rate_limited(tokens_per_minute=1015)
    answer = [("delay", 1), *ANSWER]
    assert asked_at(limit, [answer] * 3, [1, 1, 1]) == [1, 2, 61]


def test_tokens_beyond_a_calls_estimate_count_from_its_end() -> None:
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


async def _leave(make: Callable[[], Any], count: int) -> None:
    """Leave a call when the loop has turned `count` times."""
    subscription = make().subscribe(on_error=lambda error: None)
    await turns(count)
    subscription.dispose()
    await turns()


@pytest.mark.parametrize("count", [1, 50])
def test_a_call_that_is_disposed_gives_its_permit_back(count: int) -> None:
    async def main() -> None:
        places = Places(1)
        engine = limited(places, [("delay", 60), "Late"], ANSWER)
        await _leave(lambda: generate(engine, "Hi"), count)
        assert (count, bool(places.heard)) != (50, False)
        assert not places.places.locked()
        assert sum(isinstance(note, tuple) for note in places.heard) == sum(isinstance(n, int) for n in places.heard)

    asyncio.run(main())


def test_a_call_that_is_disposed_while_it_waits_is_not_permitted() -> None:
    async def main() -> None:
        places = Places(1)
        await places.places.acquire()
        await _leave(lambda: generate(limited(places, ANSWER), "Hi"), 50)
        places.places.release()
        await turns()
        assert places.heard == []
        assert not places.places.locked()

    asyncio.run(main())


def test_an_exception_of_a_limiter_is_the_error_of_the_call() -> None:
    class Broken(Places):
        async def acquire(self, tokens: int) -> int:
            raise LookupError("no scheduler")

    with pytest.raises(LookupError, match="no scheduler"):
        generate(limited(Broken(1), ANSWER), "Hi").run()


def test_an_object_that_is_no_limiter_is_refused_with_the_methods_of_one() -> None:
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


@pytest.mark.parametrize("limit", [ops.rate_limited(tokens_per_minute=200), ops.rate_limited(Places(1))])
def test_a_limit_that_needs_the_request_is_refused_in_a_pipe(limit: Any) -> None:
    with pytest.raises(EngineError, match=r"tokens_per_minute or a Limiter cannot be used in a pipe.*write Engine"):
        stream_generate(Fake(["Hi"]), "Hi").pipe(limit)
