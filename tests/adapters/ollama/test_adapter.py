"""Whole chats with an Ollama server over a socket, why it says no, and that a call that is left is closed."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Engine, TextDelta, generate, stream_generate
from rxllm.adapters.ollama import Ollama
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import STALL, Loopback, Reply
from rxllm.values import Thread
from tests.adapters.ollama.support import HI, STOP, call, line
from tests.closing import assert_closes
from tests.waiting import until

pytestmark = pytest.mark.sockets

NDJSON = {"Content-Type": "application/x-ndjson"}


def model(server: Loopback) -> Engine:
    return Engine(Ollama(base_url=server.url), model="m", retry=False)


def reply(*lines: bytes) -> Reply:
    return Reply([*lines, STOP], headers=NDJSON)


@rxllm.tool
def f(x: int = 0) -> int:
    return 2 * x


def test_a_tool_run_goes_back_whole():
    calls = reply(line("", thinking="hm"), HI, line("", tool_calls=[call("f", {"x": 1}), call("f", {"x": 2})]))
    with Loopback([calls, reply(HI)]) as server:
        result = rxllm.chat(model(server), "Hi", tools=[f]).run()
        rxllm.chat(model(server), from_json(to_json(result.thread), Thread) + rxllm.user("More")).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Hi")
    asked = server.requests[2].json["messages"]
    assert server.requests[1].json["messages"] == asked[:4]
    assert asked[1:5] == [
        {
            "role": "assistant",
            "content": "Hi",
            "tool_calls": [
                {"id": "call_0", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "call_1", "function": {"name": "f", "arguments": {"x": 2}}},
            ],
            "thinking": "hm",
        },
        {"role": "tool", "content": "2", "tool_call_id": "call_0", "tool_name": "f"},
        {"role": "tool", "content": "4", "tool_call_id": "call_1", "tool_name": "f"},
        {"role": "assistant", "content": "Hi"},
    ]
    assert server.requests[0].path == "/api/chat"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, {"error": "model 'm' not found"}, "invalid_request"),
        (400, {"error": '"m" does not support tools'}, "invalid_request"),
        (400, {"error": "the input length exceeds the context length"}, "context_length_exceeded"),
        (401, {"error": "unauthorized"}, "authentication_failed"),
        (429, {"error": "you've reached your hourly usage limit"}, "rate_limited"),
        (500, {"error": "llama runner process has terminated: exit status 2"}, "provider_unavailable"),
        (503, {"error": "server busy, please try again. maximum pending requests exceeded"}, "provider_unavailable"),
    ],
)
def test_an_answer_of_no(status: int, body: Any, expected: str):
    with Loopback(Reply.of_json(body, status)) as server, pytest.raises(rxllm.AdapterError) as caught:
        generate(model(server), "Hi").run()
    error = caught.value
    assert (error.reason, error.status, error.provider) == (expected, status, "ollama")
    assert error.message.partition(" (http")[0].removesuffix(" (ollama, model m)") == body["error"]


def test_a_call_that_is_left_is_closed_at_once():
    async def leave(server: Loopback) -> None:
        events: list[Any] = []
        subscription = stream_generate(model(server), "Hi").subscribe(events.append)
        await until(lambda: any(isinstance(event, TextDelta) for event in events))
        subscription.dispose()

    assert_closes(leave, Reply([HI, STALL], headers=NDJSON))
