"""o. What it costs to commit the events of runs to a store, and to read them again, beside the bare stream."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import rxllm
from rxllm import serializer
from rxllm.durable import Run, open_store
from tests.benchmarks.report import Effort, Table, progress

BATCHES = (1, 10, 64)
RUNS = (1, 100)
ROUNDS = 3

BUDGET = 15.0
"""Microseconds of CPU that the commit of an event may cost in batches of 64 on SQLite."""


def measure(effort: Effort) -> list[Table]:
    """Microseconds per event, for one run and for many that append at the same time, in batches."""
    columns = ["", "runs", "batch", "commit, µs", "its CPU, µs", "an append, ms", "read, µs"]
    table = Table("o", "Committing an event to a store", columns)
    with tempfile.TemporaryDirectory() as folder:
        stores = {"SQLite": lambda: _path(Path(folder)), "Redis": lambda: redis_server(Path(folder))}
        for name, serving in stores.items():
            if name == "Redis" and not (shutil.which("redis-server") and find_spec("redis")):
                table.notes.append("skipped: Redis is not installed")
                continue
            with serving() as place:
                _measure_store(table, effort, name, place)
    bare = _bare(effort.count)
    table.notes.append(f"the bare stream, made and read, takes {bare * 1e6:.1f} µs of CPU an event")
    return [table]


def _measure_store(table: Table, effort: Effort, name: str, place: str) -> None:
    for runs in RUNS:
        for batch in BATCHES:
            progress(f"o. {name}: {runs} runs, {batch} events at once")
            appends = max(1, effort.count // batch // runs)
            rounds = [asyncio.run(_commit(place, runs, batch, appends)) for _ in range(min(ROUNDS, effort.rounds))]
            commit, cpu, append, read = (median(values) for values in zip(*rounds, strict=True))
            table.rows.append([name, runs, batch, commit * 1e6, cpu * 1e6, append * 1e3, read * 1e6])
    if name == "SQLite":
        table.budgets["CPU, batches of 64"] = (table.rows[-1][4], BUDGET)


async def _commit(place: str, runs: int, batch: int, appends: int) -> tuple[float, float, float, float]:
    """Seconds and CPU seconds of an event's commit, seconds of an append, and seconds of an event's reading."""
    store = open_store(place)
    events, count, spent = [_event().encode()] * batch, runs * batch * appends, list[float]()

    async def produce(id: str) -> None:
        lease = await store.claim(id, "owner", 600)
        assert lease is not None
        for _ in range(appends):
            start = time.perf_counter()
            await store.append(lease, events)
            spent.append(time.perf_counter() - start)

    ids = [uuid4().hex for _ in range(runs)]
    for id in ids:
        await store.create(Run(id, "factory", b"1"))
    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(produce, ids))
    commit, cpu = (time.perf_counter() - start) / count, (time.process_time() - cpu) / count
    start = time.perf_counter()
    assert sum([len(await store.events(id, limit=count)) for id in ids]) == count
    read = (time.perf_counter() - start) / count
    await store.close()
    return commit, cpu, median(spent), read


def _event() -> str:
    return serializer.to_json(rxllm.TextDelta(" brown"))


def _bare(count: int) -> float:
    """CPU seconds of an event of a stream that nobody commits."""
    start = time.process_time()
    with rxllm.to_iter(rxllm.stream_generate(rxllm.Fake([" brown"] * count), "Hi")) as events:
        read = sum(1 for _ in events)
    return (time.process_time() - start) / read


@contextmanager
def _path(folder: Path) -> Iterator[Any]:
    yield folder / "runs.db"


@contextmanager
def redis_server(folder: Path) -> Iterator[Any]:
    from tests.durable.redis_server import RedisServer

    server = RedisServer(folder)
    try:
        yield server.url
    finally:
        server.stop()
