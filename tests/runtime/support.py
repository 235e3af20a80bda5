"""What the tests of the runtime share: a model behind the loopback server, and programs of their own."""

from __future__ import annotations

import asyncio
import functools
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rxllm import Engine, OpenAIChat, generate
from rxllm.testing.loopback import Connection, Loopback, Reply, Script, chat
from tests.closing import SILENT, STALLED  # noqa: F401 - SILENT is imported from here elsewhere
from tests.waiting import PATIENCE, until

T = TypeVar("T")

BOUND = 0.05
"""Seconds within which the server must have seen the close."""

ROOT = Path(__file__).parents[2]

ON_BOTH = pytest.mark.usefixtures("transport")
"""Run with httpx and with aiohttp below rxllm's own clients."""

HTTPX_ONLY = pytest.mark.parametrize("transport", ["httpx"], indirect=True)
"""Run with httpx alone, where a whole module is `ON_BOTH`."""

BEGIN = """
import asyncio, os, sys, threading
import rxllm
from rxllm import Engine, OpenAIChat, RetryPolicy, generate, operators as ops, stream_generate
engine = Engine(OpenAIChat(base_url=sys.argv[1]), model="m", retry=RetryPolicy(base_delay=0.2, jitter=0))
def ask():
    return stream_generate(engine, "Hi").pipe(ops.to_text())
"""
"""How scripts begin: with an engine that asks the server whose URL is the first argument."""


def model(server: Loopback, **options: Any) -> Engine:
    """An engine that asks `server`, once."""
    return Engine(OpenAIChat(base_url=server.url, **options), model="m", retry=False)


def run_on(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new loop. Raises ``TimeoutError``, since uvloop is deaf to the signal that ends a test."""

    async def in_time() -> T:
        async with asyncio.timeout(PATIENCE):
            return await main

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(in_time())


async def until_closed(connection: Connection) -> None:
    await until(lambda: connection.closed_at is not None)


def on_loop(act: Callable[[Loopback], Awaitable[float]]) -> Callable[[Loopback], float]:
    """`act` on a loop of its own, which lives on until the server has seen the close: no loop's end helps."""

    async def main(server: Loopback) -> float:
        acted = await act(server)
        await until_closed(server.connections[0])
        return acted

    return lambda server: asyncio.run(main(server))


@functools.cache
def _warm_up(transport: str | None) -> None:
    """Import what the first call imports, which can take longer than a test's time limit for its call."""
    with Loopback(Reply(chat("Hi"))) as server:
        generate(model(server), "Hi").run()


def close_times(act: Callable[[Loopback], float], reply: Script = STALLED, rounds: int = 5) -> list[float]:
    """Seconds from the moment that `act` gives to the moment when the server saw its connection close."""
    times: list[float] = []
    _warm_up(os.environ.get("RXLLM_TRANSPORT"))
    for _ in range(rounds):
        with Loopback(reply) as server:
            acted = act(server)
            connection = server.connections[0]
            times.append(connection.wait_closed() - acted)
            assert connection.closed_by == "client"
    return times


def assert_prompt(times: list[float]) -> None:
    """The median counts: a shared machine may hold up one of several."""
    print("closed after", ", ".join(f"{1000 * each:.1f} ms" for each in times))  # pytest -rP shows it
    assert statistics.median(times) < BOUND, times


def script(code: str, *args: str, **options: Any) -> subprocess.Popen[str]:
    """A Python program of its own, warnings being errors; `args` are its ``sys.argv[1:]``."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finished(process: subprocess.Popen[str], timeout: float = PATIENCE) -> tuple[int, str, str]:
    """The program's exit code, output and errors."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the script hangs\n{out}\n{err}") from None
    return process.returncode, out, err


def now() -> float:
    """The clock of the server's `closed_at`, the same in every process."""
    return time.monotonic()
