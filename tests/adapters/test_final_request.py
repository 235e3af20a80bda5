"""The final request of a structured chat, on every wire: a format, the tools as before, and no call allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rxllm import json_schema, tool, user
from rxllm.adapters import Anthropic, Gemini, Local, Ollama, OpenAIChat, OpenAIResponses, Vertex
from rxllm.values import Call, Request

FORMAT = json_schema("city", {"type": "object", "properties": {"name": {"type": "string"}}})
ADD = tool(name="add", description="Adds", handler=lambda _: None)
HERE = {"api_key": "k", "base_url": "http://127.0.0.1:1/v1"}
NONE = {"functionCallingConfig": {"mode": "NONE"}}

WIRES: dict[str, tuple[Any, str, Any]] = {
    "anthropic": (Anthropic(**HERE), "claude-opus-5-5", {"type": "none"}),
    "vertex claude": (Vertex(project="p", **HERE), "claude-opus-5-5", {"type": "none"}),
    "chat": (OpenAIChat(**HERE), "gpt-5", "none"),
    "responses": (OpenAIResponses(**HERE), "gpt-5", "none"),
    "gemini": (Gemini(**HERE), "gemini-3-pro", NONE),
    "vertex gemini": (Vertex(project="p", **HERE), "gemini-3-pro", NONE),
}


def sent(adapter: Any, model: str | None, **fields: Any) -> dict[str, Any]:
    request = Request((user("Hi"),), model, tools=(ADD,), **fields)
    return json.loads(adapter.build(request, Call()).content)


@pytest.mark.parametrize("wire", WIRES)
def test_the_tools_are_those_of_the_other_requests(wire: str) -> None:
    adapter, model, choice = WIRES[wire]
    before, final = sent(adapter, model), sent(adapter, model, response_format=FORMAT, tool_choice="none")
    assert final["tools"] == before["tools"]
    assert final["toolConfig" if "gemini" in wire else "tool_choice"] == choice


@pytest.mark.parametrize(
    ("adapter", "model"),
    [
        (Gemini(**HERE), "gemini-2.5-pro"),  # which refuses a request with both
        (Vertex(project="p", **HERE), "gemini-2.5-pro"),
        (Ollama(**HERE), "qwen3"),  # whose API has no choice of tools
    ],
)
def test_a_wire_that_cannot_forbid_calls_beside_a_format_gets_no_tools(adapter: Any, model: str) -> None:
    final = sent(adapter, model, response_format=FORMAT, tool_choice="none")
    assert not final.keys() & {"tools", "toolConfig", "tool_choice"}
    assert sent(adapter, model, tool_choice="none").get("toolConfig", NONE) == NONE


def test_a_small_local_model_is_asked_as_without_tools() -> None:
    local = Local("m.gguf")
    final = sent(local, None, response_format=FORMAT, tool_choice="none")
    request = Request((user("Hi"),), response_format=FORMAT)
    assert final == json.loads(local.build(request, Call()).content)
