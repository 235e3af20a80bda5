from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from reactivex import Subject, never, of

from rxllm import ValidationError
from rxllm import operators as ops
from rxllm.testing.marbles import check


class Pairs:
    def __init__(self) -> None:
        self.held = ""

    def feed(self, item: str) -> Iterable[str]:
        self.held += item
        if len(self.held) == 2:
            yield self.held
            self.held = ""

    def close(self) -> Iterable[str]:
        return [self.held] if self.held else []


def test_items_are_fed_and_what_is_left_comes_at_the_end() -> None:
    check(
        ops.lift(Pairs),
        "-a-b-c-|",
        "^------!",
        "---P---(c|)",
        P="ab",
    )


def test_several_items_come_at_once() -> None:
    class Twice:
        def feed(self, item: str) -> list[str]:
            return [item, item]

        def close(self) -> list[str]:
            return []

    check(
        lambda source: ops.lift(Twice)(source).pipe(ops.lift(Pairs)),
        "-a--b--|",
        "^------!",
        "-A--B--|",
        A="aa",
        B="bb",
    )


def test_what_is_fed_while_an_item_is_delivered_comes_after_all_of_it() -> None:
    class Twice(Pairs):
        def feed(self, item: str) -> Iterable[str]:
            return [item, item]

    letters: Subject[str] = Subject()
    told: list[str] = []

    def hear(letter: str) -> None:
        told.append(letter)
        if len(told) == 1:
            letters.on_next("b")
            letters.on_completed()

    letters.pipe(ops.lift(Twice)).subscribe(hear, on_completed=lambda: told.append("|"))
    letters.on_next("a")
    assert told == ["a", "a", "b", "b", "|"]


def test_an_error_of_the_source_closes_nothing() -> None:
    check(
        ops.lift(Pairs),
        "-a-X",
        "^--!",
        "---X",
        X=ValueError("no"),
    )


def test_an_exception_of_feed_ends_the_stream() -> None:
    failure = ValueError("no")

    class Refuses(Pairs):
        def feed(self, item: str) -> Iterable[str]:
            yield item
            raise failure

    check(
        ops.lift(Refuses),
        "-a-b-|",
        "^!",
        "-X",
        X=failure,
    )


def test_an_exception_of_close_ends_the_stream() -> None:
    failure = ValueError("no")

    class Refuses(Pairs):
        def close(self) -> Iterable[str]:
            raise failure

    check(
        ops.lift(Refuses),
        "-a-b-|",
        "^----!",
        "---P-X",
        P="ab",
        X=failure,
    )


def test_an_exception_of_the_maker_is_the_streams_error() -> None:
    failure = ValueError("no")

    def make() -> Pairs:
        raise failure

    errors: list[Exception] = []
    never().pipe(ops.lift(make)).subscribe(on_error=errors.append)
    assert errors == [failure]


@pytest.mark.parametrize("make", [3, Pairs()])
def test_a_maker_is_wanted(make: Any) -> None:
    with pytest.raises(ValidationError, match="make"):
        ops.lift(make)


class Unclosed:
    def feed(self, item: str) -> Iterable[str]:
        return [item]


class Silent(Pairs):
    def feed(self, item: str) -> Any:
        return None


class Speechless(Pairs):
    def close(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Unclosed, "an object with feed.item. and close.., not <.*Unclosed"),
        (Silent, "Silent.feed.. must return an iterable, not None"),
        (Speechless, "Speechless.close.. must return an iterable, not None"),
    ],
)
def test_an_object_that_breaks_the_protocol_is_told(make: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        of("a").pipe(ops.lift(make)).run()
