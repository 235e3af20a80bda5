from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import ErrorEvent, StepRestarted, TextCompleted, TextDelta, ThinkingDelta
from rxllm.testing.marbles import check
from rxllm.values import StreamError


def test_the_deltas_come_as_strings() -> None:
    check(
        ops.text(),
        "-h-H-i-c-|",
        "^--------!",
        "---1-2---|",
        h=ThinkingDelta("hm"),
        H=TextDelta("H"),
        i=TextDelta("i"),
        c=TextCompleted("Hi"),
        **{"1": "H", "2": "i"},
    )


def test_a_block_without_deltas_comes_whole_at_its_completion() -> None:
    check(
        lambda source: source.pipe(ops.filter_deltas(text=False), ops.text()),
        "-H-c-|",
        "^----!",
        "---1-|",
        **{"H": TextDelta("Hi"), "c": TextCompleted("Hi"), "1": "Hi"},
    )


def test_blocks_are_told_apart_by_their_ids() -> None:
    check(
        ops.text(),
        "-a-b-B-A-c-|",
        "^----------!",
        "-1-2-----3-|",
        a=TextDelta("a", "1"),
        b=TextDelta("b", "2"),
        A=TextCompleted("a", "1"),
        **{"B": TextCompleted("b", "2"), "c": TextCompleted("whole", "1"), "1": "a", "2": "b", "3": "whole"},
    )


def test_a_completion_without_an_id_is_the_open_blocks() -> None:
    check(
        ops.text(),
        "-a-A-|",
        "^----!",
        "-1---|",
        **{"a": TextDelta("a", "1"), "A": TextCompleted("a"), "1": "a"},
    )


def test_a_restart_forgets_what_was_open() -> None:
    check(
        ops.text(),
        "-a-r-A-|",
        "^------!",
        "-1---2-|",
        **{"a": TextDelta("a"), "r": StepRestarted("again", 2), "A": TextCompleted("b"), "1": "a", "2": "b"},
    )


def test_a_streamed_error_is_raised() -> None:
    error = StreamError("truncated")
    check(
        ops.text(),
        "-a-e|",
        "^--!",
        "-1-X",
        **{"a": TextDelta("a"), "e": ErrorEvent(error), "1": "a", "X": error},
    )
