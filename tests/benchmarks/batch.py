"""m. What a journal costs a batch: written, and read again."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import rxllm
from tests.benchmarks import wires
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.server import serving

BUDGET = 1.5
WORDS = 20
"""The deltas of one answer."""


def measure(effort: Effort) -> list[Table]:
    """Milliseconds a request of `generate_many` over loopback HTTP, and its ratio to the same without a journal."""
    count = max(effort.count // 2, 10)
    table = Table("m", f"A journal of {count:,} answers", ["", "ms a request", "ratio"])
    with serving() as url, tempfile.TemporaryDirectory() as folder:
        engine = rxllm.Engine(
            wires.adapter("chat", base_url=f"{url}/answer/burst/chat/paragraphs/{WORDS}/v1"), model="m"
        )
        rounds: list[tuple[float, float, float]] = []
        for n in range(effort.rounds + 1):
            progress(f"m. round {n} of {effort.rounds}")
            journal = Path(folder, f"{n}.jsonl")
            times = _seconds(engine, count), _seconds(engine, count, journal), _seconds(engine, count, journal)
            rounds += [times] if n else []  # the first round warms up
    for index, name in enumerate(("no journal", "a journal that is written", "all answers from the journal")):
        milliseconds = median(times[index] for times in rounds) / count * 1e3
        table.rows.append([name, milliseconds, median(times[index] / times[0] for times in rounds)])
    table.budgets["a journal that is written"] = (table.rows[1][2], BUDGET)
    return [table]


def _seconds(engine: rxllm.Engine, count: int, journal: Path | None = None) -> float:
    start = time.perf_counter()
    with rxllm.to_iter(rxllm.generate_many(engine, [f"Hi {n}" for n in range(count)], journal=journal)) as responses:
        assert all(response.error is None for response in responses)
    return time.perf_counter() - start
