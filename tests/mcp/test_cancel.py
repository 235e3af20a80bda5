"""A call that is left is cancelled at the server, at once, and leaves no task, socket, process or thread."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rxllm
from rxllm import ToolCall, ToolContext, mcp
from tests.examples import share
from tests.mcp.chats import calling
from tests.mcp.served import Seen
from tests.runtime.support import PATIENCE, until

pytestmark = pytest.mark.long

BOUND = 0.1
"""Seconds within which the server's tool must have been cancelled: the server takes some of them itself."""


async def seen_after(leave: Callable[[], Any], seen: Seen) -> float:
    """How long it takes until the server has cancelled one more call."""
    before = len(seen.cancelled)
    began = time.monotonic()
    left = leave()
    await until(lambda: len(seen.cancelled) > before)
    if isinstance(left, Awaitable):
        await left
    return seen.cancelled[-1] - began


async def begun(call: rxllm.Stream[Any], seen: Seen) -> asyncio.Task[Any]:
    before = len(seen.started)
    task = asyncio.ensure_future(_awaited(call))
    await until(lambda: len(seen.started) > before)
    return task


async def _awaited(stream: rxllm.Stream[Any]) -> Any:
    return await stream


def test_the_server_sees_a_cancel_at_once(server: tuple[str, Seen]) -> None:
    url, seen = server

    async def main() -> float:
        tools = await mcp.tools(url)
        times: list[float] = []
        for _ in range(5):
            task = await begun(calling(tools, "slow", seconds=60), seen)
            times.append(await seen_after(task.cancel, seen))
        return sorted(times)[2]

    assert asyncio.run(main()) < BOUND


def test_a_dispose_from_another_thread_cancels_too(server: tuple[str, Seen]) -> None:
    url, seen = server
    tools = mcp.tools(url).run()
    before = len(seen.started)
    subscription = calling(tools, "slow", seconds=60).subscribe()

    async def main() -> float:
        await until(lambda: len(seen.started) > before)
        return await seen_after(threading.Thread(target=subscription.dispose).start, seen)

    assert asyncio.run(main()) < BOUND


def test_a_timeout_cancels_too(server: tuple[str, Seen]) -> None:
    url, seen = server
    before = len(seen.cancelled)
    model = rxllm.Fake(rxllm.ToolCall("c1", "slow", {"seconds": 60}), "Done.")
    result = rxllm.chat(model, "Wait.", tools=mcp.tools(url).run(), tool_timeout=0.3).run()
    assert "did not finish within 0.3 s" in result.steps[0].tool_results[0].text
    wait_until(lambda: len(seen.cancelled) > before)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def cancelled_at_random(tools: Any, calls: int, at_once: int) -> None:
    """Cancel each of `calls` at some time between its beginning and its end."""
    times = random.Random(1)
    slow = next(tool for tool in tools if tool.name == "slow")

    async def one() -> None:
        arguments = {"seconds": times.choice((0, 0.01, 60))}
        task = asyncio.ensure_future(slow.bind(arguments, ToolContext(ToolCall("c1", "slow", arguments)))())
        await asyncio.sleep(times.uniform(0, 0.1))
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done()

    for _ in range(calls // at_once):
        await asyncio.gather(*(one() for _ in range(at_once)))


@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_many_random_cancels_leave_nothing(era: str, request: pytest.FixtureRequest) -> None:
    url, seen = request.getfixturevalue(era)
    files = open_files()
    threads = threading.active_count()

    async def main() -> None:
        async with mcp.HTTP(url) as connection:
            tools = await mcp.tools(connection)
            await cancelled_at_random(tools, share(1000), 20)
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert len(await mcp.tools(connection)) == len(tools), "the connection works on"

    began, ended = len(seen.started), len(seen.cancelled)
    asyncio.run(main())
    wait_until(lambda: open_files() <= files)  # the server closes its ends on its own thread
    assert len(seen.started) - began > 20  # the others were cancelled on their way
    assert len(seen.cancelled) > ended
    assert threading.active_count() <= threads + 1


def test_random_cancels_over_stdio_leave_nothing_but_the_process(stdio: mcp.Stdio) -> None:
    files = open_files()

    async def main() -> None:
        tools = await mcp.tools(stdio)
        await cancelled_at_random(tools, 300, 20)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert stdio._process is not None
        assert not stdio._process._inboxes
        assert len(await mcp.tools(stdio)) == len(tools)

    asyncio.run(main())
    pid = stdio._process._transport.get_pid()  # pyright: ignore[reportOptionalMemberAccess]
    stdio.close()
    assert not os.path.exists(f"/proc/{pid}")
    wait_until(lambda: open_files() <= files)
