"""The calls of a loop are spread over small pools, which a burst leaves to the next and time closes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpcore
import pytest

from rxllm import Engine, generate
from rxllm.http import pools
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Loopback, Pause, Reply, Request, chat, chat_chunk
from tests.http.support import held
from tests.runtime.support import model
from tests.waiting import until

pytestmark = pytest.mark.sockets


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

    def answer(request: Request) -> Reply:
        burst = -(-len(server.requests) // calls)
        whole = held(lambda: len(server.requests) >= burst * calls)  # so that each call has a connection of its own
        return Reply(itertools.chain([chat_chunk("Hel")], whole, chat("lo")))

    with monkeypatch.context() as patched, Loopback(answer) as server:
        patched.setattr(httpcore.AsyncHTTPConnection, "is_idle", counted)
        asyncio.run(main())
    return count


@pytest.mark.judges
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


def test_connections_that_a_burst_leaves_open_are_closed_when_they_have_been_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "IDLE_SECONDS", 2.0)  # less than a connection is kept for

    async def app(world: World) -> None:
        server = world.serve(Reply([chat_chunk("Hel"), Pause(0.2), *chat("lo")]))
        engine = model(server)
        await asyncio.gather(*(generate(engine, "Hi") for _ in range(20)))
        assert server.open_count == 20
        await until(lambda: server.open_count <= pools.CALLS)
        assert asyncio.get_running_loop().time() == pytest.approx(2.2, abs=0.1)
        assert server.open_count > 0
        await await_one(engine)
        assert len(server.connections) == 20

    simulate(app, faults=())
