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
    streams = {length: _stream(chunks, length) for length in effort.chunks}
    base, *_, longest = streams
    spent: dict[int, list[list[float]]] = {length: [[], []] for length in streams}
    for n in range(effort.rounds + 1):
        progress(f"h. round {n} of {effort.rounds}")
        for length, stream in streams.items():  # in turns: a busy machine is busy for all of them
            times = max(1, longest // length // 4)
            for costs, work in zip(spent[length], (_accumulate, _to_events), strict=True):
                cost = _cost_per_chunk(lambda work=work, stream=stream: work(chunks, stream), length, times)
                costs += [cost] if n else []  # the first round warms up
    for length, both in spent.items():
        cells = ((median(costs), _ratio(costs, first)) for costs, first in zip(both, spent[base], strict=True))
        table.rows.append([f"{length:,}", *(cell for pair in cells for cell in pair)])
    table.budgets = {
        f"{name} at {longest:,} over {base:,}": (_ratio(spent[longest][n], spent[base][n]), 1.1)
        for n, name in enumerate(("accumulation", "events"))
    }
    return [table]


def _stream(chunks: Any, length: int) -> list[Any]:
    words = [chunks.text(wires.WORDS[i % len(wires.WORDS)]) for i in range(length)]
    return [*words, chunks.meta({"finish_reason": "stop"})]


def _ratio(costs: list[float], first: list[float]) -> float:
    return median(one / other for one, other in zip(costs, first, strict=True))


def _cost_per_chunk(work: Callable[[], Any], length: int, times: int) -> float:
    gc.collect()
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times / length * 1e6


def _accumulate(chunks: Any, stream: list[Any]) -> Any:
    state = chunks.ChunkAccumulator()
    for chunk in stream:
        state = state.push(chunk)
    return state.finalize_message()


def _to_events(chunks: Any, stream: list[Any]) -> Any:
    feeder = chunks.ChunkFeeder()
    return [event for chunk in stream for event in feeder.feed(chunk)] + feeder.close()
