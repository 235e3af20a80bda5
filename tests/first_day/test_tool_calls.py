"""Tool calls that a program makes itself, as in a history that it has kept."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Message, ToolCall, ValidationError, tool_result, user


def test_arguments_may_be_the_text_that_a_provider_sent() -> None:
    text = '{"a": 1, "b": [2]}'
    call: Any = ToolCall("c1", "add", text)  # type: ignore[arg-type]
    assert (call.arguments, call.raw_arguments) == ({"a": 1, "b": [2]}, text)
    assert repr(call) == "add(a=1, b=[2])"
    assert rxllm.serializer.from_json(rxllm.serializer.to_json(call)) == call
    thread = rxllm.Thread((user("Hi"), Message("assistant", tool_calls=(call,)), tool_result("c1", "3")))
    sent = thread.to_openai()[1]["tool_calls"][0]["function"]
    assert sent == {"name": "add", "arguments": text}


def test_text_that_is_not_an_object_is_kept_as_a_providers_is() -> None:
    call: Any = ToolCall("c1", "add", '{"a": ')  # type: ignore[arg-type]
    assert (call.arguments, call.raw_arguments, call.metadata) == ({}, '{"a": ', {"error": "invalid_json"})


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (("add", {"a": 1}), 'name must be a string, not {\'a\': 1}; write ToolCall("c1", "add", {...})'),
        (("c1", None, {}), "name must be a string, not None"),
        ((None, "add", {}), "id must be a string, not None"),
        (("c1", "add", [1]), "arguments must be a dict or JSON text, not [1]"),
        (("c1", "add", 3), "arguments must be a dict or JSON text, not 3"),
    ],
)
def test_a_call_whose_fields_are_in_the_wrong_place_is_refused(fields: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ToolCall(*fields)
    assert caught.value.reason == "invalid_message"
    assert fault in str(caught.value)
