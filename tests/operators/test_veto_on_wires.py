"""A veto over real sockets: when the connection closes, what is not sent, and what the next request holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Thread
from rxllm.events import Event
from rxllm.testing.loopback import STALL, Loopback, Reply
from rxllm.values import Call
from tests.adapters.sdk import assert_fits
from tests.closing import assert_closes
from tests.examples import examples
from tests.operators.support import of_chat, pieces_of, save

LINES = 500
"""The number of pieces that the model would send, each in a frame of its own."""


def frame(type: str, **fields: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()


def of_anthropic(pieces: list[str]) -> list[bytes]:
    start = frame("message_start", message={"id": "m1", "role": "assistant", "content": [], "usage": {}})
    deltas = [({"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "Hm."}, SIGNED])]
    deltas += [({"type": "text", "text": ""}, [{"type": "text_delta", "text": "I save it. "}])]
    call = {"type": "tool_use", "id": "call_1", "name": "save", "input": {}}
    deltas += [(call, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces])]
    frames = [start]
    for index, (block, parts) in enumerate(deltas):
        frames.append(frame("content_block_start", index=index, content_block=block))
        frames += [frame("content_block_delta", index=index, delta=part) for part in parts]
        frames.append(frame("content_block_stop", index=index))
    return [*frames, frame("message_delta", delta={"stop_reason": "tool_use"}, usage={}), frame("message_stop")]


SIGNED = {"type": "signature_delta", "signature": "c2ln"}


def of_responses(pieces: list[str]) -> list[bytes]:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    text = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    said = {"type": "output_text", "text": "I save it. ", "annotations": []}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "save", "status": "in_progress"}
    done = {**call, "arguments": "".join(pieces), "status": "completed"}
    return [
        frame("response.created", response={"id": "resp_1", "model": "m", "status": "in_progress", "output": []}),
        frame("response.output_item.added", output_index=0, item=thought),
        frame("response.output_item.done", output_index=0, item={**thought, "encrypted_content": "x"}),
        frame("response.output_item.added", output_index=1, item=text),
        frame("response.output_text.delta", output_index=1, item_id="msg_1", content_index=0, delta=said["text"]),
        frame("response.output_text.done", output_index=1, item_id="msg_1", content_index=0, text=said["text"]),
        frame("response.output_item.done", output_index=1, item={**text, "status": "completed", "content": [said]}),
        frame("response.output_item.added", output_index=2, item={**call, "arguments": ""}),
        *(
            frame("response.function_call_arguments.delta", output_index=2, item_id="fc_1", delta=piece)
            for piece in pieces
        ),
        frame("response.output_item.done", output_index=2, item=done),
        frame("response.completed", response={"id": "resp_1", "model": "m", "status": "completed", "output": [done]}),
    ]


WIRES: dict[str, tuple[Any, Any]] = {
    "chat": (rxllm.OpenAIChat, of_chat),
    "responses": (rxllm.OpenAIResponses, of_responses),
    "anthropic": (rxllm.Anthropic, of_anthropic),
}


@pytest.mark.sockets
@pytest.mark.parametrize("wire", WIRES)
def test_the_connection_closes_at_once_and_the_rest_is_not_sent(wire: str) -> None:
    adapter, frames_of = WIRES[wire]
    frames = frames_of(pieces_of("x" * LINES))
    begun = [*frames[: len(frames) // 2], STALL]

    def refuse(server: Loopback) -> None:
        engine = rxllm.Engine(adapter(base_url=server.url, api_key="k"), model="m", retry=False)
        step = rxllm.step(engine, "Hi", tools=[save]).run()
        assert [message.text for message in step.tool_results] == ['{"error":"/etc/passwd is not in the folder"}']
        assert step.response.output_text == "I save it. "

    assert_closes(refuse, Reply(begun))


# The next request


def vetoed(wire: str, sizes: list[int]) -> Thread:
    """The thread after a veto of what a provider sends, read in pieces of these sizes."""
    data = b"".join(WIRES[wire][1](pieces_of("x" * LINES)))
    adapter = WIRES[wire][0](api_key="k")

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        decoder, at, turn = adapter.decoder(request), 0, 0
        while at < len(data):
            size = sizes[turn % len(sizes)]
            for event in decoder.feed(data[at : at + size]):
                yield event
            at, turn = at + size, turn + 1
            await asyncio.sleep(0)
        for event in decoder.close():
            yield event

    return rxllm.step(model, "Hi", tools=[save]).run().thread


@settings(deadline=None, max_examples=examples(20))
@given(st.sampled_from(list(WIRES)), st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_in_whatever_pieces_it_is_read_the_thread_is_the_same(wire: str, sizes: list[int]) -> None:
    thread = vetoed(wire, sizes)
    assert thread == vetoed(wire, [97])
    (call,) = thread[-2].tool_calls
    assert (call.arguments, call.raw_arguments) == ({"path": "/etc/passwd"}, None)


@cache
def thread_of(wire: str) -> Thread:
    return vetoed(wire, [64])


@pytest.mark.parametrize("first", WIRES)
def test_openais_chat_accepts_it(first: str) -> None:
    body = built(rxllm.OpenAIChat(api_key="k"), first)
    (call,) = body["messages"][-2]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "/etc/passwd"}
    assert body["messages"][-1]["tool_call_id"] == call["id"]
    assert_fits("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming", body)


@pytest.mark.parametrize("first", WIRES)
def test_openais_responses_accept_it(first: str) -> None:
    body = built(rxllm.OpenAIResponses(api_key="k"), first)
    call, output = body["input"][-2:]
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"path": "/etc/passwd"})
    assert (output["type"], output["call_id"]) == ("function_call_output", call["call_id"])
    assert call.get("status", "completed") == "completed"
    given = [
        {"id": "i", "status": "completed", **item} if item.get("role") == "assistant" else item
        for item in body["input"]
    ]
    given = [{"id": "i", **item} if item.get("type") == "reasoning" else item for item in given]
    assert_fits(
        "openai.types.responses.response_create_params", "ResponseCreateParamsStreaming", {**body, "input": given}
    )


@pytest.mark.parametrize("first", WIRES)
def test_anthropic_accepts_it(first: str) -> None:
    body = built(rxllm.Anthropic(api_key="k"), first)
    answer, results = body["messages"][-2:]
    assert answer["content"][-1]["input"] == {"path": "/etc/passwd"}
    assert results["content"][0]["tool_use_id"] == answer["content"][-1]["id"]
    if first == "anthropic":  # a signed thought goes back whole, as the API requires before a call
        assert answer["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    assert_fits("anthropic.types.message_create_params", "MessageCreateParamsStreaming", body)


@pytest.mark.parametrize("first", WIRES)
def test_gemini_accepts_it(first: str) -> None:
    body = built(rxllm.Gemini(api_key="k"), first)
    answer, results = body["contents"][-2:]
    assert answer["parts"][-1]["functionCall"]["args"] == {"path": "/etc/passwd"}
    assert results["parts"][0]["functionResponse"]["name"] == "save"
    for content in body["contents"]:
        assert_fits("google.genai.types", "Content", content)


@pytest.mark.parametrize("first", WIRES)
def test_ollama_accepts_it(first: str) -> None:
    body = built(rxllm.Ollama(), first)
    (call,) = body["messages"][-2]["tool_calls"]
    assert call["function"] == {"name": "save", "arguments": {"path": "/etc/passwd"}}
    assert body["messages"][-1]["tool_call_id"] == call["id"]


def built(adapter: Any, first: str) -> dict[str, Any]:
    messages = thread_of(first).messages
    request = rxllm.Request(messages, "m", max_tokens=100)
    return msgspec.json.decode(adapter.build(request, Call()).content)
