"""Whole chats over a socket: what the model signed goes back as it came, and a call that is left is closed."""

from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import Engine, TextDelta, generate, stream_generate
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import STALL, Loopback, Reply, chat_chunk, chat_finish
from rxllm.values import Thread
from tests.adapters.gemini.support import HI, MODEL, STOP, call, data, model, reply, sse
from tests.closing import assert_closes
from tests.waiting import until

pytestmark = pytest.mark.sockets

CODE = {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "czQ="}
RESULT = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}}


@rxllm.tool
def f(x: int = 0) -> int:
    return 2 * x


def test_a_tool_run_goes_back_whole():
    thought = {"text": "hm", "thought": True, "thoughtSignature": "czE="}
    first = {**call("f", {"x": 1}, id="a"), "thoughtSignature": "czI="}
    calls = reply(data([thought]), HI, data([first, call("f", {"x": 2})]), STOP)
    with Loopback([calls, reply(HI, data([{"text": "", "thoughtSignature": "czM="}], "STOP"))]) as server:
        result = rxllm.chat(model(server), "Hi", tools=[f]).run()
        rxllm.chat(model(server), from_json(to_json(result.thread), Thread) + rxllm.user("More")).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Hi")
    asked = server.requests[2].json["contents"]
    assert server.requests[1].json["contents"] == asked[:3]
    assert asked[1:4] == [
        {"role": "model", "parts": [thought, {"text": "Hi"}, first, call("f", {"x": 2})]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {"output": "2"}, "id": "a"}},
                {"functionResponse": {"name": "f", "response": {"output": "4"}}},
            ],
        },
        {"role": "model", "parts": [{"text": "Hi"}, {"text": "", "thoughtSignature": "czM="}]},
    ]
    assert server.requests[0].path == f"/models/{MODEL}:streamGenerateContent?alt=sse"


def test_code_that_the_server_has_run_goes_back_in_its_place():
    with Loopback(reply(HI, data([CODE]), data([RESULT]), HI, STOP)) as server:
        result = rxllm.chat(model(server), "Hi").run()
        rxllm.chat(model(server), result.thread + rxllm.user("More")).run()
    assert (result.halted_reason, result.output_text) == ("completed", "HiHi")
    said = server.requests[1].json["contents"][1]["parts"]
    assert said == [{"text": "Hi"}, CODE, RESULT, {"text": "Hi"}]


def test_a_thread_goes_on_with_another_provider_and_comes_back():
    thought = {"text": "hm", "thought": True, "thoughtSignature": "czE="}
    first = {**call("f", {"x": 1}), "thoughtSignature": "czI="}
    chat_reply = Reply([chat_chunk("Hello"), chat_finish()])
    with Loopback([reply(data([thought, first]), STOP), reply(HI, STOP), chat_reply, reply(HI, STOP)]) as server:
        engine = model(server)
        thread = rxllm.chat(engine, "Hi", tools=[f]).run().thread
        other = Engine(OpenAIChat(base_url=server.url), model="m", retry=False)
        thread = rxllm.chat(other, thread + rxllm.user("You?")).run().thread
        rxllm.chat(engine, thread + rxllm.user("And you?")).run()
    assert "czE=" not in str(server.requests[2].json)
    contents = server.requests[3].json["contents"]
    assert contents[1]["parts"] == [thought, first]
    assert contents[5] == {"role": "model", "parts": [{"text": "Hello"}]}


def test_an_answer_of_no():
    error = {"error": {"code": 400, "message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}}
    with Loopback(Reply.of_json(error, 400)) as server, pytest.raises(rxllm.AdapterError) as caught:
        generate(model(server), "Hi").run()
    assert caught.value.reason == "authentication_failed"


def test_a_call_that_is_left_is_closed_at_once():
    async def leave(server: Loopback) -> None:
        events: list[Any] = []
        subscription = stream_generate(model(server), "Hi").subscribe(events.append)
        await until(lambda: any(isinstance(event, TextDelta) for event in events))
        subscription.dispose()

    assert_closes(leave, Reply([sse(HI), STALL]))
