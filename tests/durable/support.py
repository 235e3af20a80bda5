"""What the tests of runs share: a tool that notes its runs, and a loop with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rxllm import tool

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
