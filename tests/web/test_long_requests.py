"""Requests at the limits: long ones are read in linear time or refused at once, and the loop serves others."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import Fake, Thread, ToolCall, ValidationError, web
from tests.web.test_ag_ui import ask

pytestmark = pytest.mark.long

SECONDS = 2.0
"""Seconds of this process that a request at the limits may take: it takes a fifth of that on a quiet machine."""

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


def timed(read: Callable[..., Any], *arguments: Any) -> Any:
    began = time.process_time()
    try:
        return read(*arguments)
    finally:
        assert time.process_time() - began < SECONDS


def refusal(read: Callable[[], Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        timed(read)
    ((path, fault),) = caught.value.errors
    assert path == ("body",)
    return fault


@pytest.mark.parametrize(
    "read",
    [
        *(ui([USER] * 100_000), ag_ui([{"role": "user", "content": "a"}] * 150_000), ag_ui(calls(60_000))),
        *(ag_ui([], state=[[]] * 1_000_000), ag_ui([], state={"a": [0] * 2_000_000})),
        ag_ui(calls(10, arguments='{"a":[' + "[]," * 200_000 + "0]}")),
        lambda: web.from_ui({"messages": [USER] * 100_000}),  # as a framework has parsed it
    ],
)
def test_more_values_than_a_request_may_hold_are_refused_at_once(read: Any) -> None:
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
    incoming = timed(ui([{"role": "user", "parts": [{"type": "text", "text": text}]}]))
    assert incoming.thread[0].text == text
    assert timed(ag_ui([{"role": "user", "content": text}])).thread[0].text == text
    unparsed = [*calls(1, arguments="no JSON, " * 9_000), {"role": "tool", "toolCallId": "c0", "content": "x"}]
    assert timed(ag_ui(unparsed)).thread[0].tool_calls[0].metadata == {"error": "invalid_json"}


@pytest.mark.parametrize("read", [ui([USER] * 16_000), ag_ui([{"id": "m", "role": "user", "content": "a"}] * 16_000)])
def test_what_the_thread_ends_with_is_found_in_linear_time(read: Any) -> None:
    stored = Thread([*(rxllm.user("a") for _ in range(15_999)), rxllm.user("b"), rxllm.user("a")])
    assert len(timed(read, stored).thread) == 16_001 + 15_999
    assert len(timed(read, stored[:-2]).thread) == 16_000
    assert len(timed(read, Thread()).thread) == 16_000


def test_a_question_is_answered_once() -> None:
    stored = rxllm.chat(Fake([ToolCall("c1", "ask", {"question": "Which?"})]), "Hi", tools=[ask]).run()
    answer = {"interruptId": "c1", "status": "resolved", "payload": "b"}
    incoming = timed(ag_ui([], resume=[answer] * 20_000), stored)
    assert incoming.thread.messages == (*stored.thread, rxllm.user("b"))


async def post(body: Any) -> httpx.Response:
    app = web.openai_app({"m": Fake("Hello")})
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://served/v1/", timeout=60
    ) as client:
        return await client.post("chat/completions", content=json.dumps(body).encode())


async def beaten(work: Any) -> tuple[httpx.Response, float, float]:
    """The response, how long it took, and for how long the loop stood still at most."""
    stalls: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - began)

    beating, began = asyncio.ensure_future(beat()), time.perf_counter()
    response = await work
    await asyncio.sleep(0.002)
    beating.cancel()
    return response, time.perf_counter() - began, max(stalls)


def test_a_long_request_to_the_openai_app_lets_the_loop_go_on() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}] * 30_000}
    response, seconds, longest = asyncio.run(beaten(post(body)))
    assert response.status_code == 200
    assert longest < seconds / 2
    refused, _, _ = asyncio.run(beaten(post({**body, "stop": ["a"] * 1_000_000})))
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "the body has more than 100000 values")
