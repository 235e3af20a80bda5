from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize("fn", [None, "print", 3])
def test_a_function_is_wanted(fn: Any) -> None:
    with pytest.raises(ValidationError, match="fn"):
        ops.tap(fn)


def test_classes_are_wanted() -> None:
    given: Any = "TextDelta"
    with pytest.raises(ValidationError, match="types"):
        ops.tap(print, given)
