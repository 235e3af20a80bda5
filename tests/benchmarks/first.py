"""g. The time from subscribing to the first event, beside the time to the first bytes of bare httpx."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from tests.benchmarks import wires, worker
from tests.benchmarks.contenders import BODY
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.server import serving
from tests.benchmarks.worker import Worker

CONTENDERS = {"httpx": "by_hand", "rxllm": "by_rxllm"}


def measure(effort: Effort) -> list[Table]:
    """Milliseconds, the median of many calls: over a connection that is open, and with a client that is new."""
    table = Table("g", "From subscribing to the first event", ["", "wall, ms", "over httpx, ms", "CPU, ms of a call"])
    calls = max(2, effort.count // 40)
    with serving() as url, contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in CONTENDERS}
        for anew in (False, True):
            seen: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
            for n in range(effort.rounds + 1):
                for name, reader in CONTENDERS.items():
                    work = f"{url}/answer/single/chat/text/1/v1"
                    measured = workers[name]("tests.benchmarks.first:run", reader, work, calls, anew)
                    seen[name] += [measured] if n else []
            progress(f"g. {'new clients' if anew else 'open connections'}")
            walls = {name: median(wall for wall, _ in each) * 1e3 for name, each in seen.items()}
            for name, each in seen.items():
                cpu = median(spent for _, spent in each) * 1e3
                label = f"{name}, {'new client' if anew else 'open connection'}"
                table.rows.append([label, walls[name], walls[name] - walls["httpx"], cpu])
    table.notes.append("httpx loads the certificates anew for every client, rxllm once")
    return [table]


# In the contender's process

_open: dict[str, Callable[[], Awaitable[float]]] = {}


async def run(reader: str, url: str, calls: int, anew: bool) -> tuple[float, float]:
    """The median seconds to the first event, and the CPU seconds of a whole call."""
    make: Callable[[str], Callable[[], Awaitable[float]]] = globals()[reader]
    ask = _open.setdefault(reader, make(url))
    await ask()

    async def work() -> list[float]:
        return [await (make(url) if anew else ask)() for _ in range(calls)]

    seconds, walls = await worker.cpu_seconds(work)
    return median(walls), seconds / calls


def by_hand(url: str) -> Callable[[], Awaitable[float]]:
    import httpx

    client = httpx.AsyncClient()

    async def ask() -> float:
        start, first = time.perf_counter(), 0.0
        async with client.stream("POST", f"{url}/chat/completions", json=BODY) as response:
            async for _ in response.aiter_bytes():
                first = first or time.perf_counter() - start
        return first

    return ask


def by_rxllm(url: str) -> Callable[[], Awaitable[float]]:
    import rxllm
    from rxllm import operators as ops

    engine = rxllm.Engine(wires.adapter("chat", base_url=url), model="m")
    first = 0.0

    async def ask() -> float:
        nonlocal first
        start, first = time.perf_counter(), 0.0

        def see(event: Any) -> None:
            nonlocal first
            first = first or time.perf_counter() - start

        await rxllm.stream_generate(engine, "Hi").pipe(ops.tap(see), ops.to_response())
        return first

    return ask
