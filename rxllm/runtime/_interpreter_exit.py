"""At the interpreter's exit: which calls it waits for, and for how long.

==========================================  ==========================================================================
a call                                      at exit
==========================================  ==========================================================================
read by ``run()`` or ``for`` on a thread    is closed at once: its reader is gone, or is a daemon thread that ends now
subscribed to, and has emitted              goes on until nothing has come for `SILENT_SECONDS`
without events, a tool, a wait for a retry  goes on until nothing has happened for `FIRST_SECONDS`
==========================================  ==========================================================================

A call that is closed for its silence gets ``StreamError("cancelled")``; one line is logged. Ctrl-C closes everything,
at exit, or when it has ended the program (outside a prompt).
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
    """A running subscription."""

    emitted: int
    read: bool

    def dispose(self) -> None: ...


class Live:
    """The calls and timers on the portal's loop. Only that loop's thread touches them."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.timers: set[asyncio.TimerHandle] = set()


class Drain:
    """The wait for the calls and timers of `live`."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._ticks = 0

    async def run(self) -> None:
        """Wait on the loop for what is running; close what nobody reads, and what has fallen silent."""
        _name_current_task()
        for call in tuple(self._live.calls):
            if call.read:
                call.dispose()
        loop = asyncio.get_running_loop()
        since, before = loop.time(), self._progress()
        while (tasks := _tasks()) or self._live.timers:
            await _settled(tasks, TICK_SECONDS)
            self._ticks += 1
            now = self._progress()
            if now != before:
                since, before = loop.time(), now
            elif loop.time() - since > self._patience():
                log.warning("%d calls had been silent for %g s at exit and were closed", len(tasks), self._patience())
                await self.cancel()
                return

    async def cancel(self) -> None:
        """Cancel everything on the loop, and wait up to `CLOSE_SECONDS` until it is closed."""
        _name_current_task()
        tasks = _tasks()
        for pending in (*tasks, *self._live.timers):
            pending.cancel()
        self._live.timers.clear()
        await _settled(tasks, CLOSE_SECONDS)

    def wait(self, done: futures.Future[None]) -> None:
        """Wait on another thread until `done`, or until the loop itself has made no tick for `FIRST_SECONDS`."""
        ticks = -1
        while not futures.wait((done,), FIRST_SECONDS).done:
            if ticks == self._ticks:
                log.warning("rxllm's loop did not run for %g s at exit: a callback blocks it", FIRST_SECONDS)
                return
            ticks = self._ticks

    def _patience(self) -> float:
        calls = self._live.calls
        return SILENT_SECONDS if calls and all(call.emitted for call in calls) else FIRST_SECONDS

    def _progress(self) -> object:
        return {id(call): call.emitted for call in self._live.calls}, {id(task) for task in _tasks()}


_NAME = "rxllm-drain"


def _name_current_task() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.set_name(_NAME)


def _tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task.get_name() != _NAME}


async def _settled(tasks: set[asyncio.Task[object]], seconds: float) -> None:
    await (asyncio.wait(tasks, timeout=seconds) if tasks else asyncio.sleep(seconds))
