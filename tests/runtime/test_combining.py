"""Streams that are merged, zipped and combined by the functions beside `race`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import Fake, Stream, ValidationError
from rxllm import operators as ops
from rxllm.testing.marbles import START, cold, record

FUNCTIONS: dict[str, Callable[..., Stream[Any]]] = {
    "merge": rxllm.merge,
    "zip": rxllm.zip,
    "combine_latest": rxllm.combine_latest,
}


@pytest.mark.parametrize(
    ("name", "expected", "end"),
    [
        ("merge", [(1, 1), (2, 3), (4, 2), (5, 4)], 7),
        ("zip", [(2, (1, 3)), (5, (2, 4))], 6),
        ("combine_latest", [(2, (1, 3)), (4, (2, 3)), (5, (2, 4))], 7),
    ],
)
@pytest.mark.parametrize("are_streams", [True, False])
def test_items_are_combined(name: str, expected: list[Any], end: int, are_streams: bool) -> None:
    scheduler = TestScheduler()
    a = cold(scheduler, "-a--b-|", {"a": 1, "b": 2})
    b = cold(scheduler, "--c--d-|", {"c": 3, "d": 4})
    sources = [Stream.of(a), Stream.of(b)] if are_streams else [a, b]
    notes = record(scheduler, lambda: FUNCTIONS[name](*sources))
    assert [(tick, item) for tick, kind, item in notes if kind == "next"] == expected
    assert notes[-1][:2] == (end, "end")
    assert a.subscriptions == [ReactiveTest.subscribe(START, START + 6)]
    assert b.subscriptions == [ReactiveTest.subscribe(START, START + end)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_error_ends_it_and_disposes_the_others(name: str) -> None:
    scheduler, failure = TestScheduler(), ValueError("no")
    a, b = cold(scheduler, "-a-X", {"a": 1, "X": failure}), cold(scheduler, "--------c", {"c": 1})
    notes = record(scheduler, lambda: FUNCTIONS[name](a, b))
    assert notes[-1] == (3, "error", failure)
    assert b.subscriptions == [ReactiveTest.subscribe(START, START + 3)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_is_a_stream_that_can_be_iterated(name: str) -> None:
    answers = [rxllm.stream_generate(Fake(text), "Hi").pipe(ops.to_text()) for text in ("a", "b")]
    combined = FUNCTIONS[name](*answers)
    assert isinstance(combined, Stream)
    assert sorted(combined) == (["a", "b"] if name == "merge" else [("a", "b")])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("streams", [(), (reactivex.of(1), [2]), ([reactivex.of(1)],)])
def test_anything_but_streams_is_refused(name: str, streams: Any) -> None:
    with pytest.raises(ValidationError, match="streams"):
        FUNCTIONS[name](*streams)


def test_they_resolve_but_are_not_listed() -> None:
    assert FUNCTIONS.keys().isdisjoint(dir(rxllm))
    assert FUNCTIONS.keys().isdisjoint(rxllm.__all__)


def test_operators_of_rxjs_are_answered() -> None:
    source: Any = Stream.of(reactivex.of(1))
    with pytest.raises(
        AttributeError, match=r"write stream\.map\(fn\)\.exclusive\(\) .*\.pipe\(ops\.keep_latest\(\), "
    ):
        source.exhaust_map(str)
    with pytest.raises(AttributeError, match=r"write stream\.flat_map\(fn\)"):
        source.merge_map(str)
