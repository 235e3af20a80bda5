"""The picture of a run: a chat with tools and an agent, in virtual time, drawn by `rxllm.timeline`."""

from __future__ import annotations

import asyncio
from typing import Any

import rxllm
from rxllm import Fake, ToolCall, Usage, tool
from rxllm import operators as ops
from rxllm.display import Timeline
from rxllm.testing import simulate

QUESTION = "Write a line on the sea, and say if I can swim in Oslo."


def written(text: str, seconds: float) -> list[Any]:
    """Return a script that writes `text` word by word, in `seconds`."""
    words = text.split()
    return [piece for word in words for piece in (("delay", seconds / len(words)), f"{word} ")]


def chat() -> rxllm.Stream[Any]:
    """Return a chat in which an agent writes, one tool succeeds after a retry of the model, and another tool fails."""

    @tool
    async def search(query: str) -> str:
        """Search the web."""
        await asyncio.sleep(1.4)
        return "Three poems."

    @tool
    async def weather(city: str) -> str:
        """Return the weather."""
        await asyncio.sleep(0.9)
        raise LookupError(f"no station in {city}")

    line = [("delay", 0.5), ("thinking", "Blue?"), ("delay", 0.4), *written("The sea is one long line of blue.", 0.9)]
    poet = rxllm.Engine(Fake([*line, Usage(40, 16, total_cost=0.0002)])).as_tool(
        name="poet", description="Write a line."
    )
    calls = [
        ToolCall("c1", "search", {"query": "poems on the sea"}),
        ToolCall("c2", "weather", {"city": "Oslo"}),
        ToolCall("c3", "poet", {"prompt": "The sea, in one line"}),
    ]
    asking = [
        ("delay", 0.4),
        ("thinking", "Ask."),
        ("delay", 0.4),
        *written("Let me look that up for you.", 0.3),
        *calls,
    ]
    answer = [
        ("delay", 0.6),
        *written("The sea is one long line of blue. I do not know how warm it is in Oslo today.", 1.3),
    ]
    model = Fake(
        [("delay", 0.3), ("error", "provider_unavailable")],
        [*asking, Usage(410, 96, total_cost=0.0021)],
        [*answer, Usage(920, 61, total_cost=0.0031)],
    )
    engine = rxllm.Engine(model, tools=[search, weather, poet], retry={"base_delay": 0.3, "jitter": 0})
    return rxllm.stream(engine, QUESTION)


def drawn() -> Timeline:
    """Run the chat in virtual time, and return its timeline."""

    async def run(world: Any) -> Timeline:
        return rxllm.timeline(await chat().pipe(ops.timed()).to_list())

    timeline = simulate(run, faults=()).value
    assert isinstance(timeline, Timeline)
    return timeline


def timeline() -> str:
    """Return the picture of the chat."""
    return drawn().svg()
