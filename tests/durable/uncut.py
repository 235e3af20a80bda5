"""A process that produces a run whose answers its provider keeps, to be killed."""

from __future__ import annotations

import asyncio
from typing import Any

import rxllm
from rxllm.adapters import OpenAIResponses
from rxllm.durable import open_runs
from tests.waiting import until

LEASE = 0.4
ID = "run"


@rxllm.tool(idempotent=True)
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def engine(url: str, *observers: Any) -> rxllm.Engine:
    adapter = OpenAIResponses(base_url=url, api_key="k")
    return rxllm.Engine(
        adapter,
        model="m",
        tools=[double],
        observers=observers,
        params={"options": {"background": True}},
        retry={"base_delay": 0.01, "jitter": 0.0, "max_attempts": 5},
    )


def factories(url: str, *observers: Any) -> dict[str, Any]:
    asked = engine(url, *observers)
    return {"chat": lambda question: rxllm.stream(asked, question)}


def produce(pipe: object, url: str, path: str) -> None:
    """Start the run or take it over, and wait until it has ended."""

    async def main() -> None:
        async with open_runs(path, factories(url), lease=LEASE, max_attempts=1000) as runs:
            if not await runs.list():
                await runs.start("chat", "Double 21!", id=ID)

            async def has_ended() -> bool:
                await runs.recover()
                return (await runs.get(ID)).ended_at is not None

            await until(has_ended)

    asyncio.run(main())
