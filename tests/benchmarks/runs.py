"""p. What it costs that runs are durable, and watched by many, beside the bare stream and its subscribers."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from reactivex import operators as rx

import rxllm
from rxllm import operators as ops
from rxllm.durable import open_runs, open_store
from rxllm.events import Event, TextDelta
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.stores import redis_server

RUNS, WATCHERS = 100, 1000
RATE = 20
ROUNDS = 3
RESULT = 8000

BUDGET = 15.0
"""Microseconds of CPU that SQLite may add to an event of a busy run."""


class Load(NamedTuple):
    """How many runs there are, and how many deltas each has, all at once or `RATE` a second."""

    name: str
    runs: int
    deltas: int
    is_paced: bool

    def stream(self, times: list[float]) -> rxllm.Stream[Event]:
        """A run's stream, which notes when each delta is made."""
        words: list[Any] = [" brown"] * self.deltas
        if self.is_paced:
            words = [entry for word in words for entry in (("delay", 1 / RATE), word)]
        made = ops.tap(lambda event: times.append(time.perf_counter()), TextDelta)
        return rxllm.stream_generate(rxllm.Fake(words), "Hi").pipe(made)


class Watcher:
    """What receives events; `delays` are those of deltas, in seconds."""

    def __init__(self, times: list[float]) -> None:
        self._times, self.delays = times, list[float]()

    def see(self, event: Event) -> None:
        if type(event) is TextDelta:
            self.delays.append(time.perf_counter() - self._times[len(self.delays)])


def measure(effort: Effort) -> list[Table]:
    """CPU per event of this process, without watchers what its commit takes, and the delay until a watcher sees it."""
    columns = ["", "load", "watchers", "CPU, µs an event", "added, µs", "delay, ms", "p99, ms"]
    table = Table("p", "Durable runs beside bare streams", columns)
    seconds = min(effort.seconds, 5.0)
    loads = [
        Load("one, at once", 1, 20 * effort.count, is_paced=False),
        Load(f"{RUNS}, at once", RUNS, effort.count, is_paced=False),
        Load(f"{RUNS}, {RATE} events/s each", RUNS, int(seconds * RATE), is_paced=True),
    ]
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[str, Callable[[], Any]] = {"SQLite": lambda: nullcontext(Path(folder, "runs.db"))}
        if shutil.which("redis-server") and find_spec("redis"):
            stores["Redis"] = lambda: redis_server(Path(folder))
        else:
            table.notes.append("skipped: Redis is not installed")
        for load in loads:
            _measure_load(table, effort, load, stores)
    table.notes.append("the CPU of the Redis server is not counted")
    table.notes.append(f"{WATCHERS} watchers of {RUNS} runs; the bare stream's are subscribers of a shared one")
    return [table, _measure_steps(effort)]


def _measure_load(table: Table, effort: Effort, load: Load, stores: dict[str, Callable[[], Any]]) -> None:
    with _opened(stores) as places:
        contenders = {"bare": _bare} | {name: _durable(place) for name, place in places.items()}
        many = load.runs * WATCHERS // RUNS
        measured: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
        for number in range(min(ROUNDS, effort.rounds)):
            for name, run in contenders.items():
                for watchers in (0, load.runs, many):
                    progress(f"p. {load.name}: {name}, {watchers} watchers, round {number + 1}")
                    measured.setdefault((name, watchers), []).append(asyncio.run(_timed(run, load, watchers)))
    middle = {key: [median(values) for values in zip(*rounds, strict=True)] for key, rounds in measured.items()}
    for (name, watchers), (cpu, delay, slow) in middle.items():
        added = cpu - middle["bare", watchers][0]
        row = [name, load.name, watchers, cpu * 1e6, added * 1e6]
        table.rows.append([*row, *((delay * 1e3, slow * 1e3) if load.is_paced and watchers else (None, None))])
        if name == "SQLite" and load.runs == 1 and not watchers:
            table.budgets["SQLite, added to an event of a busy run"] = (added * 1e6, BUDGET)


Run = Callable[[Load, list[list[float]], list[Watcher]], Any]


async def _timed(run: Run, load: Load, watchers: int) -> tuple[float, float, float]:
    """CPU seconds of an event, and the delays of deltas: the median, and the 99th of 100."""
    times: list[list[float]] = [[] for _ in range(load.runs)]
    watching = [Watcher(times[number % load.runs]) for number in range(watchers)]
    cpu = time.process_time()
    await run(load, times, watching)
    cpu = (time.process_time() - cpu) / (load.runs * load.deltas)
    delays = sorted(delay for watcher in watching for delay in watcher.delays) or [0.0]
    assert len(delays) == max(1, watchers * load.deltas)
    return cpu, median(delays), delays[len(delays) * 99 // 100]


async def _bare(load: Load, times: list[list[float]], watchers: list[Watcher]) -> None:
    async def one(number: int) -> None:
        shared = load.stream(times[number]).pipe(rx.publish())
        for watcher in watchers[number :: load.runs]:
            shared.subscribe(watcher.see)
        ended = asyncio.get_running_loop().create_future()
        shared.subscribe(on_error=ended.set_exception, on_completed=lambda: ended.set_result(None))
        shared.connect()
        await ended

    await asyncio.gather(*map(one, range(load.runs)))


def _durable(place: Any) -> Run:
    async def run(load: Load, times: list[list[float]], watchers: list[Watcher]) -> None:
        async with open_runs(place, {"run": lambda number: load.stream(times[number])}) as runs:
            ids = [await runs.start("run", number) for number in range(load.runs)]
            watched = [runs.watch(ids[number % load.runs]) for number in range(len(watchers))]
            await asyncio.gather(*map(_watch, watched, watchers))
            while runs.produced:
                await asyncio.sleep(0.01)
            await runs.expire(0)

    return run


async def _watch(events: rxllm.Stream[Event], watcher: Watcher) -> None:
    await events.do_action(watcher.see)


def _measure_steps(effort: Effort) -> Table:
    """The size of the log of long chats with large results, and the time to write and to read it: both are linear."""
    columns = ["steps", "log, kB a step", "CPU added, ms a step", "result, ms a step", "last three events, ms a step"]
    table = Table("p", f"The log of a chat whose tool results have {RESULT:,} characters, on SQLite", columns)
    sizes: dict[int, float] = {}
    for steps in effort.steps:
        progress(f"p. {steps} steps")
        rounds = [asyncio.run(_long_chat(steps)) for _ in range(min(ROUNDS, effort.rounds))]
        size, *times = (median(values) / steps for values in zip(*rounds, strict=True))
        sizes[steps] = size
        table.rows.append([steps, size / 1e3, *(seconds * 1e3 for seconds in times)])
    few, many = min(sizes), max(sizes)
    table.budgets[f"size of a step at {many} steps beside {few}"] = (sizes[many] / sizes[few], 1.1)
    return table


async def _long_chat(steps: int) -> tuple[float, float, float, float]:
    """Bytes of the log; seconds of CPU that the run takes more than the bare stream; seconds until a reader has it."""
    cpu = time.process_time()
    events = [event async for event in _chat(steps)]
    bare = time.process_time() - cpu
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder, "runs.db"))
        async with open_runs(store, {"chat": _chat}) as runs:
            cpu = time.process_time()
            id = await runs.start("chat", steps)
            while runs.produced:
                await asyncio.sleep(0.01)
            added = time.process_time() - cpu - bare
            size = sum(map(len, await store.events(id, 0, 100 * steps)))
            times = [await _timed_read(runs.watch(id, **how)) for how in ({"folded": True}, {"after": len(events) - 3})]
    return size, added, *times


def _chat(steps: int) -> rxllm.Stream[Event]:
    calls: list[Any] = [[rxllm.ToolCall(f"c{n}", "look", {"n": n})] for n in range(steps)]
    return rxllm.stream(rxllm.Fake(scripts=[*calls, ["Done."]]), "Look!", tools=[_look], max_turns=steps + 1)


@rxllm.tool(name="look")
def _look(n: int) -> str:
    return "x" * RESULT


async def _timed_read(events: rxllm.Stream[Event]) -> float:
    began = time.perf_counter()
    await events
    return time.perf_counter() - began


@contextmanager
def _opened(stores: dict[str, Callable[[], Any]]) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(serving()) for name, serving in stores.items()}
