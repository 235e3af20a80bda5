from __future__ import annotations

from rxllm import operators as ops
from rxllm.events import (
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from rxllm.testing.marbles import check

VALUES = {
    "h": ThinkingDelta("hm"),
    "H": ThinkingCompleted("hm"),
    "t": TextDelta("Hi"),
    "T": TextCompleted("Hi"),
    "s": ToolCallStarted("c1", "add"),
    "a": ToolCallDelta("c1", "{}"),
    "A": ToolCallCompleted("c1", "add", {}, "{}"),
}


def test_everything_passes_by_default() -> None:
    check(
        ops.filter_deltas(),
        "hHtTsaA|",
        "^------!",
        "hHtTsaA|",
        **VALUES,
    )


def test_text_deltas_are_dropped_and_their_completion_is_not() -> None:
    check(
        ops.filter_deltas(text=False),
        "hHtTsaA|",
        "^------!",
        "hH-TsaA|",
        **VALUES,
    )


def test_tool_deltas_are_dropped_and_their_bounds_are_not() -> None:
    check(
        ops.filter_deltas(tool=False),
        "hHtTsaA|",
        "^------!",
        "hHtTs-A|",
        **VALUES,
    )


def test_thinking_deltas_are_dropped_and_their_completion_is_not() -> None:
    check(
        ops.filter_deltas(thinking=False),
        "hHtTsaA|",
        "^------!",
        "-HtTsaA|",
        **VALUES,
    )


def test_all_of_them() -> None:
    check(
        ops.filter_deltas(text=False, tool=False, thinking=False),
        "hHtTsaA|",
        "^------!",
        "-H-Ts-A|",
        **VALUES,
    )
