from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given

from rxllm.events import (
    EVENT_CLASSES,
    EVENT_TAGS,
    MessageCompleted,
    StepCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallStarted,
)
from rxllm.testing import strategies
from rxllm.values import Message, Response, StepResult, Thread, ToolCall


def test_the_union_is_closed() -> None:
    assert list(EVENT_TAGS) == [
        "message_started",
        "text_delta",
        "text_completed",
        "tool_call_started",
        "tool_call_delta",
        "tool_call_completed",
        "message_completed",
        "raw_chunk",
        "error",
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_encoded",
        "ask_user_requested",
        "tool_halt",
        "step_completed",
        "chat_completed",
        "thinking_delta",
        "thinking_completed",
        "source_added",
        "file_added",
        "usage_updated",
        "tool_progress",
        "tool_approval_requested",
        "step_restarted",
        "custom",
        "nested",
        "steered",
        "part_added",
    ]
    assert tuple(EVENT_TAGS.values()) == EVENT_CLASSES


@pytest.mark.parametrize("cls", EVENT_CLASSES)
def test_every_class_has_a_sentence(cls: Any) -> None:
    assert cls.__doc__.strip().endswith(".")


@given(strategies.events)
def test_events_are_immutable(event: Any) -> None:
    name = msgspec.structs.fields(event)[0].name
    with pytest.raises(AttributeError):
        setattr(event, name, None)


@given(strategies.events)
def test_events_survive_pickling_and_copying(event: Any) -> None:
    assert pickle.loads(pickle.dumps(event)) == event
    assert copy.deepcopy(event) == event


def test_events_are_equal_by_class_and_fields() -> None:
    assert TextDelta("a") == TextDelta("a")
    assert TextDelta("a") != TextDelta("a", "1")
    assert TextDelta("a") != ToolCallStarted("a", "b")


@given(strategies.events)
def test_an_event_is_told_by_its_class_and_built_by_it(event: Any) -> None:
    cls = type(event)
    assert isinstance(event, EVENT_CLASSES)
    assert EVENT_TAGS[cls.__struct_config__.tag] is cls
    assert cls(**{name: getattr(event, name) for name in cls.__struct_fields__}) == event
    with pytest.raises(TypeError):
        cls(**{name: getattr(event, name) for name in cls.__struct_fields__}, stranger=1)


def test_what_only_looks_like_an_event_is_none() -> None:
    for other in (("text_delta", {"delta": "a"}), {"type": "text_delta", "delta": "a"}, TextDelta):
        assert not isinstance(other, EVENT_CLASSES)


def test_defaults_are_not_shared() -> None:
    one, other = ToolCallStarted("a", "f"), ToolCallStarted("b", "f")
    assert one.metadata == {}
    assert one.metadata is not other.metadata


def test_a_completed_call_is_a_tool_call() -> None:
    event = ToolCallCompleted("a", "add", {"x": 1}, '{"x":1}', {"server": True})
    assert event.tool_call == ToolCall("a", "add", {"x": 1}, '{"x":1}', {"server": True})


def test_a_completed_message_need_not_say_why() -> None:
    event = MessageCompleted(Message("assistant"))
    assert (event.finish_reason, event.raw_finish_reason, event.metadata) == (None, None, {})


def test_a_completed_step_shows_its_result() -> None:
    calls = (ToolCall("a", "f"),)
    result = StepResult(Thread(), Response(), metadata={"mode": "manual", "manual_tool_calls": calls})
    event = StepCompleted(result)
    assert (event.response, event.thread) == (result.response, result.thread)
    assert (event.mode, event.manual_tool_calls) == ("manual", calls)
    plain = StepCompleted(StepResult(Thread(), Response()))
    assert (plain.mode, plain.manual_tool_calls) == ("auto", ())
