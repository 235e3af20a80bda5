"""b. The decoders and the fold alone, in this process: CPU time per frame, wire by wire.
c. What a delta costs in a long answer over what it costs in a short one."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from statistics import median
from typing import Any

import httpx

import rxllm
from rxllm import StreamCollector
from rxllm import operators as ops
from tests.benchmarks import wires
from tests.benchmarks.report import Effort, Table, progress


def measure(effort: Effort) -> list[Table]:
    """Microseconds per frame: decoded as it comes, decoded fifty at once, folded; and ``json.loads`` of the same."""
    table = Table("b", "Decode and fold, µs per frame", ["wire", "decode", "in bursts", "fold", "json.loads"])
    for wire in wires.WIRES:
        progress(f"b. {wire}")
        frames = wires.answer(wire, "text", effort.count)
        bursts = [b"".join(frames[start : start + 50]) for start in range(0, len(frames), 50)]
        events = _decoded(wire, frames)
        payloads = [frame[frame.index(b"{") :].strip() for frame in frames if b"{" in frame]
        works: dict[str, Callable[[], Any]] = {
            "decode": lambda wire=wire, frames=frames: _decoded(wire, frames),
            "in bursts": lambda wire=wire, bursts=bursts: _decoded(wire, bursts),
            "fold": lambda events=events: _folded(events),
            "json.loads": lambda payloads=payloads: [json.loads(payload) for payload in payloads],
        }
        table.rows.append([wire, *(each / len(frames) * 1e6 for each in _interleaved(works, effort.rounds).values())])
    return [table]


def measure_lengths(effort: Effort) -> list[Table]:
    """Microseconds per delta of the whole pipeline, without sockets, and the ratio to the shortest.

    What a call costs with hardly any delta is taken off.
    """
    scanned = "text, scan_collect"
    columns = ["deltas", *(f"{name}{unit}" for name in (*wires.KINDS, scanned) for unit in (", µs", ", ratio"))]
    table = Table("c", "Cost against length, chat wire", columns)
    costs: dict[str, list[float]] = {}
    for name in (*wires.KINDS, scanned):
        progress(f"c. {name}")
        kind = name.partition(",")[0]
        works = {
            str(length): _piped(kind, length, name == scanned, min(200, max(1, effort.lengths[-1] // length // 4)))
            for length in (2, *effort.lengths)
        }
        empty, *calls = _interleaved(works, effort.rounds).values()
        costs[name] = [(spent - empty) / length * 1e6 for spent, length in zip(calls, effort.lengths, strict=True)]
    for n, length in enumerate(effort.lengths):
        table.rows.append([length, *(cell for each in costs.values() for cell in (each[n], each[n] / each[0]))])
    table.budgets = {name: (each[-1] / each[0], 1.1) for name, each in costs.items()}
    return [table]


def _interleaved(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median CPU seconds of each, every round doing each once. A work may return by how much to divide."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for n in range(rounds + 1):
        gc.collect()
        for name, work in works.items():
            start = time.process_time()
            result = work()
            spent = time.process_time() - start
            if n:
                times[name].append(spent / result if isinstance(result, int) else spent)
    return {name: median(each) for name, each in times.items()}


def _decoded(wire: str, pieces: Sequence[bytes]) -> list[Any]:
    decoder = wires.adapter(wire).decoder(rxllm.request("Hi", model="m"))
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


def _folded(events: Sequence[Any]) -> Any:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


class _Frames(httpx.AsyncByteStream):
    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for frame in self._frames:
            yield frame


def _piped(kind: str, length: int, scanned: bool, times: int) -> Callable[[], int]:
    frames = wires.answer("chat", kind, length)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=_Frames(frames)))
    engine = rxllm.Engine(wires.adapter("chat", client=lambda: httpx.AsyncClient(transport=transport)), model="m")

    async def ask() -> None:
        for _ in range(times):
            events = rxllm.stream_generate(engine, "Hi").pipe(
                ops.tap(lambda event: None), ops.include_raw_chunks(), ops.filter_deltas()
            )
            if scanned:
                await events.pipe(ops.scan_collect())
            else:
                await events.pipe(ops.to_response())

    def work() -> int:
        asyncio.run(ask())
        return times

    return work
