"""When an answer has heartbeats, and when a client is given up: in virtual time, on a network in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Event, OpenAIChat, Stream, web
from rxllm.testing import World, simulate, simulate_cancels
from rxllm.testing.loopback import STALL, Pause, Reply, chat_chunk, chat_finish

SLOW = Reply([chat_chunk("a"), Pause(40), chat_chunk("b"), chat_finish()])
Sent = list[tuple[float, bytes]]


class Client:
    """What an ASGI server calls an application with; it takes chunks as `take` does."""

    def __init__(self, take: Callable[[bytes], Awaitable[None]] | None = None) -> None:
        self.sent: Sent = []
        self.leaves = asyncio.Event()
        self._take = take
        self._body: bytes | None = None
        self._start = asyncio.get_running_loop().time()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.sent.append((round(asyncio.get_running_loop().time() - self._start), message["body"]))
            if self._take is not None:
                await self._take(message["body"])

    async def get(self, stream: Stream[Event], **options: Any) -> None:
        response = web.streaming_response(stream, **options)
        await response({"type": "http", "method": "GET"}, self.receive, self.send)

    async def ask(self, engine: Any, **options: Any) -> None:
        """Ask an `openai_app` for a stream."""
        messages = [{"role": "user", "content": "Hi"}]
        self._body = json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        await web.openai_app({"m": engine}, **options)(scope, self.receive, self.send)

    def heartbeats(self) -> list[float]:
        return [at for at, body in self.sent if body == b":\n\n"]


def engine_of(world: World, reply: Reply) -> Engine:
    return Engine(OpenAIChat(base_url=world.serve(reply).url, api_key="k"), model="m", retry=False)


def stream_of(world: World, reply: Reply) -> Stream[Event]:
    return rxllm.stream_generate(engine_of(world, reply), "Hi")


@pytest.mark.parametrize(("heartbeat", "expected"), [(15.0, [15, 30]), (39.0, [39]), (41.0, []), (None, [])])
def test_a_silent_stream_sends_heartbeats(heartbeat: float | None, expected: list[float]) -> None:
    async def app(world: World) -> Client:
        client = Client()
        await client.get(stream_of(world, SLOW), heartbeat=heartbeat)
        return client

    client = simulate(app, faults=()).value
    assert client.heartbeats() == expected
    assert client.sent[-1] == (40, b"")
    assert b'"end"' in client.sent[-2][1]


def test_heartbeats_begin_before_the_model_speaks() -> None:
    async def app(world: World) -> Client:
        client = Client()
        asyncio.get_running_loop().call_later(50, client.leaves.set)
        await client.get(stream_of(world, Reply(before=STALL)))
        return client

    assert simulate(app, faults=()).value.heartbeats() == [15, 30, 45]


@pytest.mark.parametrize("heartbeat", [15.0, 100.0, None])
def test_a_browser_that_takes_nothing_is_given_up(heartbeat: float | None) -> None:
    async def never(body: bytes) -> None:
        await asyncio.Event().wait()

    async def app(world: World) -> tuple[Client, float]:
        client = Client(never)
        await client.get(stream_of(world, SLOW), heartbeat=heartbeat, send_timeout=30)
        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(1)  # until the server knows
        assert [server.open_count for server in world.servers] == [0]
        return client, ended

    client, ended = simulate(app, faults=()).value
    assert len(client.sent) == 1
    assert 30 <= ended < 31


def test_a_browser_that_is_slow_but_takes_is_not_given_up() -> None:
    async def slowly(body: bytes) -> None:
        await asyncio.sleep(20)

    async def app(world: World) -> Client:
        client = Client(slowly)
        await client.get(stream_of(world, SLOW), send_timeout=30)
        return client

    client = simulate(app, faults=()).value
    assert client.heartbeats() == []  # something was always under way
    assert client.sent[-1][1] == b""


@pytest.mark.judges
def test_no_cancel_and_no_fault_leaves_anything_behind() -> None:
    async def app(world: World) -> None:
        client = Client()
        leaving = asyncio.get_running_loop().call_later(60, client.leaves.set)
        try:
            await client.get(stream_of(world, SLOW))
        finally:
            leaving.cancel()

    for seed in range(30):
        simulate(app, seed)
    simulate_cancels(app)


# openai_app


def test_a_silent_answer_of_openai_app_has_heartbeats() -> None:
    async def app(world: World) -> Client:
        client = Client()
        await client.ask(engine_of(world, SLOW))
        return client

    client = simulate(app, faults=()).value
    assert client.heartbeats() == [15, 30]
    assert b"data: [DONE]" in client.sent[-1][1]


def test_a_client_of_openai_app_that_reads_nothing_gets_no_heartbeats() -> None:
    taken = asyncio.Event()

    async def app(world: World) -> Client:
        client = Client(lambda body: taken.wait())
        asyncio.get_running_loop().call_later(100, taken.set)
        await client.ask(engine_of(world, SLOW))
        return client

    client = simulate(app, faults=()).value
    assert client.heartbeats() == []
    assert b"data: [DONE]" in client.sent[-1][1]


@pytest.mark.parametrize("takes", [True, False])
def test_an_answer_of_openai_app_takes_no_longer_than_its_time_limit(takes: bool) -> None:
    async def never(body: bytes) -> None:
        await asyncio.Event().wait()

    async def app(world: World) -> tuple[Client, float]:
        client = Client(None if takes else never)
        await client.ask(engine_of(world, Reply([chat_chunk("a"), STALL])), timeout=30)
        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(1)  # until the server knows
        assert [server.open_count for server in world.servers] == [0]
        return client, ended

    client, ended = simulate(app, faults=()).value
    assert 30 <= ended < 32  # a second to say why
    assert b"too long" in client.sent[-1][1]
