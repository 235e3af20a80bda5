"""Requests at the limits: long ones are read in linear time or refused at once, and the loop serves others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import Fake, Thread, ToolCall, ValidationError, web
from rxllm.web import _openai_app
from tests.waiting import PATIENCE, until
from tests.web.ag_ui import ask
from tests.web.work import assert_linear, steps

pytestmark = pytest.mark.judges

USER = {"role": "user", "parts": [{"type": "text", "text": "a"}]}
FUNCTION = {"name": "f", "arguments": "{}"}


def ui(messages: list[Any]) -> Any:
    return lambda stored=None: web.from_ui(json.dumps({"messages": messages}), stored)


def ag_ui(messages: list[Any], **fields: Any) -> Any:
    body = json.dumps({"threadId": "t", "runId": "r", "messages": messages, **fields})
    return lambda stored=None: web.from_ag_ui(body, stored)


def calls(count: int, **function: Any) -> list[Any]:
    return [
        {"id": "m", "role": "assistant", "toolCalls": [{"id": f"c{i}", "function": {**FUNCTION, **function}}]}
        for i in range(count)
    ]


def refusal(read: Callable[[], Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        read()
    ((path, fault),) = caught.value.errors
    assert path == ("body",)
    return fault


TOO_MANY: list[Any] = [
    lambda times: ui([USER] * 50_000 * times),
    lambda times: ag_ui([{"role": "user", "content": "a"}] * 75_000 * times),
    lambda times: ag_ui(calls(30_000) * times),
    lambda times: ag_ui([], state=[[]] * 500_000 * times),
    lambda times: ag_ui([], state={"a": [0] * 1_000_000 * times}),
    lambda times: ag_ui(calls(10, arguments='{"a":[' + "[]," * 100_000 * times + "0]}")),
    lambda times: lambda: web.from_ui({"messages": [USER] * 50_000 * times}),  # as a framework has parsed it
]


@pytest.mark.parametrize("make", TOO_MANY)
def test_more_values_than_a_request_may_hold_are_refused_at_once(make: Any) -> None:
    """Nobody looks at the values above the limit."""
    once, twice = [steps(partial(assert_refused, make(times))) for times in (1, 2)]
    assert twice <= 1.01 * once, (once, twice)


def assert_refused(read: Callable[[], Any]) -> None:
    assert refusal(read) == "has more than 100000 values"


@pytest.mark.parametrize("depth", [70, 600, 40_000])
def test_arguments_that_are_nested_too_deep_are_refused(depth: int) -> None:
    deep = '{"a":' + "[" * depth + "]" * depth + "}"
    assert refusal(ag_ui(calls(1, arguments=deep))) == "is nested more than 64 levels deep"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    answer = asyncio.run(post({"model": "m", "messages": messages}))
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        "the body is nested more than 64 levels deep",
    )


def test_texts_and_files_may_be_long_whatever_they_hold() -> None:
    text = "[{,\"\\'" * 400_000
    incoming = ui([{"role": "user", "parts": [{"type": "text", "text": text}]}])()
    assert incoming.thread[0].text == text
    assert ag_ui([{"role": "user", "content": text}])().thread[0].text == text
    unparsed = [*calls(1, arguments="no JSON, " * 9_000), {"role": "tool", "toolCallId": "c0", "content": "x"}]
    assert ag_ui(unparsed)().thread[0].tool_calls[0].metadata == {"error": "invalid_json"}


@pytest.mark.parametrize(
    "read", [lambda n: ui([USER] * n), lambda n: ag_ui([{"id": "m", "role": "user", "content": "a"}] * n)]
)
def test_the_end_that_a_request_shares_with_the_stored_thread_is_found_in_linear_time(read: Any) -> None:
    def find(size: int) -> None:
        stored = Thread([*(rxllm.user("a") for _ in range(size - 1)), rxllm.user("b"), rxllm.user("a")])
        assert len(read(size)(stored).thread) == size + 1 + size - 1
        assert len(read(size)(stored[:-2]).thread) == size
        assert len(read(size)(Thread()).thread) == size

    assert_linear(find, 500)
    find(16_000)


def test_a_question_is_answered_once() -> None:
    stored = rxllm.chat(Fake([ToolCall("c1", "ask", {"question": "Which?"})]), "Hi", tools=[ask]).run()
    answer = {"interruptId": "c1", "status": "resolved", "payload": "b"}

    def read(count: int) -> None:
        incoming = ag_ui([], resume=[answer] * count)(stored)
        assert incoming.thread.messages == (*stored.thread, rxllm.user("b"))

    assert_linear(read, 500)
    read(20_000)


async def post(body: Any) -> httpx.Response:
    app = web.openai_app({"m": Fake("Hello")})
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://served/v1/", timeout=60
    ) as client:
        return await client.post("chat/completions", content=json.dumps(body).encode())


def test_the_loop_goes_on_while_the_openai_app_reads_a_long_request(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go = threading.Event(), threading.Event()

    def read(*arguments: Any) -> Any:
        reading.set()
        assert go.wait(PATIENCE)  # for the loop
        return read_request(*arguments)

    async def main() -> httpx.Response:
        posting = asyncio.create_task(post(body))
        await until(reading.is_set)
        go.set()
        return await posting

    read_request = _openai_app.read_request
    monkeypatch.setattr(_openai_app, "read_request", read)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}] * 30_000}
    assert asyncio.run(main()).status_code == 200
    refused = asyncio.run(post({**body, "stop": ["a"] * 1_000_000}))
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "the body has more than 100000 values")
