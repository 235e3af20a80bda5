"""i. What a call, a block or a step costs among few and among many, and reading JSON beside ``json.loads``."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from reactivex import Observable, from_iterable

import rxllm
from rxllm import Fake, Tool, ToolCall, serializer
from rxllm import operators as ops
from rxllm.collector import StreamCollector, fold_message
from rxllm.events import Event, MessageCompleted, MessageStarted, StepCompleted, TextCompleted, TextDelta
from rxllm.values import Message, Response, StepResult, Thread
from rxllm.wire.tool_calls import CallTracker
from tests.benchmarks.report import Effort, Table, progress

TIMES = 10
"""So many times as many of them are in the longer run."""

ROUNDS = 3

Work = Callable[[], Any]


def measure(effort: Effort) -> list[Table]:
    """Microseconds for each, few and many; and the milliseconds of reading a thread's JSON, short and long."""
    few = effort.lengths[0]
    sizes, rounds = (few, TIMES * few), min(effort.rounds, ROUNDS)
    return [_numbers(sizes, rounds), _reading(sizes, rounds)]


def _numbers(sizes: tuple[int, int], rounds: int) -> Table:
    columns = ["one of", *(f"{size:,}, µs each" for size in sizes), "ratio"]
    table = Table("i", "Cost against number", columns)
    for name, make in WORKS.items():
        progress(f"i. {name}")
        few, many = (seconds(make(size), rounds) / size * 1e6 for size in sizes)
        table.rows.append([name, few, many, many / few])
        table.budgets[name] = (many / few, 2.0)
    table.notes.append("without Python's collector of garbage, which takes longer the more there is")
    return table


def _reading(sizes: tuple[int, int], rounds: int) -> Table:
    columns = ["text", "json.loads, ms", "from_json, ms", "ratio", "to_json, ms"]
    table = Table("i", "Reading JSON", columns)
    for size in sizes:
        thread = Thread(tuple(message for call in _calls(size) for message in _turn(call)))
        text = serializer.to_json(thread)
        progress(f"i. {len(text) // 1000} KB of JSON")
        loads = seconds(lambda text=text: json.loads(text), rounds)
        reads = seconds(lambda text=text: serializer.from_json(text), rounds)
        writes = seconds(lambda thread=thread: serializer.to_json(thread), rounds)
        table.rows.append([f"{len(text) // 1000:,} KB", loads * 1e3, reads * 1e3, reads / loads, writes * 1e3])
        table.budgets[f"from_json over json.loads, {len(text) // 1000:,} KB"] = (reads / loads, 20.0)
    return table


def seconds(work: Work, rounds: int) -> float:
    """The median CPU seconds; the first round warms up."""
    spent: list[float] = []
    for n in range(rounds + 1):
        gc.collect()
        gc.disable()
        start = time.process_time()
        try:
            work()
        finally:
            gc.enable()
        spent += [time.process_time() - start] if n else []
    return median(spent)


def _calls(size: int) -> list[ToolCall]:
    return [ToolCall(f"call_{i}", "f", {"city": "Paris"}, '{"city":"Paris"}') for i in range(size)]


def _turn(call: ToolCall) -> tuple[Message, Message]:
    return Message("assistant", tool_calls=(call,)), Message("tool", "sunny", tool_call_id=call.id)


async def _answer(arguments: Any) -> str:
    return "sunny"


_MANUAL, _PLAIN = Tool("f", manual=True), Tool("f", handler=_answer)


def _last(source: Observable[Any]) -> Any:
    async def last() -> Any:
        return await source

    return asyncio.run(last())


def _chat(size: int, tool: Tool) -> Any:
    return _last(rxllm.chat(Fake(_calls(size), "Done."), "Hi", tools=[tool]))


def _resume(size: int) -> Work:
    halted = _chat(size, _MANUAL)
    results = {call.id: "sunny" for call in halted.pending_tool_calls}
    return lambda: _last(rxllm.resume(Fake("Done."), halted, results=results, tools=[_MANUAL]))


def _blocks(size: int) -> Work:
    """All of them open at once, the first to begin is the last to end."""
    ids = [f"b{i}" for i in range(size)]
    events: list[Event] = [MessageStarted(Message("assistant")), *(TextDelta("a", id) for id in ids)]
    events += [TextCompleted("a", id) for id in reversed(ids)]
    events.append(MessageCompleted(fold_message(events), "stop"))
    return lambda: from_iterable(events).pipe(ops.to_response()).subscribe()


def _steps(size: int) -> Work:
    message = Message("assistant", "Hello")
    step = StepCompleted(StepResult(Thread((message,)), Response(message, "Hello"), done=True))
    events = (MessageStarted(Message("assistant")), TextDelta("Hello"), MessageCompleted(message, "stop"), step)

    def fold() -> None:
        state = StreamCollector(Thread())
        for _ in range(size):
            for event in events:
                state = state.apply_event(event)
        state.to_chat_result()

    return fold


def _deltas(size: int) -> Work:
    def track() -> None:
        tracker = CallTracker()
        for index in range(size):
            tracker.feed(index, None, "f", "{}")
        tracker.close()

    return track


def _streams(size: int) -> Work:
    streams = {str(i): rxllm.stream_generate(Fake("Hi"), "Hi") for i in range(size)}
    return lambda: _last(rxllm.merge_labelled(streams))


WORKS: dict[str, Callable[[int], Work]] = {
    "manual calls of a chat": lambda size: lambda: _chat(size, _MANUAL),
    "calls of a chat that run": lambda size: lambda: _chat(size, _PLAIN),
    "results in resume": _resume,
    "open blocks of a message": _blocks,
    "steps folded": _steps,
    "calls on the wire": _deltas,
    "streams merged": _streams,
}
