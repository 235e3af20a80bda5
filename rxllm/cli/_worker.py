"""``worker``: go on with runs that nobody produces, until Ctrl-C or SIGTERM.

The first signal lets those that it produces end, for a while; the second, or the end of that time, gives them back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from argparse import Namespace
from contextlib import suppress
from importlib import import_module
from typing import Any

from rxllm import RunError
from rxllm.durable import Runs

LOOK_SECONDS = 0.05
"""How often it looks whether its runs have ended."""

WRONG = "it must be module:name of what rxllm.durable.open_runs(...) returns, or of a function that returns it"


def run(options: Namespace) -> int:
    """Produce runs until a signal; those that do not end in time are given back, for other workers."""
    sys.path.insert(0, os.getcwd())
    try:
        runs = _runs(options.runs)
    except LookupError as error:
        print(f"rxllm: {error.args[0]}", file=sys.stderr)
        return 2
    with suppress(KeyboardInterrupt):  # where a loop cannot handle signals
        asyncio.run(_work(runs, options.every, options.most, options.grace))
    return 0


async def _work(runs: Runs, every: float, most: int, grace: float) -> None:
    ending, at_once = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (at_once if ending.is_set() else ending).set()

    with suppress(NotImplementedError):
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, end)
    print(f"{runs!r} (Ctrl-C stops)", flush=True)
    async with runs:
        while not ending.is_set():
            await _recover(runs, most - len(runs.produced))
            await _wait(ending, every)
        until = time.monotonic() + grace
        while runs.produced and not at_once.is_set() and time.monotonic() < until:
            await _wait(at_once, LOOK_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _recover(runs: Runs, room: int) -> None:
    try:
        for id in await runs.recover(room) if room > 0 else ():
            print(f"run {id}", flush=True)
    except RunError as error:
        if error.reason != "store_unavailable":
            raise
        print(f"rxllm: {error}", file=sys.stderr)


def _runs(place: str) -> Runs:
    module, _, name = place.partition(":")
    try:
        found: Any = import_module(module) if module and name else None
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise LookupError(f"there is no module {module!r} for {place!r}: {WRONG}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found) and not isinstance(found, Runs):
        found = found()
    if not isinstance(found, Runs):
        raise LookupError(f"{place!r} is {found!r:.80}: {WRONG}")
    return found
