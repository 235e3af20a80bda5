from __future__ import annotations

from typing import Any

import pytest
from reactivex import Observable, just, throw

from rxllm import ValidationError
from rxllm import operators as ops
from rxllm.telemetry import Trace
from rxllm.testing.marbles import check

NO = ValueError("no")


@pytest.mark.parametrize(
    ("source", "subscribed", "last"),
    [
        ("-a-b|", "^---!", Trace("end", 4.0, 2)),
        ("-a-bX", "^---!", Trace("error", 4.0, 2, NO)),
        ("-a-b-c|", "^---!", Trace("dispose", 4.0, 2)),
    ],
)
def test_it_tells_what_passes_and_when(source: str, subscribed: str, last: Trace) -> None:
    told: list[Trace] = []
    expected = source if last.kind != "dispose" else "-a-b"
    check(ops.trace(told.append), source, subscribed, expected, resubscribe=False, X=NO)
    assert told == [
        Trace("subscribe", 0.0, 0),
        Trace("next", 1.0, 0, "a"),
        Trace("next", 3.0, 1, "b"),
        last,
    ]


def test_two_of_them_tell_what_is_held_back_between() -> None:
    before: list[Trace] = []
    after: list[Trace] = []

    def operator(source: Any) -> Any:
        return source.pipe(ops.trace(before.append)).buffer_with_count(2).pipe(ops.trace(after.append))

    check(operator, "-a--b|", "^----!", "----c|", resubscribe=False, c=["a", "b"])
    assert [each.at for each in before if each.kind == "next"] == [1.0, 4.0]
    assert [each.at for each in after if each.kind == "next"] == [4.0]


@pytest.mark.parametrize(
    ("at", "subscribed", "expected"),
    [("subscribe", None, "X"), ("next", "^!", "-X"), ("end", "^--!", "-a-X")],
)
def test_an_exception_of_the_function_ends_the_stream(at: str, subscribed: str | None, expected: str) -> None:
    def refuse(told: Trace) -> None:
        if told.kind == at:
            raise NO

    if subscribed is None:
        seen: list[Exception] = []
        just(1).pipe(ops.trace(refuse)).subscribe(on_error=seen.append)
        assert seen == [NO]
    else:
        check(ops.trace(refuse), "-a-|", subscribed, expected, X=NO)


def test_after_its_exception_the_function_is_not_called_again() -> None:
    told: list[str] = []
    seen: list[Exception] = []

    def at_once(observer: Any, scheduler: Any = None) -> None:
        observer.on_next("a")
        observer.on_next("b")
        observer.on_completed()

    def refuse(trace: Trace) -> None:
        told.append(trace.kind)
        if trace.kind == "next":
            raise NO

    Observable[str](at_once).pipe(ops.trace(refuse)).subscribe(on_error=seen.append)  # type: ignore[arg-type]
    assert (told, seen) == (["subscribe", "next"], [NO])


def test_an_exception_at_the_error_takes_its_place() -> None:
    def refuse(trace: Trace) -> None:
        if trace.kind == "error":
            raise NO

    seen: list[Exception] = []
    throw(LookupError("first")).pipe(ops.trace(refuse)).subscribe(on_error=seen.append)
    assert seen == [NO]


@pytest.mark.parametrize("fn", [None, "print", 3])
def test_a_function_is_wanted(fn: Any) -> None:
    with pytest.raises(ValidationError, match="fn"):
        ops.trace(fn)
