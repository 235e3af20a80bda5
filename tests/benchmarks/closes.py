"""r. The time from a dispose until the server sees the close, beside that of bare httpx."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

import httpx

import rxllm
from rxllm.testing.loopback import Loopback
from tests.benchmarks.contenders import BODY
from tests.benchmarks.report import Effort, Table, progress
from tests.closing import STALLED
from tests.waiting import until

Leave = Callable[[Loopback], Awaitable[float]]


def measure(effort: Effort) -> list[Table]:
    """Milliseconds, the median of many calls that are left in the middle of an answer, and the ratio to httpx."""
    table = Table("r", "From a dispose to the close that the server sees", ["", "wall, ms", "ratio"])
    contenders: dict[str, Leave] = {"httpx": _by_hand, "rxllm": _by_rxllm}
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    calls = max(2, effort.count // 40)
    for n in range(effort.rounds + 1):
        progress(f"r. round {n} of {effort.rounds}")
        for name, leave in contenders.items():
            measured = asyncio.run(_seconds(leave, calls))
            seen[name] += measured if n else []  # the first round warms up
    for name, seconds in seen.items():
        table.rows.append([name, median(seconds) * 1e3, median(seconds) / median(seen["httpx"])])
    return [table]


async def _seconds(leave: Leave, calls: int) -> list[float]:
    seconds: list[float] = []
    with Loopback(STALLED) as server:
        for _ in range(calls):
            left = await leave(server)
            await until(lambda: server.open_count == 0)
            closed = server.connections[-1].closed_at
            assert closed is not None
            seconds.append(closed - left)
    return seconds


async def _by_hand(server: Loopback) -> float:
    url, read = f"{server.url}/chat/completions", b""
    async with httpx.AsyncClient(verify=False) as client, client.stream("POST", url, json=BODY) as response:
        async for data in response.aiter_bytes():
            read += data
            if b'"c"' in read:
                break
        return time.monotonic()


async def _by_rxllm(server: Loopback) -> float:
    engine = rxllm.Engine(rxllm.OpenAIChat(base_url=server.url), model="m", retry=False)
    events: list[rxllm.Event] = []
    subscription = rxllm.stream_generate(engine, "Hi").subscribe(events.append)
    await until(lambda: getattr(events[-1], "delta", "") == "c" if events else False)
    left = time.monotonic()
    subscription.dispose()
    return left
