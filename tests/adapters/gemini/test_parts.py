"""Tools of an MCP server that Gemini asks by itself: call, response and answer in one stream."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm.events import RawChunk, TextDelta, ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import Loopback
from rxllm.values import ProviderPart, Thread
from tests.adapters.gemini.test_adapter import model, reply
from tests.adapters.gemini.test_decoder import HI, STARTED, STOP, call, data, said, sse

SERVER = {"server": True}
ASKED = {**call("weather", {"id": "x", "city": "Oslo"}, id="m1"), "thoughtSignature": "czE="}
FOUND = {"functionResponse": {"id": "m1", "name": "weather", "response": {"result": [{"text": "3 C"}]}}}
THOUGHT = {"text": "hm", "thought": True, "thoughtSignature": "czI="}


def parts(*chunks: Any) -> list[Any]:
    events, _ = said(sse(*chunks))
    return [event.data.data for event in events if isinstance(event, RawChunk)]


@pytest.mark.parametrize("chunks", [[data([ASKED, FOUND, {"text": "Hi"}])], [data([ASKED]), data([FOUND]), HI]])
def test_a_call_that_the_server_answers_is_its_own(chunks: list[Any]):
    events, response = said(sse(*chunks, STOP))
    arguments = '{"id":"x","city":"Oslo"}'
    assert events[:5] == [
        STARTED,
        ToolCallStarted("m1", "weather", SERVER),
        ToolCallDelta("m1", arguments),
        ToolCallCompleted("m1", "weather", {"id": "x", "city": "Oslo"}, arguments, SERVER),
        RawChunk("functionCall", ProviderPart("google", ASKED)),
    ]
    assert events[5:7] == [RawChunk("functionResponse", ProviderPart("google", FOUND)), TextDelta("Hi")]
    assert (response.output_text, response.tool_calls, response.finish_reason) == ("Hi", (), "stop")
    assert [called.metadata for called in response.message.tool_calls] == [SERVER]


def test_calls_side_by_side_and_one_after_another():
    other, also = call("time"), {"functionResponse": {"name": "time", "response": {"result": "12"}}}
    assert parts(data([ASKED, other]), data([FOUND, also]), HI, STOP) == [ASKED, FOUND, other, also]
    assert parts(data([ASKED, other]), data([also, FOUND]), HI, STOP) == [other, also, ASKED, FOUND]
    assert parts(data([ASKED]), data([FOUND]), data([other]), data([also]), HI, STOP) == [ASKED, FOUND, other, also]


def test_a_call_of_ours_beside_one_of_the_server_s_is_still_ours():
    _, response = said(sse(data([call("f", {"x": 1}), ASKED]), data([FOUND]), STOP))
    assert [(called.name, called.arguments) for called in response.tool_calls] == [("f", {"x": 1})]
    assert response.finish_reason == "tool_calls"


def test_empty_text_between_call_and_response_says_nothing():
    _, response = said(sse(data([ASKED]), data([{"text": ""}]), data([FOUND]), HI, STOP))
    assert response.tool_calls == ()


@pytest.mark.parametrize("after", [[], [STOP], [HI, STOP], [data([THOUGHT]), STOP]])
def test_a_call_that_nobody_answers_is_ours(after: list[Any]):
    events, response = said(sse(data([ASKED]), *after))
    assert events[1] == ToolCallStarted("m1", "weather", {"google": {"id": "m1", "thoughtSignature": "czE="}})
    assert [called.name for called in response.message.tool_calls if not called.metadata.get("server")] == ["weather"]


def test_a_chat_completes_without_running_it_and_all_goes_back_as_it_came():
    def never(arguments: Any) -> Any:
        raise AssertionError("the server has run it")

    tool = rxllm.tool(name="weather", description="", schema={"type": "object"}, handler=never)
    own = call("f", {"x": 1})
    with Loopback(reply(data([ASKED]), data([FOUND]), HI, data([own]), STOP)) as server:
        halted = rxllm.chat(model(server), "Hi", tools=[tool], mode="manual").run()
    assert [called.name for called in halted.pending_tool_calls] == ["f"]
    unsigned = {name: value for name, value in ASKED.items() if name != "thoughtSignature"}
    with Loopback(reply(data([unsigned]), data([FOUND]), HI, STOP)) as server:
        result = rxllm.chat(model(server), "Hi", tools=[tool]).run()
        rxllm.chat(model(server), from_json(to_json(result.thread), Thread) + rxllm.user("More")).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Hi")
    assert server.requests[1].json["contents"][1] == {"role": "model", "parts": [unsigned, FOUND, {"text": "Hi"}]}
