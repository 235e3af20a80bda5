"""The arguments of earlier calls as they go back: always the text of a JSON object, or an object."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rxllm
from rxllm import Anthropic, Gemini, Message, Ollama, OpenAIChat, OpenAIResponses, Request, ToolCall, tool, user
from rxllm.testing.loopback import DONE, Loopback, Reply, chat, chat_event, chat_finish
from rxllm.testing.loopback import Request as Sent
from rxllm.values import Call
from tests.adapters.odd import decode
from tests.adapters.streams import sse
from tests.adapters.test_parts import local

WIRES: dict[str, Any] = {
    "chat": OpenAIChat(api_key="k"),
    "a chat server of one's own": OpenAIChat(base_url="http://localhost:8080/v1"),
    "responses": OpenAIResponses(api_key="k"),
    "anthropic": Anthropic(api_key="k"),
    "gemini": Gemini(api_key="k"),
    "ollama": Ollama(),
    "local": local(),
}

CUT_STRING = '{"a": "x'
QUOTED_TWICE = '{"a": "He said "hi""}'
CUT_NUMBER = '{"number": 13'
TOO_DEEP = '{"a":' + "[" * 120 + "]" * 120 + "}"
NOT_JSON = [CUT_STRING, QUOTED_TWICE, CUT_NUMBER, "{", "}", "{}{}", "{'a': 1}", "undefined", TOO_DEEP]
NO_OBJECT = ["[1]", "7", '"x"', "true", '"{}"', "[]"]
BLANK = ["", " ", "\n\t", "null", " null "]


def arguments_sent(wire: str, *calls: ToolCall) -> list[Any]:
    """The arguments of `calls` in the next request, as objects. A text that is no standard JSON fails the test."""
    thread = (user("Hi"), Message("assistant", "", tool_calls=calls))
    body = json.loads(WIRES[wire].build(Request(thread, "m", max_tokens=9), Call()).content)
    return objects(body)


def objects(body: Any) -> list[Any]:
    """The arguments of all calls in the body of any wire."""
    messages = body.get("messages") or body.get("contents") or body["input"]
    items = [part for entry in messages for part in parts(entry)]
    return [json.loads(item, parse_constant=refuse) if isinstance(item, str) else item for item in items]


def parts(entry: dict[str, Any]) -> list[Any]:
    if entry.get("type") == "function_call":
        return [entry["arguments"]]
    calls = [call["function"]["arguments"] for call in entry.get("tool_calls", ())]
    blocks = entry["content"] if isinstance(entry.get("content"), list) else entry.get("parts", ())
    return calls + [
        block["input"] if "input" in block else block["functionCall"]["args"]
        for block in blocks
        if block.get("type") == "tool_use" or "functionCall" in block
    ]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("raw", NOT_JSON + NO_OBJECT)
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_no_json_object_goes_back_inside_one(wire: str, raw: Any):
    marked = ToolCall("c1", "f", {}, raw, {"error": "invalid_json"})
    parsed, unmarked = ToolCall("c2", "f", raw), ToolCall("c3", "f", {}, raw)
    assert arguments_sent(wire, marked, parsed, unmarked) == [{"INVALID_JSON": raw}] * 3


@pytest.mark.parametrize("raw", BLANK)
@pytest.mark.parametrize("wire", WIRES)
def test_blank_arguments_go_back_as_an_empty_object(wire: str, raw: Any):
    assert arguments_sent(wire, ToolCall("c1", "f", raw), ToolCall("c2", "f", {}, raw), ToolCall("c3", "f")) == [{}] * 3


@pytest.mark.parametrize(
    ("raw", "sent"),
    [
        ('{"a": NaN}', {"a": None}),
        ('{"a": -Infinity, "b": 1}', {"a": None, "b": 1}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_what_only_python_reads_goes_back_as_standard_json(wire: str, raw: Any, sent: Any):
    assert arguments_sent(wire, ToolCall("c1", "f", raw)) == [sent]


@pytest.mark.parametrize("wire", WIRES)
def test_arguments_that_a_program_has_changed_go_back_as_they_are_now(wire: str):
    assert arguments_sent(wire, ToolCall("c1", "f", {"a": 1}, CUT_STRING)) == [{"a": 1}]


@pytest.mark.parametrize(
    "raw", ['{"a": 1.0,  "b": "é"}', ' {"a":{}}\n', '{"a": 1, "a": 2}', '{"a": 12345678901234567890123}']
)
def test_the_text_of_an_object_goes_back_to_the_letter(raw: Any):
    thread = (user("Hi"), Message("assistant", "", tool_calls=(ToolCall("c1", "f", raw),)))
    chat = json.loads(WIRES["chat"].build(Request(thread, "m"), Call()).content)
    responses = json.loads(WIRES["responses"].build(Request(thread, "m"), Call()).content)
    assert chat["messages"][-1]["tool_calls"][0]["function"]["arguments"] == responses["input"][-1]["arguments"] == raw


# What the model sends


def of_chat(raw: str | None) -> bytes:
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": raw}}
    return b"".join([chat_event({"tool_calls": [call]}), chat_finish("tool_calls"), DONE])


def of_responses(raw: str | None) -> bytes:
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "f",
        "arguments": raw,
        "status": "completed",
    }
    return sse(
        {"type": "response.created", "response": {"id": "r", "model": "m", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**call, "arguments": ""}},
        {"type": "response.output_item.done", "output_index": 0, "item": call},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [call]}},
        named=True,
    )


def of_anthropic(raw: str | None) -> bytes:
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    return sse(
        {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": raw or ""}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
        named=True,
    )


MODELS: dict[str, tuple[Any, Any, bytes]] = {
    "chat": (OpenAIChat, of_chat, b"".join(chat("Done."))),
    "responses": (
        OpenAIResponses,
        of_responses,
        sse(
            {
                "type": "response.output_text.delta",
                "output_index": 0,
                "item_id": "i",
                "content_index": 0,
                "delta": "Done.",
            },
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
            named=True,
        ),
    ),
    "anthropic": (
        Anthropic,
        of_anthropic,
        sse(
            {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": [], "usage": {}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Done."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
            {"type": "message_stop"},
            named=True,
        ),
    ),
}


@pytest.mark.parametrize("raw", [*BLANK, None])
@pytest.mark.parametrize("wire", MODELS)
def test_blank_arguments_are_an_empty_object_from_the_start(wire: str, raw: str | None):
    adapter, frames, _ = MODELS[wire]
    (call,) = [event for event in decode(adapter, frames(raw)) if isinstance(event, rxllm.ToolCallCompleted)]
    assert (call.arguments, call.metadata.get("error")) == ({}, None)


@pytest.mark.sockets
@pytest.mark.parametrize("raw", [QUOTED_TWICE, CUT_STRING, "[1]", " ", "null"])
@pytest.mark.parametrize("wire", MODELS)
def test_a_chat_of_two_turns_survives_a_server_that_refuses_what_is_no_object(wire: str, raw: str):
    adapter, frames, done = MODELS[wire]
    ran: list[dict[str, Any]] = []

    @tool
    def f() -> str:
        ran.append({})
        return "ok"

    def strict(request: Sent) -> Reply:
        """Answer as llama.cpp and vLLM do: every request whose thread has other arguments is refused."""
        try:
            earlier = objects(request.json)
        except ValueError:
            return Reply.of_json({"error": {"message": "arguments must be JSON"}}, 500)
        if not all(isinstance(arguments, dict) for arguments in earlier):
            return Reply.of_json({"error": {"message": "arguments must be an object"}}, 400)
        return Reply(done if earlier else frames(raw))

    with Loopback(strict) as server:
        engine = rxllm.Engine(adapter(base_url=server.url, api_key="k"), model="m", retry=False)
        first = rxllm.chat(engine, "Hi", tools=[f]).run().raise_for_error()
        second = rxllm.chat(engine, first.thread + user("And?"), tools=[f]).run().raise_for_error()
    assert (first.output_text, second.output_text) == ("Done.", "Done.")
    assert ran == ([] if raw.strip() not in ("", "null") else [{}])
