"""A provider's own tools, and its own fields of tools and calls: beside the request's, and back as they came."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rxllm import Anthropic, Gemini, OpenAIChat, OpenAIResponses, Request, user
from rxllm.values import Call, Tool
from tests.adapters.openai_responses.support import COMPLETED, CREATED, added, done, said

WIRES: dict[str, Any] = {
    "chat": OpenAIChat(api_key="k"),
    "responses": OpenAIResponses(api_key="k"),
    "anthropic": Anthropic(api_key="k"),
    "gemini": Gemini(api_key="k"),
}
ADD = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
SEARCH = {"type": "web_search", "max_uses": 3}


def body(adapter: Any, *messages: Any, tools: tuple[Tool, ...] = (), **fields: Any) -> dict[str, Any]:
    request = Request((user("Hi"), *messages), "m", tools=tools, **fields)
    return msgspec.json.decode(adapter.build(request, Call()).content)


@pytest.mark.parametrize("wire", WIRES)
def test_tools_in_the_options_are_added_to_those_of_the_request(wire: str) -> None:
    adapter = WIRES[wire]
    own = body(adapter, tools=(ADD,))["tools"]
    assert body(adapter, tools=(ADD,), options={"tools": [SEARCH]})["tools"] == [*own, SEARCH]
    assert body(adapter, options={"tools": [SEARCH]})["tools"] == [SEARCH]


@pytest.mark.parametrize("wire", WIRES)
def test_an_option_of_none_takes_the_tools_out(wire: str) -> None:
    assert "tools" not in body(WIRES[wire], tools=(ADD,), options={"tools": None})


def test_more_fields_of_a_function_are_added_to_its_definition() -> None:
    (plain,) = body(WIRES["responses"], tools=(ADD,))["tools"]
    tool = Tool(ADD.name, ADD.description, ADD.schema, metadata={"openai": {"async": True}})
    assert body(WIRES["responses"], tools=(tool,))["tools"] == [{**plain, "async": True}]


def test_a_whole_definition_takes_the_place_of_the_function() -> None:
    tool = Tool("shell", metadata={"openai": {"type": "local_shell"}})
    assert body(WIRES["responses"], tools=(tool,))["tools"] == [{"type": "local_shell"}]


@pytest.mark.parametrize("kind", ["browser_toolset_20260801", "computer_toolset_20260801", "mcp_toolset"])
def test_a_set_of_tools_has_no_name(kind: str) -> None:
    own = {"type": kind, "configs": {}}
    assert body(WIRES["anthropic"], tools=(Tool("set", metadata={"anthropic": own}),))["tools"] == [own]


def test_all_fields_of_a_call_go_back() -> None:
    fields = {"async": True, "namespace": "n", "caller": {"type": "program"}, "created_by": "b"}
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "add", "arguments": "{}", **fields}
    response = said(CREATED + added(0, call) + done(0, {**call, "status": "completed"}) + COMPLETED)[1]
    (sent,) = [item for item in body(WIRES["responses"], response.message)["input"] if item.get("call_id") == "c"]
    assert sent == {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}", **fields}
