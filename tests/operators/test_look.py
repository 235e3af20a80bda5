"""Look at events without changing them: `tap` and `trace`."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex import Observable, just, throw
from reactivex.disposable import Disposable, SerialDisposable
from reactivex.subject import Subject

from rxllm import ValidationError
from rxllm import operators as ops
from rxllm.events import TextCompleted, TextDelta
from rxllm.telemetry import Trace
from rxllm.testing.marbles import check
from rxllm.values import Timed

# tap


VALUES: dict[str, Any] = {"d": TextDelta("d"), "c": TextCompleted("d")}


def test_every_item_is_seen_before_it_passes() -> None:
    seen: list[Any] = []
    check(
        ops.tap(seen.append),
        "-d-c-|",
        "^----!",
        "-d-c-|",
        resubscribe=False,
        **VALUES,
    )
    assert seen == [VALUES["d"], VALUES["c"]]


def test_only_the_named_classes_are_seen() -> None:
    seen: list[Any] = []
    check(
        ops.tap(seen.append, TextCompleted),
        "-d-c-|",
        "^----!",
        "-d-c-|",
        resubscribe=False,
        **VALUES,
    )
    assert seen == [VALUES["c"]]


def test_an_exception_of_the_function_ends_the_stream_and_releases_the_source() -> None:
    failure = ValueError("no")

    def refuse(item: Any) -> None:
        raise failure

    check(
        ops.tap(refuse, TextCompleted),
        "-d-c-d-|",
        "^--!",
        "-d-X",
        X=failure,
        **VALUES,
    )


@pytest.mark.parametrize("leave", ["dispose", "end", "error"])
def test_what_a_function_ends_is_seen_by_none_behind_it(leave: str) -> None:
    source: Subject[Any] = Subject()
    subscription = SerialDisposable()
    seen: list[Any] = []

    def end(item: Any) -> None:
        match leave:
            case "dispose":
                subscription.dispose()
            case "end":
                source.on_completed()
            case _:
                source.on_error(ValueError("no"))

    piped = source.pipe(ops.tap(end), ops.only(TextDelta), ops.tap(seen.append))
    subscription.disposable = piped.subscribe(seen.append, lambda error: None)
    source.on_next(VALUES["d"])
    assert seen == []


def test_what_fails_in_front_is_seen_by_none_behind_it() -> None:
    """Not even where the source cannot be stopped yet."""

    def all_at_once(observer: Any, scheduler: Any = None) -> Disposable:
        for _ in range(3):
            observer.on_next(VALUES["d"])
        return Disposable()

    def refuse(item: Any) -> None:
        raise ValueError("no")

    seen: list[Any] = []
    errors: list[Exception] = []
    Observable(all_at_once).pipe(ops.tap(refuse), ops.tap(seen.append)).subscribe(seen.append, errors.append)
    assert (seen, len(errors)) == ([], 1)


@pytest.mark.parametrize("fn", [None, "print", 3])
def test_a_function_is_wanted(fn: Any) -> None:
    with pytest.raises(ValidationError, match="fn"):
        ops.tap(fn)


def test_classes_are_wanted() -> None:
    given: Any = "TextDelta"
    with pytest.raises(ValidationError, match="types"):
        ops.tap(print, given)


# timed


def test_each_item_has_the_seconds_since_the_subscription() -> None:
    values = {"A": Timed(1.0, "a"), "B": Timed(3.0, "b")}
    check(ops.timed(), "-a-b|", "^---!", "-A-B|", **values)
    check(ops.timed(), "-a-bX", "^---!", "-A-BX", X=ValueError("no"), **values)


# trace


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
def test_a_function_is_wanted_of_trace(fn: Any) -> None:
    with pytest.raises(ValidationError, match="fn"):
        ops.trace(fn)
