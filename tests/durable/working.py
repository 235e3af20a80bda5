"""Processes that compete for runs: workers whose tools wait until they are told to go on, and one that crashes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import rxllm
from rxllm import Fake, ToolCall, tool
from rxllm.durable import open_runs
from tests.waiting import turns, until

LEASE = 1.0


def work(pipe: Connection, place: str, ahead: float = 0.0) -> None:
    """Produce what can be recovered, with a clock that is `ahead`.

    It sends ``("begun", text)`` when a tool begins, which goes on when there is an answer, and what is logged.
    """
    right, guard = time.time, Lock()
    time.time = lambda: right() + ahead

    class Sends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            pipe.send(("logged", record.getMessage()))

    logging.getLogger("rxllm").addHandler(Sends())

    @tool
    async def note(text: str) -> str:
        pipe.send(("begun", text))
        await asyncio.to_thread(wait_for_answer)
        return text

    def wait_for_answer() -> None:
        with guard:
            pipe.recv()

    def build(input: str) -> Any:
        def respond(request: Any) -> Any:  # a script would begin anew in another process
            is_second = request.messages[-1].role == "tool"
            return ["one ", "two ", "three ", "four" if is_second else ToolCall("c0", "note", {"text": input})]

        return rxllm.stream(Fake(respond), input, tools=[note])

    async def main() -> None:
        async with open_runs(place, {"chat": build}, lease=LEASE) as runs:
            with runs.recover(every=1.0).subscribe():
                await asyncio.Event().wait()

    asyncio.run(main())


@tool(idempotent=True)
async def crash() -> str:
    await turns()
    os._exit(9)


def build_killer(input: Any) -> Any:
    return rxllm.stream(Fake(ToolCall("c0", "crash", {})), input, tools=[crash])


def build_chat(input: Any) -> Any:
    return rxllm.stream(Fake(["Well, ", ("delay", 0.2), "done."]), input)


def work_beside_killer(pipe: Connection, path: str) -> None:
    """Go on with all runs until they have ended, or this process has. Then send what was logged."""
    logged: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    logging.getLogger("rxllm").addHandler(Keeps())

    async def main() -> None:
        async with open_runs(path, {"chat": build_chat, "killer": build_killer}, lease=1.0) as runs:
            with runs.recover(every=1.0).subscribe():
                await until(runs.list, lambda all: all and None not in [run.ended_at for run in all])

    asyncio.run(main())
    pipe.send(logged)


def die_at_once(pipe: Connection, path: str) -> None:
    """Take the run over, whose factory kills this process."""

    def kill(input: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        async with open_runs(path, {"chat": kill}, lease=1.0) as runs:
            await until(runs.recover)
            await asyncio.Event().wait()

    asyncio.run(main())
