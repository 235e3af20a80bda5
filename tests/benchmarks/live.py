"""d. Many live streams at once, beside a bare reader: what is lost, how late it comes, what it takes.

The delay of a delta is from the server's sending it to the subscriber's seeing it; both read one clock.
"""

from __future__ import annotations

import array
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.request import urlopen

from tests.benchmarks import wires
from tests.benchmarks.contenders import BODY
from tests.benchmarks.files import allow_many_files, resident_bytes
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.server import STAMP, serving
from tests.benchmarks.worker import Absent, Failed, Worker

CONTENDERS = {"httpx": ("read_by_hand", "asyncio"), "rxllm": ("read_by_rxllm", "asyncio")}
FASTER = {"rxllm, uvloop": ("read_by_rxllm", "uvloop"), "rxllm, aiohttp": ("read_by_aiohttp", "asyncio")}

COLUMNS = [
    "streams",
    "events/s each",
    "",
    "sent",
    "lost",
    "p50, ms",
    "p99, ms",
    "CPU",
    "KiB a stream",
    "server p99, ms",
]

BUSY, BEHIND = 0.95, 100.0
"""Saturated: the share of a processor that a process takes, and the median delay in ms, above which it is behind."""


def measure(effort: Effort) -> list[Table]:
    """One row per cell of streams, rate and contender."""
    everyone = CONTENDERS | (FASTER if effort.peers else {})
    table = Table("d", f"Live streams, {effort.seconds:g} s each", COLUMNS)
    held: dict[tuple[int, int, str], dict[str, Any]] = {}
    with serving() as url:
        for streams in effort.streams:
            for rate in effort.rates:
                for name, (reader, loop) in everyone.items():
                    progress(f"d. {streams} streams at {rate}/s: {name}")
                    sent = streams * round(rate * effort.seconds)
                    try:
                        with Worker(loop) as worker:
                            work = f"{url}/live/{streams}/{rate}/{effort.seconds}/v1"
                            seen = worker("tests.benchmarks.live:run", reader, work, streams, sent)
                    except (Absent, Failed) as error:
                        table.skip(name, error)
                        continue
                    with urlopen(f"{url}/late") as answer:
                        late = json.loads(answer.read())
                    held[streams, rate, name] = seen
                    table.rows.append([streams, rate, name, sent, sent - seen["events"], seen["p50"], seen["p99"],
                                       f"{seen['cpu']:.0%}", seen["kib"], late["p99"] * 1e3])  # fmt: skip
    _judge(table, held)
    return [table]


def _judge(table: Table, held: dict[tuple[int, int, str], dict[str, Any]]) -> None:
    for name in {name: None for _, _, name in held}:
        cells = [(f"{n} x {rate}/s", seen) for (n, rate, who), seen in held.items() if who == name]
        full = [cell for cell, seen in cells if seen["cpu"] > BUSY or seen["p50"] > BEHIND]
        table.notes.append(f"{name}: saturated at {', '.join(full)}" if full else f"{name}: nowhere saturated")
    table.notes.append("server p99: how late the server itself sent; where it is large, the machine was the limit")
    most = max((n for n, rate, _ in held if rate == 10), default=0)
    ours, bare = held.get((most, 10, "rxllm")), held.get((most, 10, "httpx"))
    if ours and bare:
        table.budgets["rxllm, p99 over httpx's"] = (ours["p99"] / bare["p99"], 1.5)
        table.budgets["rxllm, KiB a stream"] = (ours["kib"] or 0.0, 64.0)


# In the contender's process


async def run(reader: str, url: str, streams: int, expected: int) -> dict[str, Any]:
    """Open so many streams, read them to their ends, and say how it went."""
    allow_many_files()
    delays = array.array("q", bytes(8 * expected))  # here already when the memory is counted
    count = 0
    begun: tuple[float, float] | None = None
    memory: int | None = None

    def see(stamp: str) -> None:
        nonlocal count, begun, memory
        delays[count] = time.monotonic_ns() - int(stamp)
        count += 1
        if begun is None:
            begun = time.monotonic(), time.process_time()
        if count == expected // 2:
            memory = resident_bytes()

    ask: Callable[[], Awaitable[Any]] = globals()[reader](url, see)
    await globals()[reader](f"{url.partition('/live/')[0]}/answer/burst/chat/text/50/v1", lambda stamp: None)()
    gc.collect()
    before = resident_bytes()
    await asyncio.gather(*(ask() for _ in range(streams)))
    assert begun is not None
    wall, cpu = time.monotonic() - begun[0], time.process_time() - begun[1]
    seen = sorted(delays[:count])
    grown = (memory - before) / 1024 / streams if memory is not None and before is not None else None
    return {"events": count, "p50": seen[count // 2] / 1e6, "p99": seen[int(count * 0.99)] / 1e6,
            "cpu": cpu / wall, "kib": grown}  # fmt: skip


def read_by_hand(url: str, see: Callable[[str], None]) -> Callable[[], Awaitable[None]]:
    import httpx

    client = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))

    async def ask() -> None:
        async with client.stream("POST", f"{url}/chat/completions", json=BODY) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _, _, said = line.partition('"content":"')
                    if said[:STAMP].isdigit():
                        see(said[:STAMP])

    return ask


def read_by_rxllm(url: str, see: Callable[[str], None], client: Any = None) -> Callable[[], Awaitable[Any]]:
    import rxllm
    from rxllm import TextDelta
    from rxllm import operators as ops

    engine = rxllm.Engine(wires.adapter("chat", base_url=url, client=client), model="m")

    def look(event: TextDelta) -> None:
        if event.delta.isdigit():
            see(event.delta)

    async def ask() -> None:
        events = rxllm.stream_generate(engine, "Hi").pipe(
            ops.tap(look, TextDelta), ops.include_raw_chunks(), ops.filter_deltas(), ops.to_response()
        )
        (await events).raise_for_error()

    return ask


def read_by_aiohttp(url: str, see: Callable[[str], None]) -> Callable[[], Awaitable[Any]]:
    import httpx
    from httpx_aiohttp import HttpxAiohttpClient

    unlimited = httpx.Limits(max_connections=0)  # None would be aiohttp's own default, 100
    return read_by_rxllm(url, see, lambda: HttpxAiohttpClient(timeout=60, limits=unlimited))
