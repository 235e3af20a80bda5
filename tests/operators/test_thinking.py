from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import TextDelta, ThinkingCompleted, ThinkingDelta
from rxllm.testing.marbles import check


def test_the_deltas_come_as_strings() -> None:
    check(
        ops.thinking(),
        "-h-m-c-t-|",
        "^--------!",
        "-1-2-----|",
        h=ThinkingDelta("h"),
        m=ThinkingDelta("m"),
        c=ThinkingCompleted("hm"),
        t=TextDelta("Hi"),
        **{"1": "h", "2": "m"},
    )


def test_a_block_without_deltas_comes_whole_at_its_completion() -> None:
    check(
        ops.thinking(),
        "-c-|",
        "^--!",
        "-1-|",
        **{"c": ThinkingCompleted("hm"), "1": "hm"},
    )


def test_a_block_of_signature_alone_says_nothing() -> None:
    check(
        ops.thinking(),
        "-c-|",
        "^--!",
        "---|",
        c=ThinkingCompleted("", "sealed"),
    )
