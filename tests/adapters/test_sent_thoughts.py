"""Answers that end in a thought, as the next request has them: no thought goes back that led to nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rxllm
from rxllm import Anthropic, Event, Gemini, Ollama, OpenAIChat, OpenAIResponses, Request, assistant, system, tool, user
from rxllm.adapters import connect
from rxllm.values import Call, Message, TextPart, ThinkingPart, Thread, ToolCall, tool_result
from tests.adapters.streams import sse

HERE = "http://localhost:8080/v1"
THOUGHTS = ("thinking", "redacted_thinking")


@tool
def add(a: int) -> str:
    return str(a)


def thread_of(adapter: Any, data: bytes) -> Thread:
    """The thread of a chat whose one answer is these bytes."""

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        decoder = adapter.decoder(request)
        for event in [*decoder.feed(data), *decoder.close()]:
            yield event
        await asyncio.sleep(0)

    return rxllm.chat(model, "Hi", tools=[add]).run().thread


def body(adapter: Any, thread: Any, **fields: Any) -> dict[str, Any]:
    messages = (*thread, user("And?"))
    return json.loads(adapter.build(Request(messages, "m", max_tokens=9, **fields), Call()).content)


# Anthropic

THINKING = [
    {"type": "thinking", "thinking": ""},
    {"type": "thinking_delta", "thinking": "Hm."},
    {"type": "signature_delta", "signature": "c2ln"},
]
REDACTED = [{"type": "redacted_thinking", "data": "x"}]
TEXT = [{"type": "text", "text": ""}, {"type": "text_delta", "text": "Well."}]
CALL = [{"type": "tool_use", "id": "c1", "name": "add", "input": {}}]
CUT_CALL = [*CALL, {"type": "input_json_delta", "partial_json": '{"a": '}]
CUT_SEARCH = [{"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}, CUT_CALL[1]]


def of_anthropic(stop: str, *blocks: list[dict[str, Any]]) -> bytes:
    frames: list[dict[str, Any]] = []
    for index, (start, *deltas) in enumerate(blocks):
        frames.append({"type": "content_block_start", "index": index, "content_block": start})
        frames += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        frames.append({"type": "content_block_stop", "index": index})
    message = {"id": "m1", "role": "assistant", "content": [], "usage": {}}
    return sse(
        {"type": "message_start", "message": message},
        *frames,
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {}},
        {"type": "message_stop"},
        named=True,
    )


ENDS: dict[str, tuple[bytes, list[str]]] = {
    "signed thinking only": (of_anthropic("max_tokens", THINKING), []),
    "thinking twice": (of_anthropic("max_tokens", THINKING, REDACTED, THINKING), []),
    "thinking and a call that the limit cut": (of_anthropic("max_tokens", THINKING, CUT_CALL), []),
    "redacted thinking only": (of_anthropic("max_tokens", REDACTED), []),
    "text and then thinking": (of_anthropic("end_turn", TEXT, THINKING), ["text"]),
    "thinking around a text": (of_anthropic("max_tokens", THINKING, TEXT, REDACTED), ["thinking", "text"]),
    "thinking that a refusal ended": (of_anthropic("refusal", THINKING), []),
    "thinking and blank text": (of_anthropic("max_tokens", THINKING, [{"type": "text", "text": " \n"}]), []),
    "thinking and a search that was cut": (of_anthropic("max_tokens", THINKING, CUT_SEARCH), []),
    "thinking whose signature is cut off": (of_anthropic("max_tokens", THINKING[:2]), []),
    "thinking before a text": (of_anthropic("end_turn", THINKING, TEXT), ["thinking", "text"]),
}


@pytest.mark.parametrize("end", ENDS)
def test_no_turn_for_anthropic_is_empty_or_ends_in_a_thought(end: str):
    data, kept = ENDS[end]
    anthropic = Anthropic(api_key="k")
    turns = body(anthropic, thread_of(anthropic, data))["messages"]
    answers = [turn["content"] for turn in turns if turn["role"] == "assistant"]
    blocks = [[{"type": "text"}] if isinstance(answer, str) else answer for answer in answers]
    assert [block["type"] for answer in blocks for block in answer] == kept
    assert all(turn["content"] for turn in turns)
    assert [turn["role"] for turn in turns] == (["user", "assistant", "user"] if kept else ["user"])


def signed(text: str = "Hm.") -> ThinkingPart:
    return ThinkingPart(text, "c2ln", {"provider": "anthropic"})


@pytest.mark.parametrize("last", [user("And?"), system("Be brief."), tool_result("c1", "1")])
def test_every_turn_of_a_thread_is_looked_at(last: Message):
    thought = Message("assistant", (signed(),))
    turns = body(Anthropic(api_key="k"), (user("Hi"), thought, last, thought, assistant("Well."), thought))["messages"]
    (answer,) = [turn["content"] for turn in turns if turn["role"] == "assistant"]
    assert [block["type"] for block in answer] == ["thinking", "text"]


def test_a_thought_before_a_call_goes_back_even_from_a_message_of_its_own():
    call = Message("assistant", "", tool_calls=(ToolCall("c1", "f"),))
    thread = (user("Hi"), Message("assistant", (signed(),)), call, tool_result("c1", "1"))
    answer = body(Anthropic(api_key="k"), thread)["messages"][1]["content"]
    assert [block["type"] for block in answer] == ["thinking", "tool_use"]
    reasoned = ThinkingPart("", None, {"provider": "openai", "item": ENCRYPTED})
    thread = (user("Hi"), Message("assistant", (reasoned,)), call, tool_result("c1", "1"))
    sent = body(OpenAIResponses(api_key="k"), thread)["input"]
    assert [item.get("type") for item in sent] == [None, "reasoning", "function_call", "function_call_output", None]


def test_a_thought_that_is_left_out_is_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "rxllm")
    body(Anthropic(api_key="k"), (user("Hi"), Message("assistant", (signed("secret"),))))
    body(OpenAIChat(base_url=HERE), (user("Hi"), Message("assistant", (signed("secret"),))))
    assert all("left out" in record.getMessage() and "secret" not in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == 3  # Chat Completions does not accept the part, and then nothing is left


# Responses

ENCRYPTED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ENC"}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Well.", "annotations": []}],
}
FUNCTION = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": '}


def of_responses(*items: dict[str, Any], reason: str | None = "max_output_tokens") -> bytes:
    frames: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        begun = {**item, "status": "in_progress"} | ({"arguments": ""} if "arguments" in item else {})
        frames.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        if item is FUNCTION:
            delta = {"type": "response.function_call_arguments.delta", "output_index": index, "item_id": "fc_1"}
            frames.append({**delta, "delta": item["arguments"]})
        frames.append({"type": "response.output_item.done", "output_index": index, "item": item})
    ended = {"incomplete_details": {"reason": reason}, "status": "incomplete"} if reason else {"status": "completed"}
    kind = "response.incomplete" if reason else "response.completed"
    frames.append({"type": kind, "response": {"id": "r", "output": list(items), **ended}})
    return sse({"type": "response.created", "response": {"id": "r", "model": "m", "output": []}}, *frames, named=True)


CUT = {**FUNCTION, "status": "incomplete"}
SECOND = {**ENCRYPTED, "id": "rs_2"}
REASONED: dict[str, tuple[bytes, list[str]]] = {
    "a thought only": (of_responses(ENCRYPTED), []),
    "two thoughts": (of_responses(ENCRYPTED, SECOND), []),
    "a thought and a call that the limit cut": (of_responses(ENCRYPTED, CUT), []),
    "a thought that a filter ended": (of_responses(ENCRYPTED, reason="content_filter"), []),
    "a text and then a thought": (of_responses(MESSAGE, ENCRYPTED), ["message"]),
    "a thought, a text and a thought": (of_responses(ENCRYPTED, MESSAGE, SECOND), ["reasoning", "message"]),
    "a thought and a text": (of_responses(ENCRYPTED, MESSAGE, reason=None), ["reasoning", "message"]),
}


@pytest.mark.parametrize("options", [{}, {"store": True}])
@pytest.mark.parametrize("end", REASONED)
def test_no_reasoning_item_stands_without_the_item_that_it_led_to(end: str, options: dict[str, Any]):
    data, kept = REASONED[end]
    adapter = OpenAIResponses(api_key="k")
    items = body(adapter, thread_of(adapter, data), options=options)["input"]
    assert [item["type"] for item in items if "type" in item] == kept
    assert [item["content"] for item in items if item.get("role") == "user"] == ["Hi", "And?"]


# The other wires


def test_gemini_gets_no_thought_at_the_end_of_a_turn():
    def thought(text: str) -> ThinkingPart:
        return ThinkingPart(text, "c2ln", {"provider": "google"})

    thread = (user("Hi"), Message("assistant", (thought("a"),)), user("And?"))
    thread += (Message("assistant", (thought("b"), TextPart("Well."), thought("c"))),)
    contents = body(Gemini(api_key="k"), thread)["contents"]
    (answer,) = [content["parts"] for content in contents if content["role"] == "model"]
    assert [part["text"] for part in answer] == ["b", "Well."]


DETAILS = {"provider": "m", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}
ONLY_THOUGHTS: dict[str, tuple[Any, ThinkingPart]] = {
    "openai": (OpenAIChat(api_key="k"), ThinkingPart("Hm.")),
    "reasoning details": (OpenAIChat(base_url=HERE), ThinkingPart("Hm.", None, DETAILS)),
    "reasoning_content": (connect("deepseek", api_key="k"), ThinkingPart("Hm.")),
    "ollama": (Ollama(), ThinkingPart("Hm.", None, {"provider": "ollama"})),
}


@pytest.mark.parametrize("wire", ONLY_THOUGHTS)
def test_an_answer_of_thoughts_alone_is_left_out(wire: str):
    adapter, thought = ONLY_THOUGHTS[wire]
    only = Message("assistant", (thought,))
    assert [entry["role"] for entry in body(adapter, (user("Hi"), only))["messages"]] == ["user", "user"]
    called = Message("assistant", (thought,), tool_calls=(ToolCall("c1", "f"),))
    sent = body(adapter, (user("Hi"), called, tool_result("c1", "1")))["messages"]
    assert [entry["role"] for entry in sent] == ["user", "assistant", "tool", "user"]
    assert ("Hm." in json.dumps(sent)) is (wire in ("reasoning_content", "ollama"))
