from __future__ import annotations

from typing import Any

import pytest
from reactivex import Observable
from reactivex.disposable import Disposable, SerialDisposable
from reactivex.subject import Subject

from rxllm import ValidationError
from rxllm import operators as ops
from rxllm.events import TextCompleted, TextDelta
from rxllm.testing.marbles import check

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
