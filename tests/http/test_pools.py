"""The calls of a loop are spread over small pools, which a burst leaves to the next and time closes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpcore
import pytest

from rxllm import Engine, generate
from rxllm.http import pools
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk
from tests.runtime.support import model, until


async def await_one(engine: Engine) -> None:
    assert (await generate(engine, "Hi")).output_text == "Hello"


def looks(monkeypatch: pytest.MonkeyPatch, calls: int) -> int:
    """How often httpcore looks whether a connection is idle in a burst of `calls` that finds its connections open."""
    count = 0
    is_idle = httpcore.AsyncHTTPConnection.is_idle

    def counted(self: Any) -> bool:
        nonlocal count
        count += 1
        return is_idle(self)

    async def burst(engine: Engine) -> None:
        await asyncio.gather(*(generate(engine, "Hi") for _ in range(calls)))

    async def main() -> None:
        nonlocal count
        engine = model(server)
        await burst(engine)
        assert server.open_count == len(server.connections) == calls
        count = 0
        await burst(engine)
        assert len(server.connections) == calls

    with monkeypatch.context() as patched, Loopback(Reply([chat_chunk("Hel"), Pause(0.3), *chat("lo")])) as server:
        patched.setattr(httpcore.AsyncHTTPConnection, "is_idle", counted)
        asyncio.run(main())
    return count


@pytest.mark.long
def test_a_second_burst_uses_the_first_ones_connections_at_a_cost_that_grows_with_the_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looks(monkeypatch, 80) < 6 * looks(monkeypatch, 20)


def test_pools_that_are_closed_leave_no_timer() -> None:
    """It would keep a client in memory until its time."""

    async def app(world: World) -> int:
        server = world.serve(Reply([chat_chunk("Hel"), Pause(0.2), *chat("lo")]))
        engine = model(server)
        await asyncio.gather(*(generate(engine, "Hi") for _ in range(3 * pools.CALLS)))
        return len(server.connections)

    assert simulate(app, faults=()).value == 3 * pools.CALLS


def test_what_a_burst_leaves_open_is_closed_when_it_has_been_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        engine = model(server)
        await asyncio.gather(*(generate(engine, "Hi") for _ in range(20)))
        await until(lambda: server.open_count <= pools.CALLS)
        assert server.open_count > 0
        await await_one(engine)
        assert len(server.connections) == 20

    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.05)
    with Loopback(Reply([chat_chunk("Hel"), Pause(0.2), *chat("lo")])) as server:
        asyncio.run(main())
