"""A process for each contender, so that none pays for another's imports, threads and garbage.

A worker lives through all rounds: what it has imported, connected and compiled stays, as in a program that runs long.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

SECONDS = 300.0
"""The longest that a coroutine may take."""


class Absent(Exception):  # noqa: N818 no error of the harness
    """A package that a contender needs is not installed."""


class Failed(Exception):  # noqa: N818 nor this
    """A contender did not do its work."""


class Worker:
    """A child process that calls functions by name, ``package.module:function``, one at a time, on one event loop.

    `loop` is ``asyncio`` or ``uvloop``; where the latter is absent the first call raises `Absent`.
    """

    def __init__(self, loop: str = "asyncio") -> None:
        command = [sys.executable, "-m", "tests.benchmarks.worker", loop]
        environment = {**os.environ, "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, function: str, *arguments: Any) -> Any:
        """What the function gives; of a coroutine function, what it gives in the end. Raises `Absent`, `Failed`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([function, arguments]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise Failed("its process has ended")
        kind, result = json.loads(answer)
        if kind == "absent":
            raise Absent(f"{result} is not installed")
        if kind == "failed":
            raise Failed(result)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # some client's thread
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def cpu_seconds(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """The CPU time of this process, all its threads, while it does `work`, and what that gave."""
    gc.collect()
    start = time.process_time()
    result = await work()
    return time.process_time() - start, result


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    runner: asyncio.Runner | None = None
    for line in sys.stdin:
        function, arguments = json.loads(line)
        try:
            runner = runner or asyncio.Runner(loop_factory=_loop_factory(sys.argv[1]))
            module, _, name = function.partition(":")
            result = getattr(importlib.import_module(module), name)(*arguments)
            if inspect.iscoroutine(result):
                result = runner.run(asyncio.wait_for(result, SECONDS))
            answer = ("done", result)
        except ModuleNotFoundError as error:
            answer = ("absent", error.name)
        except Exception as error:
            answer = ("failed", f"{type(error).__name__}: {error}"[:300])
        print(json.dumps(answer), file=answers, flush=True)
    if runner is not None:
        runner.close()


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    return None if name == "asyncio" else importlib.import_module(name).new_event_loop


if __name__ == "__main__":
    main()
