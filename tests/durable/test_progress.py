"""The progress of tools in the log of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import ChatResult, Fake, ToolCall, ToolContext
from rxllm.durable import open_runs, open_store
from rxllm.events import Event, Nested, ToolExecutionCompleted, ToolProgress
from tests.durable.support import in_loop


def build(tool: Any, depth: int = 0) -> Any:
    def respond(request: Any) -> Any:
        return "Done." if request.messages[-1].role == "tool" else ToolCall("c0", "work", {})

    engine = rxllm.Engine(Fake(respond), tools=[tool])
    if not depth:
        return lambda input: rxllm.stream(engine, input)
    agent = engine.as_tool(name="helper", description="Helps.")

    def delegate(request: Any) -> Any:
        is_done = request.messages[-1].role == "tool"
        return "Done." if is_done else ToolCall("agent", "helper", {"prompt": "Work!"})

    return lambda input: rxllm.stream(Fake(delegate), input, tools=[agent])


def inner(event: Event) -> Any:
    return event.event if isinstance(event, Nested) else event


async def play(path: Path, tool: Any, depth: int = 0) -> tuple[list[Any], int]:
    """Return the progress in the log, up to the end of its tool, and the size of the log."""
    async with open_runs(path, {"work": build(tool, depth)}) as runs:
        id = await runs.start("work", "Go!")
        assert isinstance(await runs.result(id), ChatResult)
        events = [inner(event) async for event in runs.watch(id)]
    store = open_store(path)
    size = sum(map(len, await store.events(id, 0, 1_000_000)))
    await store.close()
    end = next(n for n, event in enumerate(events) if isinstance(event, ToolExecutionCompleted))
    progress = [event.data for event in events[:end] if isinstance(event, ToolProgress)]
    assert not any(isinstance(event, ToolProgress) for event in events[end:])
    return progress, size


def test_little_progress_is_kept_as_it_comes(tmp_path: Path) -> None:
    @rxllm.tool
    async def work() -> AsyncIterator[str]:
        for number in range(200):
            yield f"piece {number}"

    async def main() -> None:
        progress, _ = await play(tmp_path / "runs.db", work)
        assert progress == [f"piece {number}" for number in range(200)]

    in_loop(main)


@pytest.mark.judges
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("count", "size"), [(5000, 1000), (20, 1_000_000)])
def test_much_progress_is_bounded_and_the_last_stays(tmp_path: Path, count: int, size: int, depth: int) -> None:
    @rxllm.tool
    async def work(context: ToolContext) -> str:
        for number in range(count):
            context.progress([number, "x" * size])
            if number % 100 == 0:
                await asyncio.sleep(0)
        return "worked"

    async def main() -> None:
        progress, bytes_ = await play(tmp_path / "runs.db", work, depth)
        numbers = [number for number, _ in progress]
        assert numbers == sorted(numbers)
        assert (numbers[0], numbers[-1]) == (0, count - 1)
        assert bytes_ < max(200_000, 2.2 * size)

    in_loop(main)


def test_the_newest_progress_is_seen_while_its_tool_is_silent(tmp_path: Path) -> None:
    is_seen = asyncio.Event()

    @rxllm.tool
    async def work(context: ToolContext) -> str:
        for number in range(200):
            context.progress([number, "x" * 1000])
        await is_seen.wait()
        return "worked"

    async def main() -> None:
        async with open_runs(tmp_path / "runs.db", {"work": build(work)}) as runs:
            id = await runs.start("work", "Go!")
            async for event in runs.watch(id):
                if isinstance(event, ToolProgress) and event.data[0] == 199:
                    is_seen.set()
            assert isinstance(await runs.result(id), ChatResult)

    in_loop(main)
