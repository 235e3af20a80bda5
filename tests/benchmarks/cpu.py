"""a. CPU time per chunk of a streamed answer, over loopback HTTP, beside loops written by hand and other libraries."""

from __future__ import annotations

import contextlib
from statistics import median
from typing import Any

from tests.benchmarks import contenders, wires, worker
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.server import ARRIVALS, serving
from tests.benchmarks.worker import Absent, Failed, Worker

BASE = "httpx, json"

# The function of `contenders`, and the event loop

CONTENDERS = {
    BASE: ("by_hand", "asyncio"),
    "httpx, msgspec": ("by_hand_msgspec", "asyncio"),
    "httpx, bytes only": ("bytes_only", "asyncio"),
    "rxllm": ("rxllm", "asyncio"),
}
PEERS = {
    "openai / anthropic": ("sdk", "asyncio"),
    "litellm": ("litellm", "asyncio"),
    "langchain": ("langchain", "asyncio"),
    "pydantic-ai": ("pydantic_ai", "asyncio"),
}
TRANSPORTS = {
    "httpx2, json": ("by_hand_httpx2", "asyncio"),
    "rxllm, httpx2": ("rxllm_httpx2", "asyncio"),
    "aiohttp, json": ("by_hand_aiohttp", "asyncio"),
    "rxllm, aiohttp": ("rxllm_aiohttp", "asyncio"),
    "httpx, json, uvloop": ("by_hand", "uvloop"),
    "rxllm, uvloop": ("rxllm", "uvloop"),
}

MAKERS = CONTENDERS | PEERS | TRANSPORTS

BUDGETS = {"burst": 0.9, "single": 1.0}


def measure(effort: Effort) -> list[Table]:
    """One table per wire: microseconds per chunk, and the ratio to the first contender in the same round."""
    everyone = MAKERS if effort.peers else CONTENDERS
    with serving() as url, contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(loop)) for name, (_, loop) in everyone.items()}
        return [_measure_wire(url, wire, workers, effort) for wire in ("chat", "anthropic")]


def _measure_wire(url: str, wire: str, workers: dict[str, Worker], effort: Effort) -> Table:
    columns = ["", *(f"{arrival}{unit}" for arrival in ARRIVALS for unit in (", µs", ", ratio"))]
    table = Table("a", f"CPU per chunk, {wire} wire", columns)
    measured = {arrival: _race(url, wire, arrival, workers, effort, table) for arrival in ARRIVALS}
    for name in workers:
        if any(name in times for times in measured.values()):
            table.rows.append([name, *(cell for times in measured.values() for cell in _cells(times, name))])
    table.budgets = {f"rxllm, {name}": (_cells(measured[name], "rxllm")[1], limit) for name, limit in BUDGETS.items()}
    table.notes.append(
        "burst: 50 chunks in one HTTP chunk; queued: 50 HTTP chunks in one segment; single: a segment each"
    )
    return table


def _race(
    url: str, wire: str, arrival: str, workers: dict[str, Worker], effort: Effort, table: Table
) -> dict[str, list[float]]:
    """Microseconds per chunk, round by round: in each round everyone runs once, and each round begins with another."""
    count = effort.count // 2 if arrival == "single" else effort.count
    work = f"{url}/answer/{arrival}/{wire}/text/{count}/v1"
    names = list(workers)
    times: dict[str, list[float]] = {name: [] for name in names}
    for n in range(effort.rounds + 1):
        turn = n % len(names)
        for name in names[turn:] + names[:turn]:
            if name not in times:
                continue
            try:
                seconds = workers[name]("tests.benchmarks.cpu:ask", MAKERS[name][0], wire, work, count)
            except (Absent, Failed) as error:
                del times[name]
                table.skip(name, error)
            else:
                times[name] += [seconds / count * 1e6] if n else []  # the first round warms up
        progress(f"a. {wire}, {arrival}: round {n} of {effort.rounds}")
    return times


def _cells(times: dict[str, list[float]], name: str) -> tuple[Any, Any]:
    if name not in times:
        return None, None
    pairs = zip(times[name], times[BASE], strict=True)
    return median(times[name]), median(one / base for one, base in pairs)


# In the contender's process

_asks: dict[str, contenders.Ask] = {}


async def ask(maker: str, wire: str, url: str, count: int) -> float:
    """The CPU seconds of one answer; what was read must be what was sent."""
    if url not in _asks:
        _asks[url] = getattr(contenders, maker)(wire, url)
    seconds, said = await worker.cpu_seconds(_asks[url])
    if maker != "bytes_only" and said != wires.text("text", count):
        raise ValueError(f"read {len(said)} characters that are not what was sent")
    return seconds
