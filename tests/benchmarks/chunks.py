"""h. What accumulating a chunk costs, in a short stream and in a very long one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

from tests.benchmarks import wires
from tests.benchmarks.report import Effort, Table, progress


def measure(effort: Effort) -> list[Table]:
    """Microseconds per chunk, and the ratio to the shortest stream."""
    columns = ["chunks", "accumulate, µs", "ratio", "to events, µs", "ratio"]
    table = Table("h", "Chunk accumulation, per chunk", columns)
    try:
        chunks: Any = import_module("rxllm.chunks")
    except ModuleNotFoundError as error:
        table.notes.append(f"skipped: there is no {error.name}")
        return [table]
    costs: list[tuple[float, float]] = []
    for length in effort.chunks:
        progress(f"h. {length} chunks")
        stream = [chunks.text(wires.WORDS[i % len(wires.WORDS)]) for i in range(length)]
        stream.append(chunks.meta({"finish_reason": "stop"}))
        times = max(1, effort.chunks[-1] // length // 4)
        costs.append((
            _cost_per_chunk(lambda stream=stream: _accumulate(chunks, stream), length, times, effort.rounds),
            _cost_per_chunk(lambda stream=stream: _to_events(chunks, stream), length, times, effort.rounds),
        ))  # fmt: skip
    for length, cost in zip(effort.chunks, costs, strict=True):
        row = (cell for one, base in zip(cost, costs[0], strict=True) for cell in (one, one / base))
        table.rows.append([length, *row])
    table.budgets = {
        f"{name} at {effort.chunks[-1]:,} over {effort.chunks[0]:,}": (costs[-1][n] / costs[0][n], 1.1)
        for n, name in enumerate(("accumulation", "events"))
    }
    return [table]


def _cost_per_chunk(work: Callable[[], Any], length: int, times: int, rounds: int) -> float:
    spent: list[float] = []
    for n in range(rounds + 1):
        gc.collect()
        start = time.process_time()
        for _ in range(times):
            work()
        if n:
            spent.append((time.process_time() - start) / times / length * 1e6)
    return median(spent)


def _accumulate(chunks: Any, stream: list[Any]) -> Any:
    state = chunks.ChunkAccumulator()
    for chunk in stream:
        state = state.push(chunk)
    return state.finalize_message()


def _to_events(chunks: Any, stream: list[Any]) -> Any:
    feeder = chunks.ChunkFeeder()
    return [event for chunk in stream for event in feeder.feed(chunk)] + feeder.close()
