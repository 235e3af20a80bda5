"""What the tests of the runtime share: a model behind the loopback server, and programs of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rxllm import Engine, OpenAIChat
from rxllm.testing.loopback import Loopback
from tests.waiting import PATIENCE

T = TypeVar("T")

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
