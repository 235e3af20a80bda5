"""A call that is left is cancelled at the server, at once, and leaves no task, socket, process or thread."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import Any

import pytest

import rxllm
from rxllm import ToolCall, ToolContext, mcp
from rxllm.testing import World, simulate
from tests.closing import SILENT, assert_closed
from tests.examples import share
from tests.mcp.chats import calling, open_files, outcome, script
from tests.mcp.served import Seen
from tests.waiting import PATIENCE, turns, until, wait_until

pytestmark = pytest.mark.judges


async def _awaited(stream: rxllm.Stream[Any]) -> Any:
    return await stream


def test_a_cancel_reaches_the_server_before_the_next_call_is_answered(server: tuple[str, Seen]) -> None:
    url, seen = server

    async def main() -> None:
        tools = await mcp.tools(url)
        task = asyncio.ensure_future(_awaited(calling(tools, "slow", name="cancelled")))
        await until(lambda: "cancelled" in seen.started)
        task.cancel()
        assert outcome(await calling(tools, "add", a=1, b=2)) == "3"
        assert "cancelled" in seen.cancelled

    asyncio.run(main())


def test_so_does_a_dispose_from_another_thread(server: tuple[str, Seen]) -> None:
    url, seen = server
    tools = mcp.tools(url).run()
    subscription = calling(tools, "slow", name="disposed").subscribe()
    wait_until(lambda: "disposed" in seen.started)
    subscription.dispose()
    assert outcome(calling(tools, "add", a=1, b=2).run()) == "3"
    assert "disposed" in seen.cancelled


def test_a_timeout_cancels_too(server: tuple[str, Seen]) -> None:
    url, seen = server
    model = rxllm.Fake(ToolCall("c1", "slow", {"name": "late"}), "Done.")
    result = rxllm.chat(model, "Wait.", tools=mcp.tools(url).run(), tool_timeout=1.0).run()
    assert "did not finish within 1.0 s" in result.steps[0].tool_results[0].text
    wait_until(lambda: seen.cancelled.count("late") == seen.started.count("late"))


def test_a_timeout_closes_the_connection_of_its_call() -> None:
    async def main(world: World) -> str:
        server = world.serve(script(call=SILENT))
        tools = await mcp.tools(server.url)
        model = rxllm.Fake(ToolCall("c1", "f", {"x": 1}), "Done.")
        result = await rxllm.chat(model, "Wait.", tools=tools, tool_timeout=30)
        await mcp.tools(server.url)  # a next call, whose answer comes after the close
        assert_closed(next(each for each in server.connections if "tools/call" in str(each.requests)))
        return outcome(result)

    run = simulate(main, faults=())
    assert "did not finish within 30 s" in run.value
    assert 30 <= run.duration < 35


async def cancelled_at_random(tools: Any, calls: int, at_once: int, seen: Seen | None = None) -> None:
    """Cancel each of `calls` some turns after its beginning, or, if `seen` is given, half of them after its start."""
    numbers = random.Random(1)
    slow = next(tool for tool in tools if tool.name == "slow")

    async def one(name: str) -> None:
        arguments = {"name": name, "turns": numbers.choice((0, 10, None))}
        task = asyncio.ensure_future(slow.bind(arguments, ToolContext(ToolCall("c1", "slow", arguments)))())
        if seen is not None and numbers.random() < 0.5:
            await until(lambda: name in seen.started or task.done())
        await turns(numbers.randrange(50))
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done()

    for first in range(0, calls, at_once):
        await asyncio.gather(*(one(str(number)) for number in range(first, first + at_once)))


@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_many_random_cancels_leave_nothing(era: str, request: pytest.FixtureRequest) -> None:
    url, seen = request.getfixturevalue(era)
    files = open_files()
    threads = threading.active_count()

    async def main() -> None:
        async with mcp.HTTP(url) as connection:
            tools = await mcp.tools(connection)
            await cancelled_at_random(tools, share(1000), 20, seen)
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
