"""Parts of Gemini's content: values of arguments, files, signatures, and tools that the server runs.

Of an MCP server that Gemini asks by itself, call, response and answer are in one stream.
"""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm.adapters.gemini.parts import PartialArguments
from rxllm.events import PartAdded, TextDelta, ToolCallCompleted, ToolCallDelta, ToolCallStarted
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import Loopback
from rxllm.values import ProviderPart, ThinkingPart, Thread
from tests.adapters.gemini.support import HI, STARTED, STOP, call, data, model, reply, said, sse

SERVER = {"server": True}
ASKED = {**call("weather", {"id": "x", "city": "Oslo"}, id="m1"), "thoughtSignature": "czE="}
FOUND = {"functionResponse": {"id": "m1", "name": "weather", "response": {"result": [{"text": "3 C"}]}}}
THOUGHT = {"text": "hm", "thought": True, "thoughtSignature": "czI="}


def parts(*chunks: Any) -> list[Any]:
    events, _ = said(sse(*chunks))
    return [event.part.data for event in events if isinstance(event, PartAdded)]


@pytest.mark.parametrize("chunks", [[data([ASKED, FOUND, {"text": "Hi"}])], [data([ASKED]), data([FOUND]), HI]])
def test_a_call_that_the_server_answers_is_its_own(chunks: list[Any]):
    events, response = said(sse(*chunks, STOP))
    arguments = '{"id":"x","city":"Oslo"}'
    assert events[:5] == [
        STARTED,
        ToolCallStarted("m1", "weather", SERVER),
        ToolCallDelta("m1", arguments),
        ToolCallCompleted("m1", "weather", {"id": "x", "city": "Oslo"}, arguments, SERVER),
        PartAdded(ProviderPart("google", ASKED)),
    ]
    assert events[5:7] == [PartAdded(ProviderPart("google", FOUND)), TextDelta("Hi", "block_0")]
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


@pytest.mark.sockets
def test_a_chat_with_an_mcp_server_completes_though_a_finish_reason_comes_before_its_response():
    """No recording: so an MCP server's call was seen live, one STOP beside each call and one at the end."""
    first, second = call("time", id="m0"), {"functionResponse": {"id": "m0", "name": "time", "response": {"r": 1}}}
    chunks = [data([first], "STOP"), data([second]), data([ASKED], "STOP"), data([FOUND]), HI, STOP]
    with Loopback(reply(*chunks)) as server:
        result = rxllm.chat(model(server), "Hi").run()
    assert (result.halted_reason, result.output_text, len(server.requests)) == ("completed", "Hi", 1)
    assert [called.metadata for called in result.thread.messages[-1].tool_calls] == [SERVER, SERVER]
    assert parts(*chunks) == [first, second, ASKED, FOUND]


def test_empty_text_between_call_and_response_says_nothing():
    _, response = said(sse(data([ASKED]), data([{"text": ""}]), data([FOUND]), HI, STOP))
    assert response.tool_calls == ()


@pytest.mark.parametrize("after", [[], [STOP], [HI, STOP], [data([THOUGHT]), STOP]])
def test_a_call_that_nobody_answers_is_ours(after: list[Any]):
    events, response = said(sse(data([ASKED]), *after))
    assert events[1] == ToolCallStarted("m1", "weather", {"google": {"id": "m1", "thoughtSignature": "czE="}})
    assert [called.name for called in response.message.tool_calls if not called.metadata.get("server")] == ["weather"]


@pytest.mark.sockets
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


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            [{"jsonPath": "$.a", "boolValue": True}, {"jsonPath": "$['b.c']", "numberValue": 1.5}],
            {"a": True, "b.c": 1.5},
        ),
        ([{"jsonPath": "$.a[0]", "stringValue": "x"}, {"jsonPath": "$.a[1]", "stringValue": "y"}], {"a": ["x", "y"]}),
        ([{"jsonPath": "$.a[999999999]", "numberValue": 1}], {"a": [1]}),
        ([{"jsonPath": "$.a[0][1].b", "numberValue": 1}], {"a": [[{"b": 1}]]}),
        ([{"jsonPath": "$.a", "numberValue": 1}, {"jsonPath": "$.a.b", "numberValue": 2}], {"a": 1}),
        ([{"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a", "stringValue": "y"}], {"a": "y"}),
        ([{"jsonPath": "$.a", "stringValue": "x", "willContinue": True}], {"a": "x"}),
        ([{"jsonPath": "$", "numberValue": 1}, {}], {}),
    ],
)
def test_partial_arguments(pieces: list[dict[str, Any]], expected: dict[str, Any]):
    partial = PartialArguments()
    partial.feed(pieces)
    assert partial.finish() == expected


def test_text_beside_a_call_in_one_part_is_not_lost():
    response = said(sse(data([{"text": "", "functionCall": {"name": "f"}}, {"text": "a"}], "STOP")))[1]
    assert [call.name for call in response.tool_calls] == ["f"]
    assert response.output_text == "a"


def test_tools_of_the_server():
    asked = {"toolType": "GOOGLE_SEARCH_WEB", "id": "s1", "args": {"queries": ["q"]}}
    found = {"toolType": "GOOGLE_SEARCH_WEB", "id": "s1", "response": {"a": 1}}
    events, response = said(
        sse(data([{"toolCall": asked}, {"toolResponse": found, "thoughtSignature": "czE="}]), HI, STOP)
    )
    assert events[1] == ToolCallStarted("s1", "google_search_web", {"server": True})
    (call,) = response.message.tool_calls
    assert (call.arguments, response.tool_calls) == ({"queries": ["q"]}, ())
    assert [part.data for part in response.message.parts if isinstance(part, ProviderPart)] == [
        {"toolCall": asked},
        {"toolResponse": found, "thoughtSignature": "czE="},
    ]


def test_files():
    parts = [
        {"fileData": {"mimeType": "video/mp4", "fileUri": "u"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAE="}, "thought": True},
        {"inlineData": {"data": "A"}},
    ]
    assert [event.file for event in said(sse(data(parts, "STOP")))[0][1:]] == [
        {"mime_type": "video/mp4", "url": "u"},
        {"mime_type": "image/png", "data": b"\0\1", "thought": True},
        {"mime_type": "application/octet-stream", "data": b""},
    ]


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ({"thoughtSignature": "czE="}, ProviderPart("google", {"text": "", "thoughtSignature": "czE="})),
        ({"thoughtSignature": "czE=", "thought": True}, ThinkingPart("", "czE=", {"provider": "google"})),
    ],
)
def test_a_signature_by_itself(part: dict[str, Any], kept: Any):
    assert said(sse(data([part], "STOP")))[1].message.parts == (kept,)
