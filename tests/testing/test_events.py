from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing import events
from rxllm.testing.event_checks import played
from rxllm.values import AdapterError, Message, StreamError, ToolCall, Usage, ValidationError

CALL = ToolCall("c1", "add", {"x": 1}, '{"x":1}')


def test_text_is_a_whole_response() -> None:
    assert events("Hel", "lo") == [
        MessageStarted(Message("assistant")),
        TextDelta("Hel", "block_0"),
        TextDelta("lo", "block_0"),
        TextCompleted("Hello", "block_0"),
        MessageCompleted(Message("assistant", "Hello"), "stop"),
    ]


def test_the_keywords_come_in_the_usual_order() -> None:
    lawful = events("Hi", thinking=["h", "m"], tool_calls=[CALL], usage=Usage(3, 2))
    assert [type(event) for event in lawful] == [
        MessageStarted,
        ThinkingDelta,
        ThinkingDelta,
        ThinkingCompleted,
        TextDelta,
        TextCompleted,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallCompleted,
        UsageUpdated,
        MessageCompleted,
    ]
    assert lawful[-1].message.tool_calls == (CALL,)
    assert lawful[-1].finish_reason == "tool_calls"


def test_thinking_in_a_string_is_one_delta() -> None:
    assert events(thinking="hm")[1:3] == [ThinkingDelta("hm", "block_0"), ThinkingCompleted("hm", id="block_0")]


def test_pieces_may_come_in_any_order_and_events_as_they_are() -> None:
    lawful = events("a", CALL, ("thinking", "hm"), SourceAdded({"url": "u"}), "b", finish_reason="length")
    assert [type(event) for event in lawful if type(event).__name__.endswith("Completed")] == [
        TextCompleted,
        ToolCallCompleted,
        ThinkingCompleted,
        TextCompleted,
        MessageCompleted,
    ]
    assert SourceAdded({"url": "u"}) in lawful
    assert lawful[-1].finish_reason == "length"


def test_nothing_is_an_empty_response() -> None:
    assert events() == [MessageStarted(Message("assistant")), MessageCompleted(Message("assistant"), "stop")]


def test_an_error_ends_it() -> None:
    assert events("Hi", StreamError("truncated"))[1:] == [
        TextDelta("Hi", "block_0"),
        TextCompleted("Hi", "block_0"),
        ErrorEvent(StreamError("truncated")),
    ]


def test_an_error_at_the_beginning_is_raised() -> None:
    with pytest.raises(AdapterError, match="rate_limited"):
        events(AdapterError("rate_limited"))


def test_delays_take_no_time_and_no_thread() -> None:
    before = threading.active_count()
    assert events("a", ("delay", 3600), "b")[-2] == TextCompleted("ab", "block_0")
    assert threading.active_count() <= before


def test_it_works_from_inside_a_stream() -> None:
    items = played(from_iterable([1]).pipe(ops.tap(lambda item: None)).map(lambda item: events("Hi")))
    assert items == [events("Hi")]


def test_a_piece_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="is not a valid script item"):
        events(("txt", "Hi"))


@given(
    st.lists(st.sampled_from(["a", ("thinking", "b"), CALL, Usage(1, 1)]), max_size=6, unique_by=repr),
    st.sampled_from(["", "hm"]),
)
def test_all_of_it_is_lawful(pieces: list, thinking: str) -> None:
    lawful = events(*pieces, thinking=thinking)
    assert played(from_iterable(lawful).pipe(ops.verify())) == lawful
