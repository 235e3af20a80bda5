"""Apps that are run in simulation, and what they share: also run in processes of their own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

import httpx
import reactivex

import rxllm
from rxllm import tool
from rxllm.testing import SimulationError, World, simulate
from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, Request, chat, chat_chunk, chat_event, chat_finish


def engine_of(server: Loopback, **options: Any) -> rxllm.Engine:
    return rxllm.Engine(rxllm.OpenAIChat(base_url=server.url, api_key="k"), model="m", **options)


def with_tools(request: Request) -> Reply:
    """Two calls of ``double``; then the answer."""
    if is_answered(request):
        return Reply(chat("It is ", "42", "."))
    calls = [{"index": i, "id": f"c{i}", "type": "function"} for i in (0, 1)]
    functions = [{"name": "double", "arguments": json.dumps({"x": x})} for x in (21, 4)]
    frames = [chat_event({"tool_calls": [{**call, "function": f}]}) for call, f in zip(calls, functions, strict=True)]
    return Reply([*frames, chat_finish("tool_calls"), DONE])


def is_answered(request: Request) -> bool:
    return any(message["role"] == "tool" for message in request.json["messages"])


def slowly(request: Request) -> Reply:
    return Reply([chat_chunk("Hello "), Pause(0.2), chat_chunk("world"), Pause(1.0), *chat("!")], before=0.3)


@tool
async def double(x: int) -> int:
    """Double a number."""
    await asyncio.sleep(0.5)
    return 2 * x


async def chat_with_tools(world: World) -> str:
    result = await rxllm.chat(engine_of(world.serve(with_tools)), "Double 21!", tools=[double])
    assert result.error is not None or result.output_text == "It is 42."
    return result.output_text


async def children(world: World) -> None:
    """A parent with two children: the tool makes a call of its own."""
    inner = engine_of(world.serve(slowly))

    @tool(name="double")
    async def ask(x: int) -> str:
        """Ask another model."""
        return (await rxllm.generate(inner, "Hi")).output_text

    await world.cancellable(rxllm.chat(engine_of(world.serve(with_tools)), "?", tools=[ask], tool_timeout=20.0))


# Apps with a bug each


@tool(name="double")
async def deaf(x: int) -> int:
    """Double a number, whatever happens."""
    while True:
        try:
            await asyncio.sleep(60)
            return 2 * x
        except asyncio.CancelledError:
            pass


async def lost_cancel(world: World) -> None:
    await rxllm.chat(engine_of(world.serve(with_tools)), "Double 21!", tools=[deaf])


async def lost_place(world: World) -> None:
    """A plain client of httpx, whose pool (httpcore 1.0.9) loses its place when a call is cancelled in its queue."""
    server = world.serve(Reply(b"hello"))
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1), timeout=5.0) as client:
        try:
            await world.cancellable(client.get(server.url))
            await client.get(server.url)
        except httpx.HTTPError:
            assert world.faults


async def left_timer(world: World) -> None:
    ticks = reactivex.interval(30.0).subscribe()
    await rxllm.chat(engine_of(world.serve(with_tools)), "Double 21!", tools=[double])
    ticks.dispose()  # not if the chat has failed


async def double_retry(world: World) -> None:
    """A retry around a call that retries itself."""
    server = world.serve(with_tools)
    engine = engine_of(server)
    try:
        for _ in range(3):
            try:
                await rxllm.chat(engine, "Double 21!", tools=[double])
                break
            except rxllm.AdapterError:
                pass
    finally:
        first = [request for request in server.requests if not is_answered(request)]
        assert len(first) <= 3, f"asked {len(first)} times"


BUGS = {app.__name__: app for app in (lost_cancel, lost_place, left_timer, double_retry)}


def fingerprint(app: Any, seeds: range) -> str:
    """Return a hash of the traces of `app`, found failures among them."""
    digest = hashlib.sha256()
    for seed in seeds:
        try:
            trace = simulate(app, seed).trace
        except SimulationError as error:
            trace = error.trace
        digest.update("\n".join(map(str, trace)).encode())
    return digest.hexdigest()


def fingerprints(names: Iterable[str], seeds: range) -> dict[str, str]:
    return {name: fingerprint(globals()[name], seeds) for name in names}


if __name__ == "__main__":
    start, stop, *names = sys.argv[1:]
    print(json.dumps(fingerprints(names, range(int(start), int(stop)))))
