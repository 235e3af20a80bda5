from __future__ import annotations

from typing import Any

import pytest

from rxllm import ValidationError
from rxllm import operators as ops
from rxllm.events import TextCompleted, TextDelta, ThinkingDelta
from rxllm.testing.marbles import check

VALUES = {"d": TextDelta("d"), "t": ThinkingDelta("t"), "c": TextCompleted("d")}


def test_one_class_is_kept() -> None:
    check(
        ops.only(TextDelta),
        "-d-t-c-|",
        "^------!",
        "-d-----|",
        **VALUES,
    )


def test_several_classes_are_kept() -> None:
    check(
        ops.only(TextDelta, TextCompleted),
        "-d-t-c-|",
        "^------!",
        "-d---c-|",
        **VALUES,
    )


@pytest.mark.parametrize("types", [(), ("TextDelta",), (TextDelta, 3)])
def test_what_is_no_class_is_refused(types: Any) -> None:
    with pytest.raises(ValidationError, match="types"):
        ops.only(*types)


def test_an_error_passes() -> None:
    check(
        ops.only(TextDelta),
        "-d-t-X",
        "^----!",
        "-d---X",
        X=ValueError("no"),
        **VALUES,
    )


def test_dispose_releases_the_source() -> None:
    check(
        ops.only(TextDelta),
        "-d-d-d-|",
        "^---!   ",
        "-d-d----",
        **VALUES,
    )
