from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import ErrorEvent, TextDelta
from rxllm.testing.marbles import check
from rxllm.values import StreamError

ERROR = StreamError("truncated")


def test_a_streamed_error_is_raised_and_releases_the_source() -> None:
    check(
        ops.raise_errors(),
        "-d-e-d-|",
        "^--!",
        "-d-X",
        d=TextDelta("Hi"),
        e=ErrorEvent(ERROR),
        X=ERROR,
    )


def test_the_two_error_operators_undo_one_another() -> None:
    check(
        lambda source: source.pipe(ops.raise_errors(), ops.errors_as_events()),
        "-d-e|",
        "^--!",
        "-d-(e|)",
        d=TextDelta("Hi"),
        e=ErrorEvent(ERROR),
    )
