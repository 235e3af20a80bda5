"""What every operator keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable, from_iterable
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, TextCompleted, TextDelta
from rxllm.runtime import Stream
from rxllm.testing.marbles import START, Spy, cold, record
from rxllm.values import Message, Session, StreamError, Thread, Usage, user

THREAD = Thread((user("Hi"),))
EVENTS: list[Event] = [
    MessageStarted(Message("assistant")),
    TextDelta("H"),
    TextDelta("i"),
    TextCompleted("Hi"),
    MessageCompleted(Message("assistant", "Hi"), "stop"),
]


class Same:
    def feed(self, item: Any) -> list[Any]:
        return [item]

    def close(self) -> list[Any]:
        return []


OPERATORS: dict[str, Callable[[], Any]] = {
    "continue_with": lambda: ops.continue_with(lambda last: None),
    "errors_as_events": ops.errors_as_events,
    "filter_deltas": lambda: ops.filter_deltas(tool=False),
    "filter_deltas, idle": ops.filter_deltas,
    "include_raw_chunks": ops.include_raw_chunks,
    "include_raw_chunks, idle": lambda: ops.include_raw_chunks(True),
    "lift": lambda: ops.lift(Same),
    "only": lambda: ops.only(TextDelta),
    "raise_errors": ops.raise_errors,
    "run_tools": lambda: ops.run_tools(thread=THREAD),
    "scan_collect": lambda: ops.scan_collect(THREAD),
    "tap": lambda: ops.tap(lambda item: None),
    "text": ops.text,
    "thinking": ops.thinking,
    "to_chat_result": lambda: ops.to_chat_result(THREAD),
    "to_response": ops.to_response,
    "to_session": lambda: ops.to_session(Session(thread=THREAD)),
    "to_step_result": lambda: ops.to_step_result(THREAD),
    "to_text": ops.to_text,
    "tool_calls": ops.tool_calls,
    "usage": ops.usage,
}

every_operator = pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)


def test_every_operator_is_here() -> None:
    assert {name.partition(",")[0] for name in OPERATORS} == set(ops.__all__)
    assert ops.__all__ == sorted(ops.__all__)


@every_operator
def test_it_gives_a_stream(make: Callable[[], Any]) -> None:
    assert isinstance(make()(from_iterable(EVENTS)), Stream)


@every_operator
def test_it_does_nothing_before_it_is_subscribed(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "a|", {"a": EVENTS[0]})
    source.pipe(make())
    scheduler.start()
    assert source.subscriptions == []


@every_operator
def test_dispose_reaches_the_source_at_once(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-b-c-d-e|", dict(zip("abcde", EVENTS, strict=True)))
    notes = record(scheduler, lambda: source.pipe(make()), disposed=4)
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 4)]
    assert all(tick < 4 for tick, _, _ in notes)


@every_operator
def test_the_source_s_end_releases_it(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-a-b-c-d-e|", dict(zip("abcde", EVENTS, strict=True)))
    notes = record(scheduler, lambda: source.pipe(make()))
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 10)]
    assert notes[-1] == (10, "end", None)


@every_operator
def test_an_exception_of_the_source_passes(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("the source's own")
    source = cold(scheduler, "-a-X", {"a": EVENTS[0], "X": failure})
    assert record(scheduler, lambda: source.pipe(make()))[-1] == (3, "error", failure)
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


@every_operator
def test_a_second_subscription_starts_afresh(make: Callable[[], Any]) -> None:
    piped = from_iterable(EVENTS).pipe(make())
    assert _all(piped) == _all(piped)


@every_operator
def test_one_operator_serves_two_sources_at_once(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    operator = make()
    values = dict(zip("abcde", EVENTS, strict=True))
    alone = record(TestScheduler(), lambda: from_iterable(EVENTS).pipe(make()))
    told: list[list[Any]] = [[], []]
    for each, marbles in zip(told, ("-a-b-c-d-e|", "--a-b-c-d-e|"), strict=True):
        cold(scheduler, marbles, values).pipe(operator).subscribe(each.append)
    scheduler.start()
    assert told[0] == told[1] == [what for _, kind, what in alone if kind == "next"]


@every_operator
def test_it_passes_the_scheduler_on(make: Callable[[], Any]) -> None:
    scheduler, spy = TestScheduler(), Spy()
    spy.pipe(make()).subscribe(on_error=lambda error: None, scheduler=scheduler)
    assert spy.scheduler is scheduler


@pytest.mark.parametrize("make", [ops.text, ops.thinking, ops.tool_calls, ops.usage, ops.raise_errors])
def test_no_partial_result_reaches_a_consumer_without_its_error(make: Callable[[], Any]) -> None:
    scheduler = TestScheduler()
    error = StreamError("truncated")
    source = cold(scheduler, "-a-e-|", {"a": EVENTS[1], "e": ErrorEvent(error)})
    assert record(scheduler, lambda: source.pipe(make()))[-1] == (3, "error", error)
    assert source.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


def test_usage_begins_at_nothing_for_each_subscription() -> None:
    from rxllm.events import UsageUpdated

    piped = from_iterable([UsageUpdated(Usage(1, 1))]).pipe(ops.usage())
    assert _all(piped) == _all(piped) == [Usage(1, 1)]


def _all(source: Observable[Any]) -> list[Any]:
    return list(Stream.of(source))
