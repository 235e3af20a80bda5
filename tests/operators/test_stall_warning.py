from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxllm import operators as ops
from rxllm.events import MessageCompleted, MessageStarted, RawChunk, TextDelta
from rxllm.testing.marbles import START, check, cold, record
from rxllm.values import Message, ValidationError

VALUES: dict[str, Any] = {
    "s": MessageStarted(Message("assistant")),
    "H": TextDelta("H"),
    "e": MessageCompleted(Message("assistant", "H"), "stop"),
    "p": RawChunk("ping", {}),
}


def warnings(source: str, after: float = 3) -> list[tuple[float, float, int]]:
    """When `fn` was called, and with what; the events pass as they are."""
    scheduler, told = TestScheduler(), list[tuple[float, float, int]]()
    warn = ops.stall_warning(after, lambda seconds, events: told.append((scheduler.clock - START, seconds, events)))
    played = cold(scheduler, source, VALUES)
    notes = record(scheduler, lambda: played.pipe(warn))
    assert notes == record(again := TestScheduler(), lambda: cold(again, source, VALUES))
    return told


def test_it_warns_once_per_stall_and_goes_on() -> None:
    assert warnings("-sH------H-H----H|") == [(5, 3, 2), (14, 3, 4)]


def test_a_stream_that_keeps_talking_is_not_warned_of() -> None:
    assert warnings("-sH-H-H-H-He|") == []


def test_signs_of_life_end_no_stall() -> None:
    assert warnings("-sHp-p-p-p-p-H|") == [(5, 3, 4)]


def test_the_wait_for_the_first_content_is_one() -> None:
    assert warnings("-s-------H|") == [(3, 3, 1)]
    assert warnings("-----H|") == [(3, 3, 0)]


def test_after_the_response_there_is_none() -> None:
    assert warnings("-sHe--------|") == []
    assert warnings("-sHe--------s----H|") == [(15, 3, 4)]


def test_an_exception_of_the_function_ends_the_stream() -> None:
    failure = KeyError("mine")

    def fail(seconds: float, events: int) -> None:
        raise failure

    check(
        ops.stall_warning(3, fail),
        "-sH------H|",
        "^----!",
        "-sH--X",
        X=failure,
        **VALUES,
    )


def test_dispose_leaves_nothing_behind() -> None:
    scheduler, told = TestScheduler(), list[Any]()
    source = cold(scheduler, "-sH-------", VALUES)
    record(scheduler, lambda: source.pipe(ops.stall_warning(3, lambda *given: told.append(given))), disposed=4)
    assert told == []


@pytest.mark.parametrize(
    ("after", "fn", "name"), [(0, print, "after"), (-1, print, "after"), ("3", print, "after"), (3, None, "fn")]
)
def test_what_makes_no_sense_is_refused(after: Any, fn: Any, name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.stall_warning(after, fn)
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", (name,))
