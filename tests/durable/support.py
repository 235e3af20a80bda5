"""Helpers for tests of runs: a tool that records its runs, a loop with a bound, and the recovery of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rxllm import tool
from rxllm.durable import Runs

RAN: list[int] = []
"""The arguments of `add`, once for each time that it ran in this test."""


@tool
def add(x: int) -> int:
    RAN.append(x)
    return x + 1


def in_loop(main: Callable[[], Awaitable[None]], seconds: float = 60.0) -> None:
    """Run `main()` on a new loop. Raises ``TimeoutError`` if it is too slow."""

    async def in_time() -> None:
        async with asyncio.timeout(seconds):
            await main()

    asyncio.run(in_time())


async def take_over(runs: Runs, id: str) -> None:
    """Recover the run, after its lease expires if the release of the last producer was lost in a slow store."""
    async with asyncio.timeout(30):
        while id not in await runs.recover():
            await asyncio.sleep(0.02)
