from __future__ import annotations

from typing import Any

import pytest
from reactivex import from_iterable, just, throw

from rxllm import ValidationError
from rxllm import operators as ops
from rxllm.events import TextCompleted, TextDelta
from rxllm.testing.marbles import check

VALUES: dict[str, Any] = {"d": TextDelta("d"), "c": TextCompleted("dd")}


@pytest.mark.parametrize(
    ("source", "subscribed", "counts"),
    [
        ("-d-d-c|", "^-----!", {"TextDelta": 2, "TextCompleted": 1}),
        ("-d-d-X", "^----!", {"TextDelta": 2}),
        ("-|", "^!", {}),
    ],
)
def test_it_tells_once_when_the_stream_is_over(source: str, subscribed: str, counts: dict[str, int]) -> None:
    told: list[Any] = []
    check(ops.tally(told.append), source, subscribed, source, resubscribe=False, X=ValueError("no"), **VALUES)
    assert told == [counts]


def test_a_dispose_is_an_end_too_and_each_subscription_counts_anew() -> None:
    told: list[Any] = []
    check(ops.tally(told.append), "-d-d-c|", "^--!", "-d-", **VALUES)
    assert told == [{"TextDelta": 1}] * 2


def test_classes_of_one_name_are_one() -> None:
    told: list[Any] = []
    from_iterable([type("Pair", (), {})(), type("Pair", (), {})()]).pipe(ops.tally(told.append)).subscribe()
    assert told == [{"Pair": 2}]


def test_it_tells_before_the_observer_hears_of_the_end() -> None:
    order: list[str] = []
    just(1).pipe(ops.tally(lambda counts: order.append("count"))).subscribe(on_completed=lambda: order.append("end"))
    assert order == ["count", "end"]


def test_an_exception_of_the_function_is_the_stream_s() -> None:
    mine, failure = LookupError("mine"), ValueError("no")

    def refuse(counts: Any) -> None:
        raise mine

    check(ops.tally(refuse), "-d-|", "^--!", "-d-X", resubscribe=False, X=mine, **VALUES)
    seen: list[Exception] = []
    throw(failure).pipe(ops.tally(refuse)).subscribe(on_error=seen.append)
    assert seen == [mine]
    assert mine.__cause__ is failure


@pytest.mark.parametrize("fn", [None, "print", 3])
def test_a_function_is_wanted(fn: Any) -> None:
    with pytest.raises(ValidationError, match="fn"):
        ops.tally(fn)
