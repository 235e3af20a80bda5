"""k. A web server between many browsers and a model, beside the same server written with pydantic-ai.

Each server reads a live stream for each browser and sends it on, as server-sent events. A tenth of the browsers is
slow: they read nothing until the model has said everything. The delay of a delta is from the model's sending it to its
arrival in a browser that reads.
"""

from __future__ import annotations

import array
import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

from tests.benchmarks import contenders, wires
from tests.benchmarks.files import allow_many_files, resident_bytes
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.server import STAMP, serving
from tests.benchmarks.worker import Absent, Failed, Worker

RATE = 10
SLOW = 10
"""One in so many browsers is slow."""

BUDGET = 0.5

QUESTION = {
    "id": "chat",
    "trigger": "submit-message",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
}
COLUMNS = ["", "browsers", "sent", "lost", "CPU a delta, µs", "CPU", "KiB a browser", "p50, ms", "p99, ms"]


def measure(effort: Effort) -> list[Table]:
    """The run with the middle CPU of several, in turns: microseconds for each delta that a browser has received."""
    table = Table("k", f"A web server, {RATE} deltas a second for {effort.seconds:g} s", COLUMNS)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in _contenders(effort)}
    with serving() as url:
        for turn in range(effort.turns):
            for name, seen in runs.items():
                progress(f"k. {effort.browsers} browsers: {name}, {turn}")
                try:
                    seen.append(_run(url, name, effort.browsers, effort.seconds))
                except (Absent, Failed) as error:
                    table.skip(name, error)
    middle = {name: sorted(seen, key=itemgetter("us"))[len(seen) // 2] for name, seen in runs.items() if seen}
    for name, run in middle.items():
        lost = max(seen["lost"] for seen in runs[name])
        table.rows.append([name, effort.browsers, run["sent"], lost, run["us"], f"{run['cpu']:.0%}", run["kib"],
                           run["p50"], run["p99"]])  # fmt: skip
        if "pydantic-ai" in middle and name != "pydantic-ai":
            table.budgets[f"{name}, CPU over pydantic-ai's"] = (run["us"] / middle["pydantic-ai"]["us"], BUDGET)
    return [table]


def _contenders(effort: Effort) -> list[str]:
    from rxllm.web._codec import PROTOCOLS

    return [*(f"rxllm, {protocol}" for protocol in PROTOCOLS), *(["pydantic-ai"] if effort.peers else [])]


def _run(url: str, name: str, browsers: int, seconds: float) -> dict[str, Any]:
    sent = browsers * round(RATE * seconds)
    with Worker() as server, Worker() as reader, ThreadPoolExecutor(1) as pool:
        server("tests.benchmarks.browsers:check", name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        work = [name, f"{url}/live/{browsers}/{RATE}/{seconds}/v1", port, browsers, seconds]
        serves = pool.submit(server, "tests.benchmarks.browsers:serve", *work)
        read = reader("tests.benchmarks.browsers:browse", port, browsers, sent)
        served = serves.result(timeout=60 + 20 * seconds)
    delivered = read.pop("events")
    return {**read, "sent": sent, "lost": sent - delivered, "us": served["seconds"] / delivered * 1e6,
            "cpu": served["seconds"] / served["wall"], "kib": served["kib"]}  # fmt: skip


# In the server's process

App = Callable[[Any, Any, Any], Awaitable[None]]


def check(name: str) -> None:
    """Raise ``ModuleNotFoundError`` if something is not installed."""
    _app(name, "http://127.0.0.1")


async def serve(name: str, model: str, port: int, browsers: int, seconds: float) -> dict[str, float | None]:
    """Answer so many browsers, and say what it took from when all have asked until all have everything."""
    import uvicorn

    allow_many_files()
    app, loop = _app(name, model), asyncio.get_running_loop()
    before, marks = resident_bytes(), dict[str, Any]()
    asked = answered = 0

    def mark(name: str, value: Callable[[], Any]) -> None:
        marks[name] = value()

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked, answered
        asked += 1
        if asked == browsers:  # the model begins half a second later
            loop.call_later(0.25, mark, "begin", lambda: (time.monotonic(), time.process_time()))
            loop.call_later(0.5 + seconds / 2, mark, "memory", resident_bytes)
        await app(scope, receive, send)
        answered += 1
        if answered == browsers:
            mark("end", lambda: (time.monotonic(), time.process_time()))
            server.should_exit = True

    config = uvicorn.Config(counted, port=port, log_config=None, access_log=False, ws="none", http="h11",
                            lifespan="off", backlog=4096, loop="asyncio")  # fmt: skip
    server = uvicorn.Server(config)
    await server.serve()
    wall, cpu = (end - begin for end, begin in zip(marks["end"], marks["begin"], strict=True))
    memory = marks["memory"]
    return {"seconds": cpu, "wall": wall, "kib": before and (memory - before) / 1024 / browsers}


def _app(name: str, model: str) -> App:
    return _pydantic_ai(model) if name == "pydantic-ai" else _rxllm(name.partition(", ")[2], model)


def _routed(chat: Callable[[Any], Awaitable[Any]]) -> App:
    from starlette.applications import Starlette
    from starlette.routing import Route

    return Starlette(routes=[Route("/chat", chat, methods=["POST"])])


def _rxllm(protocol: str, model: str) -> App:
    import rxllm
    from rxllm import web

    engine = rxllm.Engine(wires.adapter("chat", base_url=model), model="m")

    async def chat(request: Any) -> Any:
        question = (await request.json())["messages"][-1]["parts"][0]["text"]
        return web.streaming_response(rxllm.stream(engine, question), protocol)

    return _routed(chat)


def _pydantic_ai(model: str) -> App:
    from pydantic_ai import Agent
    from pydantic_ai.ui.vercel_ai import VercelAIAdapter

    agent = Agent(contenders._pydantic_model("chat", model))

    async def chat(request: Any) -> Any:
        return await VercelAIAdapter.dispatch_request(request, agent=agent)

    return _routed(chat)


# In the browsers' process

_STAMPED = re.compile(rb'"delta":\s*"(\d{%d})"' % STAMP)


async def browse(port: int, browsers: int, expected: int) -> dict[str, Any]:
    """Read everything in all browsers, and say how many deltas came, and how late."""
    allow_many_files()
    delays = array.array("q")
    finished = asyncio.Event()
    counts = await asyncio.gather(*(_browse(port, n % SLOW == 1, delays, finished, browsers) for n in range(browsers)))
    ordered = sorted(delays)
    return {
        "events": sum(counts),
        "p50": ordered[len(ordered) // 2] / 1e6,
        "p99": ordered[len(ordered) * 99 // 100] / 1e6,
    }


async def _browse(port: int, slow: bool, delays: array.array[int], finished: asyncio.Event, browsers: int) -> int:
    reader, writer = await _connect(port)
    body = json.dumps(QUESTION).encode()
    head = f"POST /chat HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    count, rest = 0, b""
    try:
        if slow:
            await asyncio.wait_for(finished.wait(), 600)
        while data := await reader.read(65536):
            frames, separator, rest = (rest + data).rpartition(b"\n\n")
            stamps = _STAMPED.findall(frames + separator)
            count += len(stamps)
            if not slow:
                now = time.monotonic_ns()
                delays.extend(now - int(stamp) for stamp in stamps)
    finally:
        finished.set()  # the first that has everything, or has failed
        writer.transport.abort()
    return count


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(2000):
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # the server is about to begin
            await asyncio.sleep(0.01)
    raise TimeoutError("the server has not begun")
