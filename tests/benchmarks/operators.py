"""e. What each operator adds to the CPU time of an event: over a synchronous source, less the bare source.

The operators, each with arguments that make sense, are those of the operators' own contract tests.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from reactivex import Observable, from_iterable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.events import Event, MessageCompleted, MessageStarted, StepCompleted, TextCompleted, TextDelta
from rxllm.runtime import LoopScheduler
from rxllm.values import Message, Response, StepResult, Thread
from tests.benchmarks.report import Effort, Table, progress

ITEM = ('{"note": "', "The", " quick", " brown", " fox.", '"}, ')
"""The text is JSON, and has words and sentences: there are operators for each."""


def measure(effort: Effort) -> list[Table]:
    """Nanoseconds per event, the cheapest first."""
    table = Table("e", "What an operator adds, ns per event", ["operator", "ns", "of a bare source's"])
    try:
        from tests.operators.contracts import OPERATORS
    except ModuleNotFoundError as error:
        table.notes.append(f"skipped: {error.name} is not installed")
        return [table]
    events = _events(effort.items)
    works: dict[str, Callable[[], Any] | None] = {"": None, **OPERATORS}
    clocks: dict[str, Callable[..., float]] = dict.fromkeys(works, _on_loop)
    spent: dict[str, list[float]] = {name: [] for name in works}
    for n in range(effort.rounds + 1):
        progress(f"e. round {n} of {effort.rounds}")
        gc.collect()
        for name in tuple(spent):
            try:
                seconds = clocks[name](events, works[name], effort.patience)
            except TimeoutError:
                clocks[name] = _in_virtual_time
            except Exception as error:
                del spent[name]
                table.skip(name, error)
            else:
                spent[name] += [seconds / len(events) * 1e9] if n else []  # the first round warms up
    bare = median(spent.pop(""))
    added = {name: median(each) - bare for name, each in spent.items()}
    table.rows = [[name, ns, ns / bare] for name, ns in sorted(added.items(), key=lambda item: item[1])]
    waiting = ", ".join(name for name in added if clocks[name] is _in_virtual_time)
    table.notes += [f"in virtual time, because they wait: {waiting}"] if waiting else []
    table.notes.append(f"the bare source, `from_iterable`, takes {bare:.0f} ns an event")
    return [table]


def _on_loop(events: list[Event], make: Callable[[], Any] | None, patience: float) -> float:
    """The CPU seconds on an event loop. Raises ``TimeoutError``."""

    async def work() -> float:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        start = time.process_time()
        told = (lambda item: None, ended.set_exception, lambda: ended.set_result(None))
        subscription = _piped(events, make).subscribe(*told, scheduler=LoopScheduler(loop))
        try:
            async with asyncio.timeout(patience):
                await ended
        finally:
            subscription.dispose()
        return time.process_time() - start

    return asyncio.run(work())


def _in_virtual_time(events: list[Event], make: Callable[[], Any] | None, patience: float) -> float:
    clock, ends = VirtualTimeScheduler(), list[Exception | None]()
    start = time.process_time()
    told = (lambda item: None, ends.append, lambda: ends.append(None))
    _piped(events, make).subscribe(*told, scheduler=clock)
    clock.start()
    spent = time.process_time() - start
    if ends != [None]:
        raise (ends[0] if ends else None) or RuntimeError("it does not end")
    return spent


def _piped(events: list[Event], make: Callable[[], Any] | None) -> Observable[Any]:
    source: Observable[Any] = from_iterable(events)
    return source if make is None else source.pipe(make())


def _events(count: int) -> list[Event]:
    deltas = [TextDelta("["), *(TextDelta(ITEM[i % len(ITEM)]) for i in range(count // len(ITEM) * len(ITEM)))]
    deltas.append(TextDelta("{}]"))
    text = "".join(delta.delta for delta in deltas)
    message = Message("assistant", text)
    step = StepCompleted(StepResult(Thread((message,)), Response(message, text, finish_reason="stop")))
    start = MessageStarted(Message("assistant"))
    return [start, *deltas, TextCompleted(text), MessageCompleted(message, "stop"), step]
