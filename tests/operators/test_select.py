"""Some events of a stream: by class, deltas, raw chunks, text, thinking, tool calls and usage."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm import Fake, ValidationError, stream
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    PartAdded,
    RawChunk,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing.marbles import check
from rxllm.values import ProviderPart, Response, StepResult, StreamError, Thread, ToolCall, Usage

# only


VALUES = {"d": TextDelta("d"), "t": ThinkingDelta("t"), "c": TextCompleted("d")}


def test_filters_in_a_row_each_drop_their_own() -> None:
    check(
        lambda source: source.pipe(
            ops.only(TextDelta, ThinkingDelta), ops.filter_deltas(thinking=False), ops.only(TextDelta), ops.tap(repr)
        ),
        "-d-t-c-d-|",
        "^--------!",
        "-d-----d-|",
        **VALUES,
    )


def test_a_stream_after_a_filter_is_still_what_it_was_alone() -> None:
    texts = stream(Fake("Hi"), "Hello").pipe(ops.only(TextDelta))
    none = texts.pipe(ops.only(ThinkingDelta))
    assert none.to_list().run() == []
    assert [event.delta for event in texts.to_list().run()] == ["Hi"]
    assert [event.delta for event in texts.to_list().run()] == ["Hi"]


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


# filter_deltas


FILTER_DELTAS_VALUES = {
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
        **FILTER_DELTAS_VALUES,
    )


def test_text_deltas_are_dropped_and_their_completion_is_not() -> None:
    check(
        ops.filter_deltas(text=False),
        "hHtTsaA|",
        "^------!",
        "hH-TsaA|",
        **FILTER_DELTAS_VALUES,
    )


def test_tool_deltas_are_dropped_and_their_bounds_are_not() -> None:
    check(
        ops.filter_deltas(tool=False),
        "hHtTsaA|",
        "^------!",
        "hHtTs-A|",
        **FILTER_DELTAS_VALUES,
    )


def test_thinking_deltas_are_dropped_and_their_completion_is_not() -> None:
    check(
        ops.filter_deltas(thinking=False),
        "hHtTsaA|",
        "^------!",
        "-HtTsaA|",
        **FILTER_DELTAS_VALUES,
    )


def test_all_of_them() -> None:
    check(
        ops.filter_deltas(text=False, tool=False, thinking=False),
        "hHtTsaA|",
        "^------!",
        "-H-Ts-A|",
        **FILTER_DELTAS_VALUES,
    )


# include_raw_chunks


INCLUDE_RAW_CHUNKS_VALUES = {
    "r": RawChunk("chunk", {"x": 1}),
    "u": UsageUpdated(Usage(3)),
    "p": PartAdded(ProviderPart("a", {})),
    "d": TextDelta("Hi"),
}


def test_raw_chunks_are_dropped_and_usage_and_parts_never_are() -> None:
    check(
        ops.include_raw_chunks(),
        "-r-d-up|",
        "^------!",
        "---d-up|",
        **INCLUDE_RAW_CHUNKS_VALUES,
    )


def test_raw_chunks_pass_where_they_are_asked_for() -> None:
    check(
        ops.include_raw_chunks(True),
        "-r-d-u-|",
        "^------!",
        "-r-d-u-|",
        **INCLUDE_RAW_CHUNKS_VALUES,
    )


# text


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
        **{"a": TextDelta("a"), "r": StepRestarted("again", 2), "A": TextCompleted("ab"), "1": "a", "2": "b"},
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


# thinking


def test_the_deltas_come_as_strings_of_thinking() -> None:
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


def test_a_block_without_deltas_comes_whole_at_its_completion_of_thinking() -> None:
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


# tool_calls


def test_finished_calls_come_at_their_completion() -> None:
    check(
        ops.tool_calls(),
        "-s-d-c-|",
        "^------!",
        "-----C-|",
        s=ToolCallStarted("c1", "add"),
        d=ToolCallDelta("c1", '{"a":1}'),
        c=ToolCallCompleted("c1", "add", {"a": 1}, '{"a":1}'),
        C=ToolCall("c1", "add", {"a": 1}, '{"a":1}'),
    )


def test_the_providers_own_and_unfinished_calls_are_nobodys_to_answer() -> None:
    check(
        ops.tool_calls(),
        "-s-i-b-|",
        "^------!",
        "-----B-|",
        s=ToolCallCompleted("c1", "search", {}, "{}", {"server": True}),
        i=ToolCallCompleted("c2", "add", {}, '{"a', {"error": "incomplete"}),
        b=ToolCallCompleted("c3", "add", {}, "[]", {"error": "not_an_object"}),
        B=ToolCall("c3", "add", {}, "[]", {"error": "not_an_object"}),
    )


# usage


def step(usage: Usage) -> StepCompleted:
    return StepCompleted(StepResult(Thread(), Response(usage=usage)))


def updated(tokens: int) -> Any:
    return UsageUpdated(Usage(tokens))


def test_within_a_step_the_last_count_counts() -> None:
    check(
        ops.usage(),
        "-a-b-|",
        "^----!",
        "-1-2-|",
        **{"a": updated(3), "b": updated(5), "1": Usage(3), "2": Usage(5)},
    )


def test_over_steps_it_is_the_sum() -> None:
    check(
        ops.usage(),
        "-a-s-b-t-|",
        "^--------!",
        "-1---2---|",
        **{"a": updated(5), "s": step(Usage(5)), "b": updated(4), "t": step(Usage(4)), "1": Usage(5), "2": Usage(9)},
    )


def test_a_step_that_never_said_it_counts_at_its_end() -> None:
    check(
        ops.usage(),
        "-s-b-|",
        "^----!",
        "-1-2-|",
        **{"s": step(Usage(5)), "b": updated(4), "1": Usage(5), "2": Usage(9)},
    )


def test_a_raw_usage_of_an_adapter_counts_like_any_other() -> None:
    fake = Fake(["Hi", RawChunk("usage", {"input_tokens": 3}), RawChunk("usage", {"input_tokens": 3})])
    assert list(stream(fake, "Hi").pipe(ops.usage())) == [Usage(3)]


def test_an_unchanged_total_is_said_once() -> None:
    check(
        ops.usage(),
        "-a-a-|",
        "^----!",
        "-1---|",
        **{"a": updated(3), "1": Usage(3)},
    )


def test_a_restart_takes_back_what_its_step_has_cost() -> None:
    check(
        ops.usage(),
        "-a-s-b-r-c-|",
        "^----------!",
        "-1---2-1-3-|",
        a=updated(5),
        s=step(Usage(5)),
        b=updated(4),
        r=StepRestarted("timeout", 2),
        c=updated(1),
        **{"1": Usage(5), "2": Usage(9), "3": Usage(6)},
    )
