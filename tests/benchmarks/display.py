"""j. What drawing a stream in a notebook, or as a timeline, costs, beside reading and folding it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import rxllm
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.display._plain import Cards
from rxllm.display._show import Cell, Showing
from tests.benchmarks import wires
from tests.benchmarks.report import Effort, Table, progress
from tests.benchmarks.server import ARRIVALS, serving

BUDGET = 0.1


def measure(effort: Effort) -> list[Table]:
    """CPU milliseconds of a whole answer over loopback HTTP: read and folded, and drawn."""
    with serving() as url:
        return [_measure_card(effort, url), _measure_timeline(effort, url)]


def _measure_timeline(effort: Effort, url: str) -> Table:
    """The timeline of recorded events: its rows and its picture."""
    table = Table("j", f"A timeline of {effort.count:,} events", ["", "read and fold, ms", "draw, ms", "ratio"])
    for arrival in ARRIVALS:
        work = f"{url}/answer/{arrival}/chat/paragraphs/{effort.count}/v1"
        engine = rxllm.Engine(wires.adapter("chat", base_url=work), model="m")
        events = rxllm.stream_generate(engine, "Hi").pipe(ops.timed()).to_list().run()
        rounds = [
            (_cpu(lambda engine=engine: _read(engine)), _cpu(lambda events=events: rxllm.timeline(events).svg()))
            for _ in range(effort.rounds)
        ]
        reading, drawing = (median(values) for values in zip(*rounds, strict=True))
        ratio = median(drawn / read for read, drawn in rounds)
        table.rows.append([arrival, reading * 1e3, drawing * 1e3, ratio])
        table.budgets[f"timeline, {arrival}"] = (ratio, BUDGET)
    return table


def _measure_card(effort: Effort, url: str) -> Table:
    """The card of a running stream, as HTML in a cell."""
    columns = ["", "read and fold, ms", "draws", "draw, ms", "ratio"]
    table = Table("j", f"Drawing {effort.count:,} events", columns)
    for arrival in ARRIVALS:
        work = f"{url}/answer/{arrival}/chat/paragraphs/{effort.count}/v1"
        engine = rxllm.Engine(wires.adapter("chat", base_url=work), model="m")
        rounds: list[tuple[float, int, float]] = []
        for n in range(effort.rounds + 1):
            progress(f"j. {arrival}: round {n} of {effort.rounds}")
            both = (_cpu(lambda engine=engine: _read(engine)), *_draw(engine))
            rounds += [both] if n else []  # the first round warms up
        reading, draws, drawing = (median(values) for values in zip(*rounds, strict=True))
        ratio = median(drawn / read for read, _, drawn in rounds)
        table.rows.append([arrival, reading * 1e3, draws, drawing * 1e3, ratio])
        table.budgets[f"drawing, {arrival}"] = (ratio, BUDGET)
    return table


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _read(engine: rxllm.Engine) -> StreamCollector:
    state = StreamCollector()
    with rxllm.to_iter(rxllm.stream_generate(engine, "Hi")) as events:
        for event in events:
            state = state.apply_event(event)
    return state


def _draw(engine: rxllm.Engine) -> tuple[int, float]:
    """The draws of one answer, and their CPU seconds, with the JSON that a kernel makes of an output."""
    screen = _Measured()
    Showing[Any](rxllm.stream_generate(engine, "Hi"), [], screen).run()
    return screen.draws, screen.seconds


class _Measured(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.draws, self.seconds = 0, 0.0
        self._display = self  # instead of IPython's

    def display(self, data: Any, **options: Any) -> _Measured:
        self._handle = self
        self.update(data)
        return self

    def update(self, data: Any, **options: Any) -> None:
        json.dumps(data, ensure_ascii=False).encode()

    def draw(self, cards: Cards, now: float) -> None:
        self._measure(lambda: super(_Measured, self).draw(cards, now))

    def finish(self, cards: Cards, now: float) -> None:
        self._measure(lambda: super(_Measured, self).finish(cards, now))

    def _measure(self, draw: Callable[[], None]) -> None:
        start = time.thread_time()
        draw()
        self.draws, self.seconds = self.draws + 1, self.seconds + time.thread_time() - start
