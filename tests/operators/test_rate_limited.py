from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from reactivex import Observable
from reactivex.scheduler import HistoricalScheduler, NewThreadScheduler, VirtualTimeScheduler
from reactivex.testing import TestScheduler

from rxllm import Engine, EngineError, Fake, ValidationError, generate, generate_many
from rxllm import operators as ops
from rxllm.runtime import call_loop
from rxllm.testing.loopback import Loopback, Pause, Reply, chat_chunk, chat_finish
from rxllm.testing.marbles import START, cold
from rxllm.testing.virtual_time import Clock
from tests.operators.threads import together
from tests.runtime.support import model, until

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
        limited.subscribe(refuse, refuse)
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
    assert ended.wait(10)


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


@pytest.mark.parametrize("seconds", [0, 0.02])
def test_calls_awaited_on_a_loop_that_is_closed_under_them_hold_no_place(seconds: float) -> None:
    limited = Engine(Fake([("delay", 60), "Late"], ["Hi"]), operators=[ops.rate_limited(concurrent=1)])
    waiting: list[Any] = []

    async def ask() -> Any:
        return await generate(limited, "Hi")

    async def leave() -> None:
        waiting.extend(asyncio.ensure_future(ask()) for _ in range(2))
        await asyncio.sleep(seconds)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    left = asyncio.all_tasks(loop)
    with warnings.catch_warnings(action="ignore"):
        loop.close()
    assert asyncio.run(asyncio.wait_for(ask(), 20)).output_text == "Hi"
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


@pytest.mark.timeout(10)
@pytest.mark.filterwarnings("ignore:.*stops this thread's event loop:RuntimeWarning")
def test_who_blocks_the_loop_of_the_calls_before_it_does_not_wait_for_them() -> None:
    async def main() -> None:
        for concurrent in (1, 2, 3):
            engine = Engine(Fake(["Hel", ("delay", 0.02), "lo"]), operators=[ops.rate_limited(concurrent=concurrent)])
            first = [asyncio.ensure_future(generate(engine, "Hi")) for _ in range(2)]
            await asyncio.sleep(0.01)
            if concurrent <= 2:
                with pytest.raises(EngineError, match="await stream") as caught:
                    generate(engine, "Hi").run()
                assert caught.value.reason == "wrong_loop"
            else:
                assert generate(engine, "Hi").run().output_text == "Hello"
            responses = await asyncio.gather(*first, asyncio.to_thread(generate(engine, "Hi").run))
            assert [response.output_text for response in responses] == ["Hello"] * 3
            assert generate(engine, "Hi").run().output_text == "Hello"

    asyncio.run(main())
