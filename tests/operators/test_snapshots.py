from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, from_iterable
from reactivex.testing import TestScheduler

from rxllm import Fake, Response, ValidationError, stream_generate
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    RawChunk,
    TextCompleted,
    TextDelta,
    UsageUpdated,
)
from rxllm.testing import strategies
from rxllm.testing.marbles import Note, cold, record
from rxllm.testing.virtual_time import Clock
from rxllm.values import Message, StreamError, Usage
from tests.operators.scripts import said, through

VALUES: dict[str, Any] = {
    **{letter: TextDelta(letter) for letter in "abcdef"},
    "T": TextCompleted("ab"),
    "M": MessageCompleted(Message("assistant", "ab"), "stop"),
    "r": RawChunk("frame", {}),
    "X": ValueError("no"),
    "E": ErrorEvent(StreamError("truncated")),
}


def texts(marbles: str, every: float = 4.0, disposed: int | None = None) -> list[Note]:
    """When which text is shown."""
    scheduler = TestScheduler()
    told = record(scheduler, lambda: cold(scheduler, marbles, VALUES).pipe(ops.snapshots(every)), disposed)
    return [(at, kind, what.output_text if kind == "next" else what) for at, kind, what in told]


def test_the_first_comes_at_once_and_then_one_in_so_many_seconds() -> None:
    assert texts("-abcdef----|", 3.0) == [
        (1, "next", "a"),
        (4, "next", "abcd"),
        (7, "next", "abcdef"),
        (11, "end", None),
    ]


def test_the_last_one_comes_with_the_end() -> None:
    assert texts("-ab|") == [(1, "next", "a"), (3, "next", "ab"), (3, "end", None)]


def test_while_nothing_changes_nothing_comes_and_no_timer_runs() -> None:
    assert texts("-a-----r------b-|") == [(1, "next", "a"), (14, "next", "ab"), (16, "end", None)]
    clock, events = Clock(), Subject[Event]()
    events.pipe(ops.snapshots(1.0)).subscribe(scheduler=clock)
    events.on_next(TextDelta("a"))
    assert clock.waiting == 1
    clock.advance_to(10.0)
    assert clock.waiting == 0


def test_nothing_comes_after_a_dispose() -> None:
    assert texts("-ab------|", disposed=3) == [(1, "next", "a")]


def test_an_error_follows_what_came() -> None:
    assert texts("-ab-X") == [(1, "next", "a"), (4, "next", "ab"), (4, "error", VALUES["X"])]


def test_a_streamed_error_is_in_the_response() -> None:
    told = through(ops.snapshots(), [TextDelta("a"), VALUES["E"]])
    assert told[-1].error == StreamError("truncated")
    assert (told[-1].output_text, told[-1].finish_reason) == ("a", "error")


def test_without_a_period_there_is_one_for_each_change() -> None:
    assert texts("-abr-c|", 0) == [(1, "next", "a"), (2, "next", "ab"), (5, "next", "abc"), (6, "end", None)]


def test_an_empty_stream_gives_what_to_response_gives() -> None:
    assert through(ops.snapshots(), []) == through(ops.to_response(), []) == [Response(Message("assistant"))]


@given(st.lists(strategies.lawful_events, max_size=2), st.sampled_from([0.0, 0.1]))
def test_the_last_one_is_the_response(responses: list[list[Event]], every: float) -> None:
    events = [event for response in responses for event in response]
    assert through(ops.snapshots(every), events)[-1:] == through(ops.to_response(), events)


def test_a_raw_usage_with_unknown_names_is_the_stream_s_error() -> None:
    errors: list[Exception] = []
    from_iterable([RawChunk("usage", {"nonsense": 1})]).pipe(ops.snapshots()).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [TypeError]


def test_a_subscriber_s_exception_comes_back_once() -> None:
    scheduler, errors, told, failure = TestScheduler(), list[Exception](), list[Any](), ValueError("no")

    def refuse(response: Any) -> None:
        told.append(response)
        if len(told) == 2:
            raise failure

    events: Subject[Event] = Subject()
    events.pipe(ops.snapshots(1.0)).subscribe(refuse, errors.append, scheduler=scheduler)
    for letter in "abc":
        events.on_next(TextDelta(letter))
    scheduler.advance_by(5.0)
    assert errors == [failure]
    assert [response.output_text for response in told] == ["a", "abc"]
    assert not events.observers


def test_the_last_one_follows_a_subscriber_s_exception_that_the_source_has_survived() -> None:
    seen: list[Any] = []

    def refuse_first(response: Any) -> None:
        seen.append(response.output_text)
        if len(seen) == 1:
            raise ValueError("no")

    events: Subject[Event] = Subject()
    piped = events.pipe(ops.snapshots(1.0))
    piped.subscribe(refuse_first, on_completed=lambda: seen.append("|"), scheduler=TestScheduler())
    with pytest.raises(ValueError, match="no"):
        events.on_next(TextDelta("a"))
    events.on_next(TextDelta("b"))
    events.on_completed()
    assert seen == ["a", "ab", "|"]


def test_it_counts_tokens_too() -> None:
    told = through(ops.snapshots(0), [UsageUpdated(Usage(3, 1)), UsageUpdated(Usage(3, 2)), *said(["Hi"])])
    assert [response.usage.total for response in told[:2]] == [4, 5]


def test_on_a_loop_no_timer_is_left() -> None:
    async def main() -> list[Response[Any]]:
        told = await stream_generate(Fake(["a", ("delay", 0.03), "b"]), "Hi").pipe(ops.snapshots(0.02)).to_list()
        loop = asyncio.get_running_loop()
        assert not [each for each in getattr(loop, "_scheduled", ()) if not each.cancelled()]
        return told

    assert [response.output_text for response in asyncio.run(main())] == ["", "a", "ab"]


@pytest.mark.parametrize("every", [-1, float("nan"), "1", None, False])
def test_a_period_that_makes_no_sense_is_refused(every: Any) -> None:
    with pytest.raises(ValidationError, match="every") as refusal:
        ops.snapshots(every)
    assert refusal.value.reason == "invalid_option"


def test_an_end_from_inside_on_next_still_brings_the_last_one() -> None:
    events: Subject[Event] = Subject()
    told: list[Any] = []

    def hear(response: Response[Any]) -> None:
        told.append(response.output_text)
        if len(told) == 1:
            events.on_next(TextDelta("b"))
            events.on_completed()

    events.pipe(ops.snapshots(1.0)).subscribe(hear, on_completed=lambda: told.append("|"), scheduler=TestScheduler())
    events.on_next(TextDelta("a"))
    assert told == ["a", "ab", "|"]


def test_the_timer_is_gone_when_the_end_is_told() -> None:
    clock, waiting = Clock(), list[int]()
    events: Subject[Event] = Subject()
    piped = events.pipe(ops.snapshots(1.0))
    piped.subscribe(on_completed=lambda: waiting.append(clock.waiting), scheduler=clock)
    events.on_next(TextDelta("a"))
    assert clock.waiting == 1
    events.on_completed()
    assert waiting == [0]
