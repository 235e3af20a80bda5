"""Values to the request: nothing is sent."""

from typing import Any

import msgspec
import pytest

from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.values import (
    Call,
    EngineError,
    Image,
    ImagePart,
    Message,
    Request,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ValidationError,
    json_schema,
    system,
    tool,
    tool_result,
    user,
)

HERE = "http://localhost:8080/v1"


def body(request: Request, base_url: str | None = None) -> dict[str, Any]:
    built = OpenAIChat(base_url=base_url, api_key="k").build(request, Call())
    return msgspec.json.decode(built.content)


def asked(*messages: Message, base_url: str | None = None, **fields: Any) -> dict[str, Any]:
    return body(Request(messages, "m", **fields), base_url)


def test_the_least_request():
    built = OpenAIChat(api_key="k").build(Request((user("Hi"),), "m"), Call())
    assert str(built.url) == "https://api.openai.com/v1/chat/completions"
    assert built.headers["authorization"] == "Bearer k"
    assert msgspec.json.decode(built.content) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    built = OpenAIChat(base_url=HERE).build(Request((user("Hi"),), "m"), Call())
    assert "authorization" not in built.headers
    with pytest.raises(EngineError, match="key"):
        OpenAIChat().build(Request((user("Hi"),), "m"), Call())


def test_a_model_is_needed():
    with pytest.raises(EngineError) as caught:
        body(Request((user("Hi"),)))
    assert caught.value.reason == "missing_model"


def test_all_fields():
    said = asked(
        user("Hi"),
        temperature=0,
        max_tokens=5,
        stop=("a",),
        seed=0,
        reasoning_effort="low",
        response_format={"type": "json_object"},
    )
    assert {k: v for k, v in said.items() if k not in ("messages", "model", "stream", "stream_options")} == {
        "temperature": 0,
        "max_completion_tokens": 5,
        "stop": ["a"],
        "seed": 0,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
    }


def test_other_servers_know_max_tokens():
    assert asked(user("Hi"), base_url=HERE, max_tokens=5)["max_tokens"] == 5


def test_options_are_merged_over_the_body_and_none_takes_out():
    said = asked(user("Hi"), temperature=0.5, options={"temperature": 1, "top_k": 3, "stream_options": None})
    assert (said["temperature"], said["top_k"], "stream_options" in said) == (1, 3, False)


def test_the_messages_of_a_tool_run():
    call = ToolCall("a", "f", {"x": 1}, '{"x": 1}')
    told = Message(
        "assistant", "", tool_calls=(call, ToolCall("b", "g", {"y": 2}), ToolCall("s", "h", metadata={"server": True}))
    )
    said = asked(system("S"), user("Hi"), told, tool_result("a", {"r": 1}), tool_result("b", "2"))["messages"]
    assert said == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"y":2}'}},
            ],
        },
        {"role": "tool", "content": '{"r":1}', "tool_call_id": "a"},
        {"role": "tool", "content": "2", "tool_call_id": "b"},
    ]


def test_images():
    parts = [
        TextPart("see"),
        ImagePart(Image.from_url("https://x/y.png"), "low"),
        ImagePart(Image.from_binary(b"\0", "image/png")),
    ]
    assert asked(user(parts))["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
    ]


def test_the_parts_of_others_are_left_out():
    opaque = {
        "reasoning_details": [
            {"type": "reasoning.text", "signature": "s"},
            {"type": "reasoning.encrypted", "data": "x"},
        ]
    }
    parts = (ThinkingPart("hm", "s", opaque), TextPart("a"), SourcePart({"url": "u"}), ToolCallPart("a"), TextPart("b"))
    assert asked(Message("assistant", parts))["messages"] == [{"role": "assistant", "content": "ab"}]
    (said,) = asked(Message("assistant", parts), base_url=HERE)["messages"]
    assert said["reasoning_details"] == [
        {"text": "hm", "type": "reasoning.text", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "x"},
    ]


def test_tools_and_their_choice():
    add = tool(name="add", description="Adds", schema={"type": "object"}, handler=lambda arguments: None)
    said = asked(user("Hi"), tools=(add,), tool_choice="add")
    schema = {"type": "object", "properties": {}}
    assert said["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": schema}}
    ]
    assert said["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert asked(user("Hi"), tool_choice="required")["tool_choice"] == "required"


def test_a_json_schema():
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    said = asked(user("Hi"), response_format=json_schema("city", schema))
    assert said["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "city", "strict": True, "schema": schema},
    }
    assert "response_format" not in asked(user("Hi"), response_format="text")
    with pytest.raises(ValidationError):
        asked(user("Hi"), response_format="yaml")
