"""A gate that a stream of booleans opens and closes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import reactivex
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, of
from reactivex.subject import BehaviorSubject
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import Fake, TextDelta, from_async_iter, generate, stream_generate, to_iter
from rxllm import operators as ops
from rxllm.runtime import LIMIT, Gate, current_gate
from rxllm.testing import assert_operator
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.testing.marbles import START, cold, parse, record
from rxllm.testing.virtual_time import Clock
from rxllm.values import StreamError, ValidationError
from tests.closing import assert_closes
from tests.operators.consumer import Consumer
from tests.operators.support import LENGTH, LONG, assert_held_back
from tests.runtime.support import model
from tests.waiting import turns, until, wait_until

BOOLEANS = {"T": True, "F": False}
NO = ValueError("no")


def gated(source: str, while_open: str, expected: str, use: str, switch_use: str) -> None:
    """Check what a gate makes of `source`, and how long it uses the two streams: ``^--!``."""
    scheduler = TestScheduler()
    items, switch = cold(scheduler, source, {"X": NO}), cold(scheduler, while_open, {**BOOLEANS, "X": NO})
    assert record(scheduler, lambda: items.pipe(ops.gate(switch))) == list(parse(expected, {"X": NO}))
    uses = [stream.subscriptions for stream in (items, switch)]
    assert uses == [[ReactiveTest.subscribe(START, START + marbles.index("!"))] for marbles in (use, switch_use)]


def test_items_wait_in_order_while_it_is_closed() -> None:
    gated("-a-b-c-----d-|", "T-F---T-------", "-a----(bc)-d-|", "^------------!", "^------------!")


def test_it_is_closed_until_the_first_boolean() -> None:
    gated("-a-b-------c-|", "----T---------", "----(ab)---c-|", "^------------!", "^------------!")


def test_the_end_waits_behind_the_items() -> None:
    gated("-a-b-|", "T-F-----T-", "-a------(b|)", "^----!", "^-------!")


def test_the_end_does_not_wait_where_nothing_does() -> None:
    gated("-a-|", "T-F-----T-", "-a-|", "^--!", "^--!")


def test_an_error_passes_at_once_without_the_items() -> None:
    gated("-a-b-X", "T-F-----T-", "-a---X", "^----!", "^----!")


def test_an_open_gate_stays_open_when_its_stream_ends() -> None:
    gated("-a-b-c-|", "T-|-----", "-a-b-c-|", "^------!", "^-!")


def test_the_error_of_its_stream_passes_at_once() -> None:
    gated("-a-b-c-|", "T---X---", "-a-bX", "^---!", "^---!")


@pytest.mark.parametrize("while_open", ["T-F-|", "----|"])
def test_a_gate_that_can_never_open_ends_with_an_error(while_open: str) -> None:
    scheduler = TestScheduler()
    items, switch = cold(scheduler, "-----a-b-|", {}), cold(scheduler, while_open, BOOLEANS)
    ((tick, kind, error),) = record(scheduler, lambda: items.pipe(ops.gate(switch)))
    assert (tick, kind, error.reason) == (4, "error", "cancelled")
    assert "while_open completed" in str(error)
    assert items.subscriptions == [ReactiveTest.subscribe(START, START + 4)]


def test_a_gate_that_never_opens_does_not_begin_its_source() -> None:
    items: Subject[int] = Subject()
    errors: list[Any] = []
    items.pipe(ops.gate(of(False))).subscribe(on_error=errors.append)
    assert [error.reason for error in errors] == ["cancelled"]
    assert items.observers == []


def test_a_dispose_releases_both_streams_and_drops_what_waits() -> None:
    items, switch, clock, seen = Subject[int](), Subject[bool](), Clock(), list[int]()
    subscription = items.pipe(ops.gate(switch)).subscribe(seen.append, scheduler=clock)
    items.on_next(1)
    switch.on_next(True)
    assert clock.waiting == 1
    subscription.dispose()
    assert (clock.waiting, items.observers, switch.observers) == (0, [], [])
    clock.advance_by(1.0)
    assert seen == []


def test_closing_it_inside_on_next_holds_the_next_one() -> None:
    items, switch, clock, seen = Subject[int](), BehaviorSubject(False), Clock(), list[int]()

    def hear(item: int) -> None:
        seen.append(item)
        switch.on_next(False)

    items.pipe(ops.gate(switch)).subscribe(hear, scheduler=clock)
    for number in range(3):
        items.on_next(number)
    for count in range(1, 4):
        switch.on_next(True)
        clock.advance_by(1.0)
        assert seen == list(range(count))


def test_an_item_that_comes_while_on_next_runs_comes_next() -> None:
    items, seen = Subject[int](), list[int]()
    ended: list[bool] = []

    def hear(item: int) -> None:
        seen.append(item)
        if item == 1:
            items.on_next(2)
            assert seen == [1]
            items.on_completed()
            assert not ended

    items.pipe(ops.gate(of(True))).subscribe(hear, on_completed=lambda: ended.append(True))
    items.on_next(1)
    assert (seen, ended) == ([1, 2], [True])


def test_a_subscriber_that_raises_at_a_release_gets_its_error_once() -> None:
    items, switch, clock, errors = Subject[int](), Subject[bool](), Clock(), list[Exception]()

    def refuse(item: int) -> None:
        raise NO

    items.pipe(ops.gate(switch)).subscribe(refuse, errors.append, scheduler=clock)
    items.on_next(1)
    items.on_next(2)
    switch.on_next(True)
    clock.advance_by(1.0)
    assert (errors, items.observers, switch.observers) == ([NO], [], [])


def test_open_and_closed_it_keeps_every_rule() -> None:
    assert_operator(lambda: ops.gate(of(True)), events=[1, 2, 3])
    assert_operator(
        lambda: ops.gate(reactivex.timer(5).map(lambda _: True)),
        events=[1, 2, 3],
        without={"at_once", "reentrant", "subscribed_inside"},
    )


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: ops.gate(True), "while_open must be an Observable of booleans, not True"),
        (lambda: ops.gate(of(True), 0), "maxsize must be an integer >= 1, not 0"),
        (lambda: ops.gate(of(True), limit=-1), "limit must be an integer >= 1, not -1"),
    ],
)
def test_arguments_of_another_kind_are_refused_at_once(make: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        make()


@pytest.mark.parametrize("item", ["off", 1, None])
def test_an_item_that_is_not_a_boolean_is_an_error_and_opens_nothing(item: Any) -> None:
    switch: Subject[Any] = Subject()
    consumer = Consumer(ops.gate(switch))
    consumer.say("waiting")
    switch.on_next(item)
    (error,) = consumer.ends
    assert isinstance(error, ValidationError)
    assert f"while_open must emit True or False, not {item!r}; write while_open.map" in str(error)
    assert consumer.waiting == []


def test_a_button_outlives_the_loop_of_the_stream() -> None:
    items, switch, errors = Subject[int](), Subject[bool](), list[Any]()

    async def begin() -> None:
        items.pipe(ops.gate(switch)).subscribe(on_error=errors.append)

    asyncio.run(begin())
    items.on_next(1)
    switch.on_next(True)
    assert [error.reason for error in errors] == ["cancelled"]
    assert switch.observers == []


# How many wait


def test_a_source_that_does_not_wait_is_cut_off() -> None:
    consumer = Consumer(ops.gate(BehaviorSubject(False), 2, limit=3))
    consumer.say(1, 2, 3)
    assert consumer.ends == []
    consumer.say(4)
    (error,) = consumer.ends
    assert isinstance(error, StreamError)
    assert error.reason == "overflow"
    for remedy in ("3 items are already waiting", "keep_latest", "conflate", "limit="):
        assert remedy in str(error)
    assert (consumer.waiting, consumer.events.observers) == ([], [])


def test_without_a_limit_maxsize_may_be_larger() -> None:
    consumer = Consumer(ops.gate(BehaviorSubject(False), LIMIT + 1))
    consumer.say(*range(LIMIT + 1))
    assert consumer.ends == []
    consumer.say(0)
    assert len(consumer.ends) == 1


def test_a_source_that_can_wait_does() -> None:
    count, switch, seen = 0, BehaviorSubject(False), list[int]()
    finished = threading.Event()

    async def numbers() -> Any:
        nonlocal count
        for count in range(1, 501):
            yield count

    async def others() -> Any:
        for number in range(1000):
            yield number

    from_async_iter(numbers).pipe(ops.gate(switch, maxsize=8)).subscribe(seen.append, on_completed=finished.set)
    wait_until(lambda: count == 8)
    assert len(list(from_async_iter(others))) == 1000  # on the same loop
    assert (count, seen) == (8, [])
    switch.on_next(True)
    wait_until(finished.is_set)
    assert seen == list(range(1, 501))


@pytest.mark.sockets
def test_a_closed_gate_holds_the_server_back() -> None:
    switch, ended, texts = BehaviorSubject(False), threading.Event(), list[str]()
    with Loopback(LONG) as server:
        events = stream_generate(model(server), "Hi").pipe(ops.gate(switch), ops.text())
        events.subscribe(texts.append, on_completed=ended.set)
        server.wait_requests(1)
        generate(model(server), "Hi").run()
        assert_held_back(server)
        assert texts == []
        switch.on_next(True)
        wait_until(ended.is_set)
    assert sum(map(len, texts)) == LENGTH


def test_a_source_that_schedules_item_after_item_waits_too() -> None:
    switch = BehaviorSubject(False)
    with to_iter(reactivex.range(10**9).pipe(ops.gate(switch, 8, limit=100))) as items:
        threading.Timer(0.05, switch.on_next, [True]).start()
        assert [next(items) for _ in range(200)] == list(range(200))


def test_a_call_behind_it_does_not_wait_for_it() -> None:
    """A pause holds the questions; the answer that has begun goes on."""
    switch, answers, answered = BehaviorSubject(True), list[int](), threading.Event()

    async def questions() -> Any:
        yield "What?"
        switch.on_next(False)
        yield "Why?"

    async def answer() -> Any:
        await until(lambda: not switch.value)
        await turns()
        for number in range(200):
            yield number
        answered.set()

    answering = from_async_iter(questions).pipe(ops.gate(switch, 1)).flat_map(lambda _: from_async_iter(answer))
    subscription = answering.subscribe(answers.append)
    wait_until(answered.is_set)
    subscription.dispose()
    assert answers == list(range(200))


def test_a_source_after_a_release_is_behind_the_readers_gate() -> None:
    gates: list[Any] = []
    opened = reactivex.timer(0.02).map(lambda _: True)
    after = reactivex.defer(lambda _: gates.append(current_gate()) or of(2))
    with to_iter(reactivex.of(1).pipe(ops.gate(opened)).concat(after)) as items:
        assert list(items) == [1, 2]
    assert [type(gate) for gate in gates] == [Gate]


@pytest.mark.judges
def test_a_slow_reader_behind_an_open_gate_holds_the_server_back() -> None:
    with Loopback(LONG) as server:
        events = stream_generate(model(server), "Hi").pipe(ops.gate(of(True)))
        with to_iter(events, maxsize=8) as items:
            first = next(items)
            generate(model(server), "Hi").run()
            assert_held_back(server)
            deltas = [event.delta for event in (first, *items) if isinstance(event, TextDelta)]
    assert sum(map(len, deltas)) == LENGTH


@pytest.mark.sockets
def test_a_dispose_of_a_closed_gate_closes_the_connection() -> None:
    def leave(server: Loopback) -> None:
        held: list[Any] = []
        events = stream_generate(model(server), "Hi").pipe(ops.tap(held.append), ops.gate(BehaviorSubject(False)))
        subscription = events.subscribe()
        wait_until(lambda: held)
        subscription.dispose()

    assert_closes(leave, Reply(endless()))


def test_a_release_goes_on_as_the_reader_takes_items() -> None:
    switch = BehaviorSubject(False)
    consumer = Consumer(ops.gate(switch, maxsize=8), maxsize=4)
    consumer.say(*range(8))
    switch.on_next(True)
    consumer.scheduler.advance_by(1.0)
    assert consumer.waiting == [0, 1, 2, 3]
    assert [consumer.take() for _ in range(8)] == list(range(8))
    assert consumer.waiting == []


def test_a_stream_of_booleans_does_not_wait_for_the_reader() -> None:
    switched: list[bool] = []

    async def booleans() -> Any:
        for number in range(20):
            switched.append(bool(number % 2))
            yield switched[-1]

    with to_iter(stream_generate(Fake("Hi"), "Hello").pipe(ops.gate(from_async_iter(booleans))), maxsize=1) as items:
        next(items)
        wait_until(lambda: len(switched) == 20)
        assert len(list(items)) == 3


def test_the_newest_alone_waits_before_it() -> None:
    switch = BehaviorSubject(False)
    consumer = Consumer(lambda source: source.pipe(ops.keep_latest(), ops.gate(switch)))
    consumer.say(*range(10))
    assert consumer.waiting == []
    switch.on_next(True)
    consumer.scheduler.advance_by(1.0)
    assert consumer.waiting == [9]
    consumer.say(10, 11)
    consumer.take()
    switch.on_next(False)
    consumer.request()
    assert consumer.waiting == []
    consumer.say(12)
    switch.on_next(True)
    consumer.scheduler.advance_by(1.0)
    assert consumer.waiting == [12]


def test_deltas_join_before_it() -> None:
    switch = BehaviorSubject(False)
    consumer = Consumer(lambda source: source.pipe(ops.conflate(), ops.gate(switch)))
    consumer.say(*"Hello")
    switch.on_next(True)
    consumer.scheduler.advance_by(1.0)
    assert consumer.waiting == ["Hello"]
    consumer.say("!")
    assert consumer.waiting == ["Hello"]
    consumer.take()
    assert consumer.waiting == ["!"]


def test_two_gates_in_a_row_are_one() -> None:
    first, second = BehaviorSubject(True), BehaviorSubject(False)
    consumer = Consumer(lambda source: source.pipe(ops.keep_latest(), ops.gate(first), ops.gate(second)))
    consumer.say(1, 2)
    for switch in (first, second):
        switch.on_next(False)
    consumer.say(3)
    first.on_next(True)
    consumer.scheduler.advance_by(1.0)
    assert consumer.waiting == []
    second.on_next(True)
    consumer.scheduler.advance_by(1.0)
    assert consumer.waiting == [3]


# Laws

STEPS = st.lists(st.sampled_from(["item", "open", "close"]), max_size=60)


@given(STEPS, st.booleans())
def test_every_item_comes_once_in_order_and_none_while_it_is_closed(steps: list[str], opens_at_last: bool) -> None:
    items, switch, clock, seen = Subject[int](), Subject[bool](), Clock(), list[int]()
    is_open, ended = False, list[bool]()

    def hear(item: int) -> None:
        assert is_open
        seen.append(item)

    items.pipe(ops.gate(switch)).subscribe(hear, on_completed=lambda: ended.append(True), scheduler=clock)
    count = 0
    for step in steps:
        if step == "item":
            items.on_next(count)
            count += 1
        else:
            is_open = step == "open"
            switch.on_next(is_open)
            clock.advance_by(1.0)
        if is_open:
            assert seen == list(range(count))
    items.on_completed()
    assert bool(ended) == (seen == list(range(count)))
    is_open = True
    switch.on_next(True)
    clock.advance_by(1.0)
    assert (seen, ended) == (list(range(count)), [True])
    assert clock.waiting == 0


@given(STEPS, st.integers(1, 5))
def test_no_more_wait_than_the_limit(steps: list[str], limit: int) -> None:
    items, switch, clock = Subject[int](), Subject[bool](), Clock()
    errors, waiting, is_open = list[Any](), 0, False
    items.pipe(ops.gate(switch, 1, limit=limit)).subscribe(on_error=errors.append, scheduler=clock)
    for step in steps:
        if step == "item":
            items.on_next(0)
            waiting += not is_open
        else:
            is_open = step == "open"
            switch.on_next(is_open)
            clock.advance_by(1.0)
            waiting = 0 if is_open else waiting
        assert bool(errors) == (waiting > limit)
        if errors:
            return
