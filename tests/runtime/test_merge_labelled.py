from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from reactivex import Subject, from_iterable, just
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, StreamError, ValidationError
from rxllm.events import ErrorEvent
from rxllm.runtime import Stream
from rxllm.testing.marbles import START, cold, record
from rxllm.values import Labelled
from tests.operators.threads import together
from tests.waiting import wait_until

DOWN = AdapterError("provider_unavailable")


def merged(
    disposed: int | None = None, concurrency: int | None = None, **streams: str
) -> tuple[list[Any], dict[str, list[tuple[int, int]]]]:
    scheduler = TestScheduler()
    sources = {label: cold(scheduler, marbles, {"X": DOWN}) for label, marbles in streams.items()}
    told = record(scheduler, lambda: rxllm.merge_labelled(sources, concurrency=concurrency), disposed)
    used = {
        label: [(int(each.subscribe) - START, int(each.unsubscribe) - START) for each in source.subscriptions]
        for label, source in sources.items()
    }
    return told, used


def test_items_come_as_they_are_said_with_their_label() -> None:
    told, used = merged(
        a="-1---2|",
        b="--3-4---|",
    )
    assert told == [
        (1, "next", Labelled("a", "1")),
        (2, "next", Labelled("b", "3")),
        (4, "next", Labelled("b", "4")),
        (5, "next", Labelled("a", "2")),
        (8, "end", None),
    ]
    assert used == {"a": [(0, 6)], "b": [(0, 8)]}


def test_the_failure_of_one_is_its_last_item_and_the_others_go_on() -> None:
    told, _ = merged(a="-1-X", b="-----2|")
    assert told == [
        (1, "next", Labelled("a", "1")),
        (3, "next", Labelled("a", ErrorEvent(DOWN))),
        (5, "next", Labelled("b", "2")),
        (6, "end", None),
    ]


def test_dispose_reaches_all() -> None:
    assert merged(3, a="----1|", b="-----2|") == ([], {"a": [(0, 3)], "b": [(0, 3)]})


def test_a_plain_exception_is_told_as_a_typed_error_with_its_cause() -> None:
    failure = ValueError("no")
    (told,) = rxllm.merge_labelled({"a": from_iterable([1]).map(_raise(failure))})
    assert isinstance(told.item, ErrorEvent)
    assert told.item.error == StreamError("unknown", "ValueError: no")
    assert told.item.error.__cause__ is failure


def _raise(failure: Exception) -> Any:
    def fail(item: Any) -> Any:
        raise failure

    return fail


def test_a_subscriber_s_exception_is_its_own() -> None:
    failure = RuntimeError("mine")
    seen: list[Any] = []
    rxllm.merge_labelled({"a": just(1), "b": just(2)}).subscribe(_raise(failure), seen.append)
    assert seen == [failure]


def test_only_so_many_at_a_time() -> None:
    told, used = merged(a="--1|", b="--2|", c="-3|", concurrency=2)
    assert [(tick, what.label) for tick, kind, what in told if kind == "next"] == [(2, "a"), (2, "b"), (4, "c")]
    assert used == {"a": [(0, 3)], "b": [(0, 3)], "c": [(3, 5)]}


def test_a_subscriber_s_exception_begins_no_other_stream() -> None:
    begun: list[str] = []

    def at_once(label: str) -> Stream[str]:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            begun.append(label)
            return just(label).subscribe(observer, scheduler=scheduler)

        return Stream(subscribe)

    streams = {label: at_once(label) for label in "abc"}
    seen: list[Any] = []
    failure = RuntimeError("mine")
    rxllm.merge_labelled(streams, concurrency=1).subscribe(_raise(failure), seen.append)
    assert (seen, begun) == ([failure], ["a"])


def test_streams_of_several_threads_are_heard_one_at_a_time() -> None:
    """As `reactivex.interval` is of a thread of its own, beside a model that is of a loop's."""
    subjects = {str(k): Subject[int]() for k in range(4)}
    seen: list[str] = []
    inside: list[str] = []
    overlaps: list[int] = []
    begun: list[Subject[int]] = []

    def say(subject: Subject[int]) -> None:
        begun.append(subject)
        for number in range(20):
            subject.on_next(number)
        subject.on_completed()

    def hear(item: Labelled[Any]) -> None:
        inside.append(item.label)
        wait_until(lambda: len(begun) == 4)
        overlaps.append(len(inside))
        seen.append(inside.pop())

    ended: list[str] = []
    rxllm.merge_labelled(subjects).subscribe(hear, on_completed=partial(ended.append, "end"))
    together(*(partial(say, each) for each in subjects.values()))
    assert (len(seen), max(overlaps), ended) == (4 * 20, 1, ["end"])


@pytest.mark.parametrize("streams", [{}, [just(1)], {"a": 3}])
def test_other_things_than_streams_are_refused(streams: Any) -> None:
    with pytest.raises(ValidationError, match="streams"):
        rxllm.merge_labelled(streams)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
def test_a_bound_that_is_none_is_refused(concurrency: Any) -> None:
    with pytest.raises(ValidationError, match="concurrency"):
        rxllm.merge_labelled({"a": just(1)}, concurrency=concurrency)


def test_an_item_and_its_label_are_unpacked() -> None:
    assert [(label, item) for label, item in rxllm.merge_labelled(a=just(1))] == [("a", 1)]
