"""Items for a slow consumer: joined by `conflate`, dropped by `keep_latest`."""

from __future__ import annotations

import asyncio
import threading
from enum import StrEnum
from operator import add
from typing import Any

import pytest
import reactivex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, of
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import Fake, StreamCollector, TextDelta, from_async_iter, stream_generate, to_async_iter, to_iter
from rxllm import operators as ops
from rxllm.events import (
    Event,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    ThinkingDelta,
    ToolCallDelta,
    UsageUpdated,
)
from rxllm.runtime import Gate
from rxllm.runtime.back_pressure import HELD_BACK, read_by
from rxllm.testing import assert_operator, strategies
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.testing.marbles import check
from rxllm.values import Usage, ValidationError
from tests.closing import assert_closes
from tests.operators.consumer import Consumer
from tests.runtime.support import model
from tests.waiting import until, wait_until

# conflate


def test_a_quick_consumer_gets_every_event_as_it_came() -> None:
    check(ops.conflate(), "-a-b-c-|", "^------!", "-a-b-c-|", a=TextDelta("a"), b=TextDelta("b"), c=TextCompleted("ab"))


def test_a_dispose_ends_it() -> None:
    check(ops.conflate(), "-a-b-c-|", "^---!", "-a-b", a=TextDelta("a"), b=TextDelta("b"), c=TextCompleted("ab"))


def test_deltas_are_joined_while_items_wait() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(*map(TextDelta, "Hello"))
    assert consumer.waiting == [TextDelta("H")]
    assert consumer.take() == TextDelta("H")
    assert consumer.waiting == [TextDelta("ello")]
    assert consumer.take() == TextDelta("ello")
    consumer.say(TextDelta("!"))
    assert consumer.waiting == [TextDelta("!")]


def test_who_has_taken_all_gets_the_next_event_at_once() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(*map(TextDelta, "abc"))
    consumer.gate.take()
    assert consumer.waiting == []
    consumer.say(TextDelta("d"))
    assert consumer.waiting == [TextDelta("bcd")]


def test_nothing_is_left_to_do_after_the_end() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(*map(TextDelta, "abc"))
    consumer.gate.take()
    assert consumer.scheduler.waiting == 1
    consumer.events.on_completed()
    assert consumer.scheduler.waiting == 0


def test_only_neighbours_of_the_same_block_are_joined() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(
        TextDelta("first"),
        ThinkingDelta("h", "1"),
        ThinkingDelta("m", "1"),
        ThinkingDelta("m", "2"),
        TextDelta("a", "1"),
        TextDelta("b"),
        TextDelta("c"),
        ToolCallDelta("c1", "{"),
        ToolCallDelta("c1", "}"),
        ToolCallDelta("c2", "{}"),
        UsageUpdated(Usage(1, 1)),
        TextDelta("d"),
    )
    consumer.take()
    assert consumer.waiting == [
        ThinkingDelta("hm", "1"),
        ThinkingDelta("m", "2"),
        TextDelta("a", "1"),
        TextDelta("bc"),
        ToolCallDelta("c1", "{}"),
        ToolCallDelta("c2", "{}"),
        UsageUpdated(Usage(1, 1)),
        TextDelta("d"),
    ]


def test_deltas_that_come_while_on_next_runs_are_joined() -> None:
    events: Subject[Event] = Subject()
    told: list[Any] = []

    def hear(event: Event) -> None:
        told.append(event)
        if len(told) == 1:
            for letter in "bcd":
                events.on_next(TextDelta(letter))
            assert told == [TextDelta("a")]

    events.pipe(ops.conflate()).subscribe(hear)
    events.on_next(TextDelta("a"))
    assert told == [TextDelta("a"), TextDelta("bcd")]


def test_the_end_brings_what_waits() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(*map(TextDelta, "abc"), TextCompleted("abc"))
    consumer.events.on_completed()
    assert consumer.waiting == [TextDelta("a"), TextDelta("bc"), TextCompleted("abc")]
    assert consumer.ends == [None]


def test_an_error_brings_what_waits_before_it() -> None:
    consumer, error = Consumer(ops.conflate()), ValueError("no")
    consumer.say(*map(TextDelta, "abc"))
    consumer.events.on_error(error)
    assert consumer.waiting == [TextDelta("a"), TextDelta("bc")]
    assert consumer.ends == [error]


def test_a_dispose_drops_what_waits() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(*map(TextDelta, "abc"))
    consumer.subscription.dispose()
    consumer.take()
    assert consumer.waiting == []
    assert not consumer.events.observers


def test_a_consumer_that_never_looks_is_given_so_much_and_then_the_source_waits() -> None:
    consumer = Consumer(ops.conflate(), maxsize=3)
    consumer.say(*[TextDelta("x")] * (2 * HELD_BACK + 5))
    assert consumer.waiting == [TextDelta("x"), TextDelta("x" * HELD_BACK), TextDelta("x" * HELD_BACK)]
    assert consumer.gate.full


def test_a_subscriber_s_exception_comes_back_once() -> None:
    failure, errors, told = ValueError("no"), list[Exception](), list[Any]()
    gate, events, scheduler = Gate(8), Subject[Event](), TestScheduler()

    def refuse(event: Any) -> None:
        gate.waiting.append(event)
        told.append(event)
        if len(told) == 2:
            raise failure

    with read_by(gate, errors.append):
        events.pipe(ops.conflate()).subscribe(refuse, errors.append, scheduler=scheduler)
    for letter in "abc":
        events.on_next(TextDelta(letter))
    gate.take()
    scheduler.advance_by(1.0)
    assert errors == [failure]
    assert told == [TextDelta("a"), TextDelta("bc")]
    assert not events.observers


def test_for_loops_get_joined_deltas_and_lose_nothing() -> None:
    letters = [f"{i} " for i in range(2000)]
    with to_iter(stream_generate(Fake(letters), "Hi").pipe(ops.conflate())) as items:
        told = list(items)
    assert "".join(event.delta for event in told if isinstance(event, TextDelta)) == "".join(letters)
    assert [type(event) for event in (told[0], *told[-2:])] == [MessageStarted, TextCompleted, MessageCompleted]


def test_a_slow_reader_is_never_far_behind() -> None:
    async def main() -> list[Event]:
        told: list[Event] = []
        async with to_async_iter(stream_generate(Fake(["x"] * 500), "Hi").pipe(ops.conflate())) as items:
            async for event in items:
                told.append(event)
                await asyncio.sleep(0)
        return told

    told = asyncio.run(main())
    assert len(told) < 20
    assert "".join(event.delta for event in told if isinstance(event, TextDelta)) == "x" * 500


@given(st.lists(strategies.lawful_events, max_size=2), st.data())
def test_the_fold_stays_the_same(responses: list[list[Event]], data: st.DataObject) -> None:
    events = [event for response in responses for event in response]
    consumer, told = Consumer(ops.conflate()), list[Any]()
    for event in events:
        consumer.say(event)
        while consumer.waiting and data.draw(st.booleans()):
            told.append(consumer.take())
    consumer.events.on_completed()
    told += consumer.waiting
    assert len(told) <= len(events)
    assert _fold(told) == _fold(events)


def _fold(events: list[Any]) -> StreamCollector:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state


def test_a_gate_wakes_whoever_waits_for_it_to_be_idle() -> None:
    gate, woken = Gate(4), list[int]()
    gate.when_idle(lambda: woken.append(1))
    assert woken == [1]
    gate.waiting.extend("ab")
    gate.when_idle(lambda: woken.append(2))
    gate.take()
    assert woken == [1]
    gate.take()
    assert woken == [1, 2]
    gate.waiting.append("c")
    gate.take()
    assert woken == [1, 2]


def test_without_an_iterator_no_clock_is_asked() -> None:
    scheduler = TestScheduler()
    told = scheduler.start(lambda: of(TextDelta("a"), TextDelta("b")).pipe(ops.conflate()))
    assert told.messages == [
        ReactiveTest.on_next(200, TextDelta("a")),
        ReactiveTest.on_next(200, TextDelta("b")),
        ReactiveTest.on_completed(200),
    ]


def test_strings_are_the_pieces_of_a_text() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say(*"Hello", 1, *"abc", b"x", b"y", "!")
    consumer.take()
    assert consumer.waiting == ["ello", 1, "abc", b"x", b"y", "!"]


class Colour(StrEnum):
    RED = "red"


def test_a_delta_that_is_more_than_a_string_is_not_joined() -> None:
    consumer = Consumer(ops.conflate())
    consumer.say("a", Colour.RED, Colour.RED)
    consumer.take()
    assert consumer.waiting == [Colour.RED, Colour.RED]
    assert type(consumer.waiting[0]) is Colour


def test_other_items_wait_and_are_never_more_than_so_many() -> None:
    consumer = Consumer(ops.conflate(), maxsize=3)
    consumer.say(*range(HELD_BACK))
    assert consumer.waiting == [0]
    consumer.say(HELD_BACK)
    assert consumer.waiting == list(range(HELD_BACK + 1))
    assert consumer.gate.full


def test_a_function_joins_all_that_waits() -> None:
    consumer = Consumer(ops.conflate(max))
    consumer.say(1, 5, 3, 4)
    consumer.take()
    assert consumer.waiting == [5]
    consumer.take()
    consumer.say(2)
    assert consumer.waiting == [2]


def test_a_function_is_given_the_older_first() -> None:
    consumer = Consumer(ops.conflate(lambda older, newer: f"({older}{newer})"))
    consumer.say(*"abcd")
    consumer.events.on_completed()
    assert consumer.waiting == ["a", "((bc)d)"]


def test_so_many_joined_by_a_function_pass_too() -> None:
    consumer = Consumer(ops.conflate(add), maxsize=3)
    consumer.say(*[1] * (2 * HELD_BACK + 5))
    assert consumer.waiting == [1, HELD_BACK, HELD_BACK]


def test_an_exception_of_the_function_ends_the_stream_behind_the_waiting_items() -> None:
    consumer = Consumer(ops.conflate(lambda older, newer: older / newer))
    consumer.say(8, 4, 2, 0, 1)
    assert consumer.waiting == [8, 2.0]
    assert [type(end) for end in consumer.ends] == [ZeroDivisionError]
    assert not consumer.events.observers


def test_each_subscription_joins_its_own() -> None:
    operator = ops.conflate(add)
    consumers = [Consumer(operator), Consumer(operator)]
    for consumer in consumers:
        consumer.say(1, 2, 3)
    assert [consumer.take() + consumer.take() for consumer in consumers] == [6, 6]


def test_joining_by_a_function_keeps_every_rule() -> None:
    assert_operator(lambda: ops.conflate(list[Any].__add__), events=[[1], [2], [3]])
    assert_operator(ops.conflate, events=["a", 1, "b", "c"], without={"at_once", "reentrant"})


@pytest.mark.parametrize("join", ["add", 3, lambda item: item])
def test_join_must_be_a_function(join: Any) -> None:
    with pytest.raises(ValidationError, match="join must be a function"):
        ops.conflate(join)


ITEMS = st.lists(st.one_of(st.sampled_from("abc"), st.integers(0, 3)))


@given(ITEMS, st.data())
def test_nothing_is_lost_and_the_order_stays(items: list[Any], data: st.DataObject) -> None:
    consumer, told = Consumer(ops.conflate()), list[Any]()
    for item in items:
        consumer.say(item)
        while consumer.waiting and data.draw(st.booleans()):
            told.append(consumer.take())
    consumer.events.on_completed()
    told += consumer.waiting
    assert [letter for item in told for letter in (item if isinstance(item, str) else [item])] == items
    assert len(told) <= len(items)


@given(st.lists(st.integers()), st.data())
def test_a_sum_stays_the_same(numbers: list[int], data: st.DataObject) -> None:
    consumer, told = Consumer(ops.conflate(add)), list[int]()
    for number in numbers:
        consumer.say(number)
        assert len(consumer.waiting) <= 1
        if consumer.waiting and data.draw(st.booleans()):
            told.append(consumer.take())
    consumer.events.on_completed()
    assert sum(told + consumer.waiting) == sum(numbers)


# keep_latest


def test_a_quick_consumer_gets_every_item() -> None:
    check(ops.keep_latest(), "-a-b-c-|", "^------!", "-a-b-c-|")


def test_an_error_passes_at_once() -> None:
    check(ops.keep_latest(), "-a-b-X", "^----!", "-a-b-X", X=ValueError("no"))


def test_a_dispose_ends_it_of_keep_latest() -> None:
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


def test_an_item_that_comes_while_on_next_runs_is_replaced() -> None:
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
    """The reader is busy while six more readings come."""
    made, seen = 0, list[int]()

    async def readings() -> Any:
        nonlocal made
        for number in range(60):
            yield number
            made = number + 1
            if made % 6 == 0 and made < 60:
                await until(lambda made=made: 6 * len(seen) > made)

    with to_iter(from_async_iter(readings).pipe(ops.keep_latest())) as items:
        for item in items:
            seen.append(item)
            wait_until(lambda: made >= min(6 * len(seen), 60))
    assert seen == [0, *range(5, 60, 6)]


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
        wait_until(finished.is_set)
        assert list(items)[-1:] == [4999]


@pytest.mark.sockets
def test_leaving_closes_the_connection() -> None:
    def leave(server: Loopback) -> None:
        with to_iter(stream_generate(model(server), "Hi").pipe(ops.text(), ops.keep_latest())) as items:
            next(items)

    assert_closes(leave, Reply(endless()))


def test_text_needs_conflate_instead() -> None:
    letters = [f"{number} " for number in range(50)]
    finished = threading.Event()
    events = stream_generate(Fake(letters), "Hi").do_action(on_completed=finished.set)
    with to_iter(events.pipe(ops.keep_latest())) as items:
        wait_until(finished.is_set)
        assert sum(isinstance(item, TextDelta) for item in items) < 50


def test_a_source_that_emits_all_at_once_gives_the_first_and_the_last() -> None:
    with to_iter(reactivex.range(100).pipe(ops.keep_latest())) as items:
        assert list(items)[-1] == 99


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_the_consumer_sees_some_of_the_items_in_order_and_the_last(steps: list[tuple[bool, bool]]) -> None:
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
