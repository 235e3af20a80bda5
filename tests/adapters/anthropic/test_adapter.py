"""Whole chats over a socket: what the model said goes back as it came, and a call that is left is closed."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Engine, PartAdded, TextDelta, generate, stream_generate
from rxllm import operators as ops
from rxllm.adapters.anthropic import Anthropic
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import STALL, Loopback, Reply
from rxllm.values import ProviderPart, Thread
from tests.adapters.anthropic.support import (
    CALL_A,
    END,
    HI,
    PING,
    START,
    begin,
    delta,
    finish,
    json_of,
    stop,
    tool_use,
)
from tests.closing import assert_closes
from tests.waiting import until

pytestmark = pytest.mark.sockets

THINKING = (
    begin(0, type="thinking", thinking="", signature="")
    + delta(0, "thinking_delta", thinking="hm")
    + delta(0, "signature_delta", signature="s")
    + stop(0)
)
SEARCH = begin(0, type="server_tool_use", id="s", name="web_search", input={}) + json_of(0, '{"query": "q"}') + stop(0)
RESULT = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
STALLED = Reply([START, begin(0, type="text", text=""), delta(0, "text_delta", text="c"), PING, STALL])


def model(server: Loopback) -> Engine:
    return Engine(Anthropic(base_url=server.url), model="m", retry=False)


def reply(*frames: bytes) -> Reply:
    return Reply([START, *frames, END])


@rxllm.tool
def f(x: int = 0) -> int:
    return 2 * x


def test_a_tool_run_goes_back_whole():
    calls = reply(THINKING, HI, CALL_A, tool_use(2, "b") + stop(2), finish("tool_use"))
    with Loopback([calls, reply(HI, finish())]) as server:
        result = rxllm.chat(model(server), "Hi", tools=[f]).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Hi")
    assert server.requests[1].json["messages"] == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Hi"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "2"},
                {"type": "tool_result", "tool_use_id": "b", "content": "0"},
            ],
        },
    ]


def test_a_turn_that_pauses_goes_on_by_itself():
    paused = reply(SEARCH, finish("pause_turn", container={"id": "c1"}))
    with Loopback([paused, reply(begin(0, **RESULT) + stop(0), HI, finish())]) as server:
        result = rxllm.chat(model(server), "Hi").run()
    asked = server.requests[1].json
    assert (result.halted_reason, len(result.steps), asked["container"]) == ("completed", 2, "c1")
    assert asked["messages"][1:] == [
        {
            "role": "assistant",
            "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}],
        }
    ]


def test_the_result_of_a_server_tool_goes_back_also_through_json():
    with Loopback(reply(SEARCH, begin(1, **RESULT) + stop(1), HI, finish())) as server:
        result = rxllm.chat(model(server), "Hi").run()
        rxllm.chat(model(server), from_json(to_json(result.thread), Thread) + rxllm.user("More")).run()
    said = server.requests[1].json["messages"][1]["content"]
    assert said == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        RESULT,
        {"type": "text", "text": "Hi"},
    ]


def test_no_filter_of_raw_chunks_takes_a_part():
    with Loopback(reply(SEARCH, begin(1, **RESULT) + stop(1), HI, finish())) as server:
        whole = generate(model(server), "Hi").run()
        filtered = stream_generate(model(server), "Hi").pipe(ops.include_raw_chunks(), ops.to_response()).run()
        kept = stream_generate(model(server), "Hi").filter(lambda event: isinstance(event, PartAdded)).to_list().run()
    assert filtered == whole
    assert kept == [PartAdded(ProviderPart("anthropic", RESULT))]
    assert from_json(to_json(kept[0])) == kept[0]


def test_an_answer_of_no():
    error: dict[str, Any] = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    with Loopback(Reply.of_json(error, 401)) as server, pytest.raises(rxllm.AdapterError) as caught:
        generate(model(server), "Hi").run()
    assert (caught.value.reason, caught.value.code) == ("authentication_failed", "authentication_error")


def test_a_call_that_is_left_is_closed_at_once():
    async def leave(server: Loopback) -> None:
        events: list[Any] = []
        subscription = stream_generate(model(server), "Hi").subscribe(events.append)
        await until(lambda: any(isinstance(event, TextDelta) for event in events))
        subscription.dispose()

    assert_closes(leave, STALLED)
