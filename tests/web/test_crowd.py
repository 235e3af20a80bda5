"""Many requests, to engines of every kind, whose clients leave when they like: nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake, ToolCall, web
from rxllm import operators as ops
from rxllm.testing.loopback import STALL, Loopback, Pause, Reply, Request, chat, chat_chunk, endless
from rxllm.web._codec import PROTOCOLS
from tests.runtime.support import model
from tests.waiting import until
from tests.web.serving import Browser, serving

REQUESTS, AT_ONCE = 1000 if os.environ.get("RXLLM_JUDGES") == "required" else 200, 100


def engines(server: Loopback) -> dict[str, Engine]:
    """Engines that ask `server` in every way in which one asks more than once, or not to the end."""
    plain = model(server)
    agent = plain.as_tool(name="agent", description="Helps.")
    return {
        "plain": plain,
        "race": plain.with_operators(ops.race(rxllm.stream_generate(plain, "Hi"))),
        "hedge": plain.with_operators(ops.hedge(0.005)),
        "fallback": plain.with_operators(ops.fallback(plain)),
        "guard": plain.with_operators(ops.guard(lambda text: "bad" not in text)),
        "time_limits": plain.with_operators(ops.time_limits(idle=1.0)),
        "agent": Engine(Fake(_call_agent), tools=[agent]),
    }


def _call_agent(request: rxllm.Request) -> Any:
    return "Done." if request.messages[-1].role == "tool" else ToolCall("c1", "agent", {"prompt": "Hi"})


def provider(seed: int) -> Any:
    """A provider that answers, fails, stalls and never ends."""
    chance = random.Random(seed)

    def reply(request: Request) -> Reply:
        match chance.randrange(8):
            case 0:
                return Reply(b'{"error": {"message": "No."}}', 500)
            case 1:
                return Reply(before=STALL)
            case 2:
                return Reply([chat_chunk("a"), STALL])
            case 3:
                return Reply(endless())
            case 4:
                return Reply([chat_chunk("This is bad. "), Pause(0.01), *chat("More.")])
            case _:
                return Reply(chat("Hel", "lo"))

    return reply


def app_of(served: dict[str, Engine]) -> Any:
    """An app that serves engines to browsers, by name and protocol, as runs, and to programs."""
    programs, runs = web.openai_app(served), web.Runs(grace=1.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        match scope["path"].split("/")[1:]:
            case ["v1", *_]:
                await programs(scope, receive, send)
            case ["runs", name, id]:
                stream = runs.watch(id) or runs.start(id, rxllm.stream(served[name], "Hi"))
                await web.streaming_response(stream)(scope, receive, send)
            case [name, protocol]:
                await web.streaming_response(rxllm.stream(served[name], "Hi"), protocol)(scope, receive, send)

    return app


async def _come_and_go(port: int, names: list[str], chance: random.Random) -> None:
    name = chance.choice(names)
    match chance.randrange(4):
        case 0:
            body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "stream": chance.random() < 0.7}
            asked = Browser.ask(port, "/v1/chat/completions", "POST", json.dumps(body).encode())
        case 1:
            asked = Browser.ask(port, f"/runs/{name}/{name}{chance.randrange(5)}")
        case _:
            asked = Browser.ask(port, f"/{name}/{chance.choice([*PROTOCOLS])}")
    most, seconds = chance.choice([0, 1, 300, 1000, 100_000]), chance.choice([0.0, 0.02, 0.2, 0.2, 1.2])
    async with await asked as browser:
        try:
            async with asyncio.timeout(seconds):
                while len(browser.body) < most and await browser.read():
                    pass
        except (TimeoutError, ConnectionError):
            pass
        if chance.random() < 0.3:
            browser.close()


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.judges
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files in /proc")
def test_clients_who_leave_when_they_like_leave_nothing_behind() -> None:
    chance = random.Random(19)

    async def batch(port: int, served: dict[str, Engine]) -> None:
        await asyncio.gather(*(_come_and_go(port, [*served], chance) for _ in range(AT_ONCE)))

    async def until_alone(served: dict[str, Engine], tasks: int) -> None:
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await rxllm.aclose(served["plain"])  # which has kept connections for the next calls
        await until(lambda: server.open_count == 0)
        gc.collect()

    async def main() -> None:
        served = engines(server)
        async with serving(app_of(served), backlog=512) as port:
            tasks = len(asyncio.all_tasks())
            await batch(port, served)
            await until_alone(served, tasks)
            threads, files = threading.active_count(), _open_files()
            for _ in range(REQUESTS // AT_ONCE - 1):
                await batch(port, served)
            await until_alone(served, tasks)
            await until(lambda: _open_files() <= files)
            assert threading.active_count() <= threads
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(server.requests) > REQUESTS // 100  # many leave before theirs is sent, on a slow machine most

    with Loopback(provider(19)) as server:
        asyncio.run(main())
