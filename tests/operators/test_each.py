"""Operators that look at one item after another, one piped behind the other: no stage between, and no difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable, of
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, RawChunk, TextCompleted, TextDelta, ThinkingDelta
from rxllm.runtime import Stream
from rxllm.testing.marbles import check
from rxllm.values import StreamError

FAILURE = ValueError("no")
ITEMS: list[Event] = [
    TextDelta("a"),
    TextDelta("x"),
    ThinkingDelta("t"),
    TextCompleted("a"),
    RawChunk("chunk", {}),
    RawChunk("usage", {"input_tokens": 1}),
    ErrorEvent(StreamError("truncated")),
]

Seen = list[tuple[int, Event]]
Link = Callable[[Seen, int], Any]


def tapped(seen: Seen, place: int) -> Any:
    return ops.tap(lambda item: seen.append((place, item)))


def picky(seen: Seen, place: int) -> Any:
    def look(item: TextDelta) -> None:
        seen.append((place, item))
        if item.delta == "x":
            raise FAILURE

    return ops.tap(look, TextDelta)


LINKS: list[Link] = [
    tapped,
    picky,
    lambda seen, place: ops.only(TextDelta, RawChunk, ErrorEvent),
    lambda seen, place: ops.filter_deltas(thinking=False),
    lambda seen, place: ops.include_raw_chunks(),
    lambda seen, place: ops.raise_errors(),
    lambda seen, place: lambda source: source.map(lambda item: item),  # reactivex's own, in between
]


def apart(source: Observable[Any]) -> Observable[Any]:
    """The same, as a stage that no operator looks through."""
    return Stream(lambda observer, scheduler=None: source.subscribe(observer, scheduler=scheduler))


Told = tuple[list[Any], Seen, list[Any]]


def told(links: list[Link], notes: list[Any], between: Callable[[Any], Any], disposed: int) -> Told:
    """What a subscriber hears, what the functions in the pipe saw, and from when to when the source was used."""
    scheduler = TestScheduler()
    source: Any = scheduler.create_cold_observable(notes)
    seen: Seen = []
    stream: Any = Stream.of(source)
    for place, link in enumerate(links):
        stream = between(link(seen, place)(stream))
    results: Any = scheduler.start(lambda: stream, disposed=disposed)
    used = [(each.subscribe, each.unsubscribe) for each in source.subscriptions]
    return results.messages, seen, used


@st.composite
def sources(draw: st.DrawFn) -> list[Any]:
    items = draw(st.lists(st.sampled_from(ITEMS), max_size=8))
    notes: list[Any] = [ReactiveTest.on_next(10.0 * (at + 1), item) for at, item in enumerate(items)]
    match draw(st.sampled_from(["open", "end", "error"])):
        case "end":
            notes.append(ReactiveTest.on_completed(10.0 * (len(items) + 1)))
        case "error":
            notes.append(ReactiveTest.on_error(10.0 * (len(items) + 1), FAILURE))
        case _:
            pass
    return notes


@given(st.lists(st.sampled_from(LINKS), min_size=1, max_size=5), sources(), st.integers(201, 320))
def test_behind_one_another_they_do_what_they_do_apart(links: list[Link], notes: list[Any], disposed: int) -> None:
    assert told(links, notes, lambda stream: stream, disposed) == told(links, notes, apart, disposed)


def test_a_pipe_of_several_uses_its_source_once_and_lets_it_go() -> None:
    check(
        lambda source: source.pipe(ops.tap(lambda item: None), ops.only(TextDelta), ops.include_raw_chunks()),
        "-d-t-d-|",
        "^---!   ",
        "-d------",
        d=TextDelta("d"),
        t=TextCompleted("d"),
    )


def test_what_fails_in_front_is_not_seen_behind() -> None:
    seen: list[Any] = []

    def refuse(item: Any) -> None:
        raise FAILURE

    check(
        lambda source: source.pipe(ops.tap(refuse), ops.tap(seen.append)),
        "-d-d-|",
        "^!",
        "-X",
        d=TextDelta("d"),
        X=FAILURE,
    )
    assert seen == []


def test_every_subscription_goes_through_the_same_pipe() -> None:
    seen: list[Any] = []
    stream = Stream.of(of(TextDelta("a"))).pipe(ops.tap(seen.append), ops.only(TextDelta))
    assert [*stream] == [*stream] == [TextDelta("a")]
    assert seen == [TextDelta("a")] * 2


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_subscribers_exception_is_its_own(position: int) -> None:
    """It reaches whoever emits, and the pipe is closed."""
    scheduler = TestScheduler()
    source: Any = scheduler.create_hot_observable(ReactiveTest.on_next(210.0, TextDelta("a")))
    pipe: list[Any] = [ops.only(TextDelta), ops.include_raw_chunks(), ops.filter_deltas(thinking=False)]
    errors: list[Exception] = []

    def raise_(item: Any) -> None:
        raise FAILURE

    stream = Stream.of(source).pipe(*pipe[: position + 1])
    scheduler.schedule_absolute(200.0, lambda *_: stream.subscribe(raise_, errors.append))
    with pytest.raises(ValueError, match="no"):
        scheduler.start()
    assert errors == []
