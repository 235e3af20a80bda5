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
from operator import itemgetter
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

Cell = tuple[int, int, str]
"""How many streams, at how many events a second each, read by whom."""

BUSY, BEHIND = 0.95, 100.0
"""Saturated: the share of a processor that a process takes, and the median delay in ms, above which it is behind."""


def measure(effort: Effort) -> list[Table]:
    """One row per cell of streams, rate and contender. The cells that are judged are measured several times, in turns,
    and the row is the run with the middle p99: near its limit a process falls behind by chance.
    """
    everyone = CONTENDERS | (FASTER if effort.peers else {})
    table = Table("d", f"Live streams, {effort.seconds:g} s each", COLUMNS)
    held: dict[Cell, Any] = {}
    with serving() as url:
        for streams in effort.streams:
            for rate in effort.rates:
                runs: dict[str, list[dict[str, Any]]] = {name: [] for name in everyone}
                for turn in range(effort.turns if _is_judged(streams, rate, effort) else 1):
                    for name in everyone:
                        progress(f"d. {streams} streams at {rate}/s: {name}, {turn}")
                        try:
                            runs[name].append(_run(url, name, streams, rate, effort.seconds))
                        except (Absent, Failed) as error:
                            table.skip(name, error)
                for name, seen in runs.items():
                    if seen:
                        held[streams, rate, name] = middle = sorted(seen, key=itemgetter("p99"))[len(seen) // 2]
                        sent, lost = streams * round(rate * effort.seconds), max(run["lost"] for run in seen)
                        table.rows.append([streams, rate, name, sent, lost, middle["p50"], middle["p99"],
                                           f"{middle['cpu']:.0%}", middle["kib"], middle["late"]])  # fmt: skip
    _judge(table, held, effort)
    return [table]


def _run(url: str, name: str, streams: int, rate: int, seconds: float) -> dict[str, Any]:
    reader, loop = (CONTENDERS | FASTER)[name]
    sent = streams * round(rate * seconds)
    with Worker(loop) as worker:
        work = f"{url}/live/{streams}/{rate}/{seconds}/v1"
        seen = worker("tests.benchmarks.live:run", reader, work, streams, sent)
    with urlopen(f"{url}/late") as answer:
        late = json.loads(answer.read())
    return {**seen, "lost": sent - seen["events"], "late": late["p99"] * 1e3}


def _is_judged(streams: int, rate: int, effort: Effort) -> bool:
    return streams == max(effort.streams) and rate == 10


def _judge(table: Table, held: dict[Cell, Any], effort: Effort) -> None:
    for name in {name: None for _, _, name in held}:
        cells = [(f"{n} x {rate}/s", seen) for (n, rate, who), seen in held.items() if who == name]
        full = [cell for cell, seen in cells if seen["cpu"] > BUSY or seen["p50"] > BEHIND]
        table.notes.append(f"{name}: saturated at {', '.join(full)}" if full else f"{name}: nowhere saturated")
    table.notes.append("server p99: how late the server itself sent; where it is large, the machine was the limit")
    judged = {who: seen for (n, rate, who), seen in held.items() if _is_judged(n, rate, effort)}
    for name, seen in judged.items():
        if "httpx" in judged and name != "httpx":
            table.budgets[f"{name}, p99 over httpx's"] = (seen["p99"] / judged["httpx"]["p99"], 1.5)
            table.budgets[f"{name}, KiB a stream"] = (seen["kib"] or 0.0, 64.0)


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
        response = await rxllm.stream_generate(engine, "Hi").pipe(
            ops.tap(look, TextDelta), ops.include_raw_chunks(), ops.filter_deltas(), ops.to_response()
        )
        response.raise_for_error()

    return ask


def read_by_aiohttp(url: str, see: Callable[[str], None]) -> Callable[[], Awaitable[Any]]:
    from rxllm.adapters import aiohttp_client

    return read_by_rxllm(url, see, aiohttp_client)
