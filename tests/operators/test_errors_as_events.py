from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import ErrorEvent, TextDelta
from rxllm.testing.marbles import check
from rxllm.values import StreamError

ERROR = StreamError("truncated")


def test_a_raised_error_becomes_the_last_event() -> None:
    check(
        ops.errors_as_events(),
        "-d-X",
        "^--!",
        "-d-(e|)",
        d=TextDelta("Hi"),
        e=ErrorEvent(ERROR),
        X=ERROR,
    )


def test_another_exception_stays_one() -> None:
    check(
        ops.errors_as_events(),
        "-d-X",
        "^--!",
        "-d-X",
        d=TextDelta("Hi"),
        X=KeyError("a bug is no part of a stream"),
    )
