"""The newest item alone, for a slow consumer."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import reactivex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject

from rxllm import Fake, TextDelta, from_async_iter, stream_generate, to_async_iter, to_iter
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.testing.marbles import check
from tests.operators.consumer import Consumer
from tests.runtime.support import BOUND, model


def test_a_quick_consumer_gets_every_item() -> None:
    check(ops.keep_latest(), "-a-b-c-|", "^------!", "-a-b-c-|")


def test_an_error_passes_at_once() -> None:
    check(ops.keep_latest(), "-a-b-X", "^----!", "-a-b-X", X=ValueError("no"))


def test_a_dispose_ends_it() -> None:
    check(ops.keep_latest(), "-a-b-c-|", "^---!", "-a-b")


def test_a_busy_consumer_gets_the_newest_when_it_asks() -> None:
    consumer = Consumer(ops.keep_latest())
    consumer.say(1, 2, 3)
    assert consumer.waiting == [1]
    assert consumer.take() == 1
    assert consumer.waiting == []  # it works on 1 still
    consumer.say(4, 5)
    consumer.request()
    assert consumer.waiting == [5]
    consumer.take()
    consumer.request()
    consumer.say(6, 7)
    assert consumer.waiting == [6]


def test_no_source_is_slowed_down() -> None:
    consumer = Consumer(ops.keep_latest(), maxsize=2)
    consumer.say(*range(10_000))
    assert consumer.waiting == [0]
    assert not consumer.gate.full


def test_the_end_brings_the_newest() -> None:
    consumer = Consumer(ops.keep_latest())
    consumer.say(1, 2, 3)
    consumer.events.on_completed()
    assert (consumer.waiting, consumer.ends) == ([1, 3], [None])


def test_an_error_brings_the_newest_before_it() -> None:
    consumer, error = Consumer(ops.keep_latest()), ValueError("no")
    consumer.say(1, 2, 3)
    consumer.events.on_error(error)
    assert (consumer.waiting, consumer.ends) == ([1, 3], [error])


def test_the_end_brings_nothing_twice() -> None:
    consumer = Consumer(ops.keep_latest())
    consumer.say(1)
    consumer.events.on_completed()
    assert consumer.waiting == [1]


def test_a_dispose_drops_the_newest_and_nothing_is_left_to_do() -> None:
    consumer = Consumer(ops.keep_latest())
    consumer.say(1, 2)
    consumer.take()
    consumer.gate.request()
    assert consumer.scheduler.waiting == 1
    consumer.subscription.dispose()
    assert consumer.scheduler.waiting == 0
    consumer.request()
    assert (consumer.waiting, consumer.events.observers) == ([], [])


def test_what_comes_while_on_next_runs_is_replaced() -> None:
    items, told = Subject[int](), list[int]()

    def hear(item: int) -> None:
        told.append(item)
        for number in range(item * 10, item * 10 + 3) if item < 10 else ():
            items.on_next(number)
        assert told[-1] == item

    items.pipe(ops.keep_latest()).subscribe(hear)
    items.on_next(1)
    assert told == [1, 12]


def test_an_item_may_be_none() -> None:
    consumer = Consumer(ops.keep_latest())
    consumer.say(1, 2, None)
    consumer.events.on_completed()
    assert consumer.waiting == [1, None]


def test_a_for_loop_gets_what_is_new_when_it_asks() -> None:
    async def readings() -> Any:
        for number in range(60):
            yield number
            await asyncio.sleep(0.001)

    seen: list[int] = []
    with to_iter(from_async_iter(readings).pipe(ops.keep_latest())) as items:
        for item in items:
            seen.append(item)
            time.sleep(0.01)
    assert seen == sorted(set(seen))
    assert (seen[0], seen[-1]) == (0, 59)
    assert len(seen) < 30


def test_an_async_for_gets_nothing_older_than_its_question() -> None:
    async def main() -> None:
        newest = -1

        async def readings() -> Any:
            nonlocal newest
            for newest in range(20):
                yield newest
                await asyncio.sleep(0)

        async with to_async_iter(from_async_iter(readings).pipe(ops.keep_latest())) as items:
            async for item in items:
                for _ in range(7):
                    await asyncio.sleep(0)
                assert item <= newest
                wanted = newest
                if newest < 19:
                    assert await anext(items) >= wanted

    asyncio.run(main())


def test_a_slow_consumer_does_not_hold_its_source_back() -> None:
    finished = threading.Event()

    async def readings() -> Any:
        for number in range(5000):
            yield number
        finished.set()

    with to_iter(from_async_iter(readings).pipe(ops.keep_latest()), maxsize=2) as items:
        next(items)
        assert finished.wait(20)
        assert list(items)[-1:] == [4999]


def test_leaving_closes_the_connection() -> None:
    with Loopback(Reply(endless())) as server:
        with to_iter(stream_generate(model(server), "Hi").pipe(ops.text(), ops.keep_latest())) as items:
            next(items)
            left = time.perf_counter()
        server.connections[0].wait_closed()
        assert time.perf_counter() - left < BOUND


def test_text_needs_conflate_instead() -> None:
    letters = [f"{number} " for number in range(50)]
    with to_iter(stream_generate(Fake(letters), "Hi").pipe(ops.keep_latest())) as items:
        assert sum(isinstance(item, TextDelta) for item in items) < 50


def test_a_source_that_emits_all_at_once_gives_the_first_and_the_last() -> None:
    with to_iter(reactivex.range(100).pipe(ops.keep_latest())) as items:
        assert list(items)[-1] == 99


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_what_is_seen_are_some_of_the_items_in_order_and_the_last(steps: list[tuple[bool, bool]]) -> None:
    consumer, seen = Consumer(ops.keep_latest()), list[int]()
    for number, (takes, asks) in enumerate(steps):
        consumer.say(number)
        assert len(consumer.waiting) <= 1
        if takes and consumer.waiting:
            seen.append(consumer.take())
        if asks and not consumer.waiting:
            consumer.request()
            assert consumer.waiting in ([], [number])
    consumer.events.on_completed()
    seen += consumer.waiting
    assert seen == sorted(set(seen))
    assert seen[-1:] == ([len(steps) - 1] if steps else [])
