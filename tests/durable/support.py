"""Helpers for tests of runs: a tool that records its runs, a loop with a bound, recovery, and forked processes."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from rxllm import TextDelta, tool
from rxllm.durable import Runs
from tests import tiers
from tests.programs import SECONDS
from tests.waiting import until

T = TypeVar("T")

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "rxllm.durable._redis",
        "redis.asyncio",
        "tests.durable.crashing",
        "tests.durable.talking",
        "httpcore",
        "h2.connection",
    ]
)

RAN: list[int] = []
"""The arguments of `add`, once for each time that it ran in this test."""


@tool
def add(x: int) -> int:
    RAN.append(x)
    return x + 1


def in_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()` on a new loop. Raises ``TimeoutError`` if it hangs, before the test's time is up."""

    async def in_time() -> T:
        async with asyncio.timeout(SECONDS):
            return await main()

    return asyncio.run(in_time())


async def take_over(runs: Runs, id: str) -> None:
    """Recover the run, after its lease expires if the release of the last producer was lost in a slow store."""
    await until(runs.recover, lambda ids: id in ids)


def gated(*pieces: str | asyncio.Event) -> Callable[[Any, Any], AsyncIterator[TextDelta]]:
    """Return a model that says the pieces, and waits where there is an event."""

    async def model(request: Any, call: Any) -> AsyncIterator[TextDelta]:
        for piece in pieces:
            if isinstance(piece, str):
                yield TextDelta(piece)
            else:
                await piece.wait()

    return model


@contextmanager
def forked(main: Callable[..., object], *arguments: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``main(pipe, *arguments)`` in a process of its own, which is killed at the end of the block.

    It is forked from a process that has imported what it needs, since the start of Python takes long.
    """
    tiers.needs("judges")
    here, there = _FORKS.Pipe()
    process = _FORKS.Process(target=main, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        here.close()
