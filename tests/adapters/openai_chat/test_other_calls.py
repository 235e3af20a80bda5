"""Calls that are not plain functions: custom tools, calls that Gemini has signed, and tools that Groq runs itself."""

from __future__ import annotations

from typing import Any

import msgspec
import openai.types.chat as judge
import pytest
from pydantic import TypeAdapter

import rxllm
from rxllm import Engine
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.events import ToolCallDelta
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Call, Message, Request, Thread, Tool, ToolCall, user
from tests.adapters.openai_chat.support import DONE, HI, STOP, call, calls, chunk, said, sources, whole

pytestmark = pytest.mark.judges

SIGNED = {"google": {"thought_signature": "c2ln"}}
CUSTOM: Any = {"openai": {"type": "custom"}}


def custom(index: int | None, id: str | None, name: str | None, text: str) -> dict[str, Any]:
    return {"index": index, "id": id, "type": "custom", "custom": {"name": name, "input": text}}


def engine(server: Loopback) -> Engine:
    return Engine(OpenAIChat(base_url=server.url), model="m", retry=False)


def frames(*deltas: Any) -> Reply:
    return Reply([*(chunk(delta) for delta in deltas), chunk({}, "tool_calls"), DONE])


def test_a_custom_tool_is_called_with_its_text_and_goes_back_as_it_came():
    """No recording: the pieces are as the API streams them, name first."""
    texts: list[str] = []
    patch = Tool(
        "patch", "Patches.", handler=lambda arguments: texts.append(arguments["input"]) or "ok", metadata=CUSTOM
    )
    asked = frames(
        {"tool_calls": [custom(0, "c1", "patch", "")]},
        {"tool_calls": [custom(0, None, None, 'say "')]},
        {"tool_calls": [{"index": 0, "custom": {"input": 'é"\n'}}]},
    )
    with Loopback([asked, Reply([chunk({"content": "Done"}), STOP, DONE])]) as server:
        result = rxllm.chat(engine(server), "Hi", tools=[patch]).run()
        rxllm.chat(engine(server), from_json(to_json(result.thread), Thread) + user("More")).run()
    assert (texts, result.output_text) == (['say "é"\n'], "Done")
    sent = server.requests[0].json["tools"]
    assert sent == [{"type": "custom", "custom": {"name": "patch", "description": "Patches."}}]
    back = server.requests[1].json["messages"]
    assert back[1]["tool_calls"] == [{"id": "c1", "type": "custom", "custom": {"name": "patch", "input": 'say "é"\n'}}]
    assert back[2] == {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    assert server.requests[2].json["messages"][:3] == back
    TypeAdapter(list[judge.ChatCompletionMessageParam]).validate_python(back)
    TypeAdapter(list[judge.ChatCompletionToolUnionParam]).validate_python(sent)


def test_custom_calls_side_by_side_and_of_a_whole_answer():
    both = [custom(0, "a", "f", "1"), custom(1, "b", "g", "2")]
    for body in (calls(*both) + STOP + DONE, calls(both[0]) + calls({**both[1], "index": 0}) + STOP + DONE):
        assert [(c.id, c.name, c.arguments) for c in said(body)[1].tool_calls] == [
            ("a", "f", {"input": "1"}),
            ("b", "g", {"input": "2"}),
        ]
    unnumbered = [{name: value for name, value in call.items() if name != "index"} for call in both]
    assert [c.arguments for c in whole({"tool_calls": unnumbered}).tool_calls] == [{"input": "1"}, {"input": "2"}]


def test_a_custom_call_that_is_cut_off_is_marked():
    events, response = said(calls(custom(0, "a", "f", "rm -rf /tmp")))
    assert ToolCallDelta("a", '{"input":"rm -rf /tmp"}') not in events
    assert response.message.tool_calls[0].metadata["error"] == "incomplete"
    assert response.error is not None


def test_a_custom_tool_of_the_responses_api_is_one_here():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
    tool = Tool("f", metadata={"openai": {"type": "custom", "format": grammar}})
    request = Request((user("Hi"),), "m", tools=(tool, Tool("g")), tool_choice="f")
    body = msgspec.json.decode(OpenAIChat(api_key="k").build(request, Call()).content)
    nested = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
    assert body["tools"][0] == {"type": "custom", "custom": {"name": "f", "description": "", "format": nested}}
    assert body["tools"][1]["type"] == "function"
    assert body["tool_choice"] == {"type": "custom", "custom": {"name": "f"}}
    TypeAdapter(judge.ChatCompletionToolUnionParam).validate_python(body["tools"][0])


def test_what_gemini_has_signed_goes_back_with_its_call():
    """No recording of this wire: Gemini's own has the signatures, and its OpenAI-compatible one puts them here."""
    first = {**call(0, "a", "f", '{"x":1}'), "extra_content": SIGNED}
    asked = frames({"tool_calls": [first, call(1, "b", "f", '{"x":2}')]})

    @rxllm.tool
    def f(x: int) -> int:
        return x

    with Loopback([asked, Reply([HI, STOP, DONE])]) as server:
        result = rxllm.chat(engine(server), "Hi", tools=[f]).run()
        rxllm.chat(engine(server), from_json(to_json(result.thread), Thread) + user("More")).run()
    for request in server.requests[1:]:
        back = request.json["messages"][1]["tool_calls"]
        assert [entry.get("extra_content") for entry in back] == [SIGNED, None]
    request = Request((user("Hi"), result.thread.messages[1], *result.thread.messages[2:4]), "m")
    assert b"extra_content" not in OpenAIChat(api_key="k").build(request, Call()).content  # OpenAI refuses it


def test_a_call_of_another_provider_has_no_fields_of_its_own_here():
    made = ToolCall("a", "f", {"input": "x"}, metadata={"groq": {"type": "custom", "extra_content": SIGNED}})
    request = Request((user("Hi"), Message("assistant", "", tool_calls=(made,))), "m")
    body = msgspec.json.decode(OpenAIChat(base_url="http://localhost:1/v1").build(request, Call()).content)
    function = {"name": "f", "arguments": '{"input":"x"}'}
    assert body["messages"][1]["tool_calls"] == [{"id": "a", "type": "function", "function": function}]


SEARCH = {"index": 0, "type": "search", "arguments": '{"query":"x"}', "output": None, "search_results": None}
FOUND = {"results": [{"title": "A", "url": "https://a", "content": "...", "score": 0.9}], "images": None}
VISIT = {
    "index": 1,
    "type": "visit",
    "arguments": '{"url":"https://b"}',
    "output": "...",
    "browser_results": [{"title": "B", "url": "https://b", "content": "..."}],
}


def test_tools_that_groq_runs_are_calls_of_the_server_with_their_sources():
    """No recording: the fields are those of Groq's SDK; a tool comes when it begins and when it ends."""
    executed = [SEARCH, {**SEARCH, "output": "A", "search_results": FOUND}, VISIT]
    streamed = b"".join(chunk({"executed_tools": [tool]}) for tool in executed) + HI + STOP + DONE
    for response in (said(streamed)[1], whole({"content": "Hi", "executed_tools": executed[1:]})):
        made = [(made.name, made.arguments, made.metadata) for made in response.message.tool_calls]
        server: Any = {"server": True}
        assert made == [("search", {"query": "x"}, server), ("visit", {"url": "https://b"}, server)]
        assert [source["url"] for source in sources(response)] == ["https://a", "https://b"]
        assert (response.tool_calls, response.finish_reason, response.output_text) == ((), "stop", "Hi")
        assert [tool["output"] for tool in response.metadata["executed_tools"]] == ["A", "..."]
