"""A program that produces a run whose answers its provider keeps, and that is killed at random times.

``python -m tests.durable.uncut URL FOLDER KILLS SEED``: each process is a fork, which kills itself a random time after
it has begun to play the run, and is followed by another one, until the run has ended. It prints the number of kills.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import rxllm
from rxllm.adapters import OpenAIResponses
from rxllm.durable import open_runs

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


async def produce(url: str, path: Path, seconds: float) -> None:
    """Start the run or take it over, and wait until it has ended. Die after so many seconds of playing it."""
    loop = asyncio.get_running_loop()
    build = factories(url)["chat"]

    def play(question: str) -> Any:
        loop.call_later(seconds, os.kill, os.getpid(), signal.SIGKILL)
        return build(question)

    async with open_runs(path, {"chat": play}, lease=LEASE, max_attempts=1000) as runs:
        if not await runs.list():
            await runs.start("chat", "Double 21!", id=ID)
        while (await runs.list())[0].status in ("waiting", "running"):
            await runs.recover()
            await asyncio.sleep(0.02)


def main(url: str, folder: str, kills: int, seed: int) -> int:
    drawn, killed = random.Random(seed), 0
    while True:
        seconds = drawn.uniform(0.0, 1.5) if killed < kills else 60.0
        if not (pid := os.fork()):
            asyncio.run(produce(url, Path(folder) / "runs.db", seconds))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != -signal.SIGKILL:
            assert code == 0, code
            return killed
        killed += 1


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
