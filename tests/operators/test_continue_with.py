from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import ReactiveTest, TestScheduler

from rxllm import Fake, stream_generate
from rxllm import operators as ops
from rxllm.testing.marbles import START, check, cold, record


def chain(scheduler: TestScheduler, *marbles: str) -> list[Any]:
    return [cold(scheduler, each, {"X": ValueError("no")}) for each in marbles]


def subscriptions(source: Any) -> list[tuple[int, int]]:
    return [(each.subscribe - START, each.unsubscribe - START) for each in source.subscriptions]


def test_one_stream_follows_another_until_there_is_none() -> None:
    scheduler = TestScheduler()
    first, second, third = chain(scheduler, "-a-|", "-b-|", "-c|")
    following = {"a": second, "b": third}
    notes = record(scheduler, lambda: first.pipe(ops.continue_with(following.get)))
    assert notes == [(1, "next", "a"), (4, "next", "b"), (7, "next", "c"), (8, "end", None)]
    assert [subscriptions(each) for each in (first, second, third)] == [[(0, 3)], [(3, 6)], [(6, 8)]]


def test_it_is_asked_with_the_last_item_of_each() -> None:
    scheduler = TestScheduler()
    first, second = chain(scheduler, "-ab|", "-c|")
    asked: list[str] = []
    record(scheduler, lambda: first.pipe(ops.continue_with(lambda last: asked.append(last) or {"b": second}.get(last))))
    assert asked == ["b", "c"]


def test_an_empty_stream_ends() -> None:
    check(
        ops.continue_with(lambda last: None),
        "---|",
        "^--!",
        "---|",
    )


def test_none_is_an_item_like_any_other() -> None:
    asked: list[Any] = []
    check(
        ops.continue_with(asked.append),
        "-n-|",
        "^--!",
        "-n-|",
        resubscribe=False,
        n=None,
    )
    assert asked == [None]


def test_an_error_of_a_later_stream_ends_all() -> None:
    scheduler = TestScheduler()
    first, second = chain(scheduler, "-a-|", "-b-X")
    notes = record(scheduler, lambda: first.pipe(ops.continue_with(lambda last: second)))
    assert [(tick, kind) for tick, kind, _ in notes] == [(1, "next"), (4, "next"), (6, "error")]
    assert second.subscriptions == [ReactiveTest.subscribe(START + 3, START + 6)]


def test_an_exception_of_the_function_is_the_streams_error() -> None:
    failure = ValueError("no")

    def refuse(last: Any) -> None:
        raise failure

    check(
        ops.continue_with(refuse),
        "-a-|",
        "^--!",
        "-a-X",
        X=failure,
    )


def test_dispose_releases_the_one_that_runs() -> None:
    scheduler = TestScheduler()
    first, second = chain(scheduler, "-a-|", "-b-c-|")
    record(scheduler, lambda: first.pipe(ops.continue_with(lambda last: second)), disposed=5)
    assert (subscriptions(first), subscriptions(second)) == ([(0, 3)], [(3, 5)])


def test_a_thousand_streams_need_no_thousand_frames() -> None:
    scheduler = TestScheduler()
    notes = record(
        scheduler,
        lambda: cold(scheduler, "0|", {"0": 0}).pipe(
            ops.continue_with(lambda last: cold(scheduler, "n|", {"n": last + 1}) if last < 999 else None)
        ),
        disposed=5000,
    )
    assert [what for _, kind, what in notes if kind == "next"] == list(range(1000))


def test_what_is_no_stream_is_said_to_be_none() -> None:
    with pytest.raises(TypeError, match="must be an Observable or None, not"):
        stream_generate(Fake("x"), "Hi").pipe(ops.continue_with(lambda last: 3)).run()  # type: ignore[arg-type]
