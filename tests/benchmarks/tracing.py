"""l. What observing costs: no observer, a plain one, and OpenTelemetry's traces, for each event and each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import rxllm
from rxllm import Fake
from tests.benchmarks.numbers import seconds
from tests.benchmarks.report import Effort, Table, progress


def measure(effort: Effort) -> list[Table]:
    """Microseconds of CPU per delta and per call, and how much that is over no observer."""
    table = Table("l", "Observing", ["observer", "µs a delta", "over none", "µs a call", "over none"])
    costs: dict[str, tuple[float, float]] = {}
    for name, make in OBSERVERS.items():
        progress(f"l. {name}")
        try:
            observers = make()
        except (ImportError, rxllm.EngineError) as error:
            table.skip(name, error)
            continue
        calls = max(1, effort.count // 10)
        call = seconds(partial(_ask, observers, 1, calls), effort.rounds) / calls
        deltas = seconds(partial(_ask, observers, effort.count, 1), effort.rounds) - call
        costs[name] = deltas / effort.count * 1e6, call * 1e6
    plain = costs["none"]
    for name, (delta, call) in costs.items():
        table.rows.append([name, delta, delta - plain[0], call, call - plain[1]])
    table.notes.append("a scripted model; spans end in a processor that drops them, metrics in a reader")
    return [table]


def _ask(observers: list[Any], deltas: int, calls: int) -> None:
    engine = rxllm.Engine(Fake(["a"] * deltas), model="m", observers=observers)

    async def main() -> None:
        for _ in range(calls):
            await rxllm.stream_generate(engine, "Hi")

    asyncio.run(main())


def _traces(content: bool) -> list[Any]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    provider = TracerProvider()
    provider.add_span_processor(SpanProcessor())
    meters = MeterProvider([InMemoryMetricReader()])
    return [rxllm.otel.traces(content=content, tracer_provider=provider, meter_provider=meters)]


OBSERVERS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "a plain function": lambda: [lambda value: None],
    "rxllm.otel": partial(_traces, False),
    "rxllm.otel, with content": partial(_traces, True),
}
