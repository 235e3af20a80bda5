"""The interpreter's end: which calls it waits for, and for how long.

==========================================  ==========================================================================
a call                                      at the end
==========================================  ==========================================================================
read by ``run()`` or ``for`` on a thread    is closed at once: its reader is gone, or a daemon thread that ends here
that was subscribed, and has emitted        goes on until nothing has come for `SILENT_SECONDS`
that has emitted nothing, a tool, a wait    goes on until nothing has happened for `FIRST_SECONDS`
for a retry
==========================================  ==========================================================================

What is closed for its silence gets ``StreamError("cancelled")``, and one line is logged. Ctrl-C closes everything.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent import futures
from typing import Protocol

SILENT_SECONDS = 5.0
FIRST_SECONDS = 30.0
CLOSE_SECONDS = 1.0
"""How long calls that have been cancelled may take to close."""

TICK_SECONDS = 0.02

log = logging.getLogger("rxllm")


class Call(Protocol):
    """A subscription that runs."""

    emitted: int
    read: bool

    def dispose(self) -> None: ...


class Live:
    """What goes on on the portal's loop, and is touched there only."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.timers: set[asyncio.TimerHandle] = set()


class Drain:
    """The wait for `live`, on its loop."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._beats = 0

    async def run(self) -> None:
        """Wait for what goes on; close what nobody reads, and what has fallen silent."""
        _name_this()
        for call in tuple(self._live.calls):
            if call.read:
                call.dispose()
        loop = asyncio.get_running_loop()
        since, before = loop.time(), self._progress()
        while (tasks := _tasks()) or self._live.timers:
            await _settled(tasks, TICK_SECONDS)
            self._beats += 1
            now = self._progress()
            if now != before:
                since, before = loop.time(), now
            elif loop.time() - since > self._patience():
                log.warning("%d calls had been silent for %g s at exit and were closed", len(tasks), self._patience())
                await self.cancel()
                return

    async def cancel(self) -> None:
        """Close everything, within `CLOSE_SECONDS`."""
        _name_this()
        tasks = _tasks()
        for each in (*tasks, *self._live.timers):
            each.cancel()
        self._live.timers.clear()
        await _settled(tasks, CLOSE_SECONDS)

    def wait(self, done: futures.Future[None]) -> None:
        """Wait, on another thread, until `done`, unless the loop itself stands still."""
        beats = -1
        while not futures.wait((done,), FIRST_SECONDS).done:
            if beats == self._beats:
                log.warning("rxllm's loop had stood still for %g s at exit: a callback blocks it", FIRST_SECONDS)
                return
            beats = self._beats

    def _patience(self) -> float:
        calls = self._live.calls
        return SILENT_SECONDS if calls and all(call.emitted for call in calls) else FIRST_SECONDS

    def _progress(self) -> object:
        return {id(call): call.emitted for call in self._live.calls}, {id(task) for task in _tasks()}


_NAME = "rxllm-drain"


def _name_this() -> None:
    this = asyncio.current_task()
    if this is not None:
        this.set_name(_NAME)


def _tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task.get_name() != _NAME}


async def _settled(tasks: set[asyncio.Task[object]], seconds: float) -> None:
    await (asyncio.wait(tasks, timeout=seconds) if tasks else asyncio.sleep(seconds))
