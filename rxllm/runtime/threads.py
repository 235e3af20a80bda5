"""Run functions in daemon threads, and wait for running calls when the interpreter exits.

==========================================  ==========================================================================
running call                                what happens when the interpreter exits
==========================================  ==========================================================================
a call that a thread reads with ``run()``   is closed at once, because the thread has ended or is a daemon thread that
or ``for``                                  is now ending
a subscription that has emitted events      continues until no event has arrived for `SILENT_SECONDS`
a subscription that has not emitted events  continues until nothing has happened for `FIRST_SECONDS`; until then, all
yet, a tool, or a wait for a retry          other calls continue too
==========================================  ==========================================================================

When one of these time limits is reached, all remaining calls end with ``StreamError("cancelled")``, and one line is
logged. Ctrl-C also closes all calls, whether it ended the program or was pressed while the interpreter was exiting. A
Ctrl-C that was pressed earlier, at an interactive prompt, does not close the calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from rxllm.runtime.context_variables import current_place

log = logging.getLogger("rxllm")
P = ParamSpec("P")
T = TypeVar("T")


LARGE = 64_000
"""The number of characters or bytes of JSON above which it is read and written in a thread."""


async def off_loop(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return ``function(...)``. If `size` is more than `LARGE`, the function runs in a thread, as it takes a while.

    All these functions share one thread. More would take turns with the event loop, and so slow it down, but not be
    faster, because they only compute.
    """
    if size <= LARGE:
        return function(*args, **kwargs)
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_worker, call)


_worker = ThreadPoolExecutor(1, "rxllm-json")


# Threads that never keep the process alive


IDLE_KEPT = 16
"""The maximum number of idle threads to keep."""

THREADS = 1_000
"""The maximum number of tool functions that may run at the same time."""

THREADS_LEFT = 100
"""The maximum number of abandoned functions that may still be running."""

_Job = tuple["Future[Any]", Callable[[], Any]]


class _Worker(threading.Thread):
    pass


def is_daemon_worker() -> bool:
    return isinstance(threading.current_thread(), _Worker)


class DaemonThreads(ThreadPoolExecutor):
    """An executor that never delays the exit of the interpreter.

    One thread is started in advance, because no thread can be started during exit. `running` is the number of
    unfinished jobs, and `left` is the number of abandoned jobs that are still running.
    """

    running = 0
    left = 0

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle = 0
        self._guard = threading.Lock()
        self._grow()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._guard:
            if self._idle == 0:
                self._grow()
            self._idle -= 1
            self.running += 1
        self._jobs.put((future, lambda: fn(*args, **kwargs)))
        return future

    def leave(self, job: Future[Any], what: str) -> None:
        """Stop waiting for `job`. If `job` has already started, log a warning that it keeps running.

        `what` is the name of the job in the log.
        """
        if job.cancel():  # it had not started yet
            return
        with self._guard:
            self.left += 1
        job.add_done_callback(self._on_returned)  # if the job is already done, this is called at once
        logging.getLogger("rxllm").warning(
            "%s was cancelled or timed out, but keeps running, because Python cannot stop a thread "
            "(number of such threads that are still running: %d)",
            what,
            self.left,
        )

    def _on_returned(self, job: Future[Any]) -> None:
        with self._guard:
            self.left -= 1

    def _grow(self) -> None:
        try:
            _Worker(target=self._work, name="rxllm-worker", daemon=True).start()
            self._idle += 1
        except RuntimeError:  # no thread can start at shutdown, so an existing thread must run the job
            self._idle += 1

    def _work(self) -> None:
        while True:
            future, job = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
            del future, job
            with self._guard:
                self.running -= 1
                if self._idle >= IDLE_KEPT:
                    return
                self._idle += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing, because the threads end with the process."""


_threads: DaemonThreads | None = None


def _forget() -> None:
    # A forked child does not have its parent's threads.
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def daemon_threads() -> DaemonThreads:
    """Return the current executor. If there is none yet, create it."""
    global _threads
    if (stand_in := current_place.get().threads) is not None:
        return stand_in
    if _threads is None:
        _threads = DaemonThreads()
    return _threads


async def in_thread(fn: Callable[[], T], what: str = "a function") -> T:
    """Run a blocking function in a thread, and return its result.

    If the caller is cancelled, `fn` keeps running. `what` is the name of the function in the log.
    """
    job = daemon_threads().submit(contextvars.copy_context().run, fn)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        daemon_threads().leave(job, what)
        raise


# Waiting for running calls when the interpreter exits


SILENT_SECONDS = 5.0
FIRST_SECONDS = 30.0
CLOSE_SECONDS = 1.0
"""The maximum number of seconds that cancelled calls may take to close."""

TICK_SECONDS = 0.02

TURNS = 10
"""The number of turns of the event loop without a task or a timer after which nothing is left to wait for."""


class Call(Protocol):
    """A running subscription."""

    emitted: int
    read: bool

    def dispose(self) -> None: ...


class Live:
    """The running calls and timers of the portal. Only the portal's thread may use them."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.timers: set[asyncio.TimerHandle] = set()


class Drain:
    """Waits for the calls and timers in `live` when the interpreter exits."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._ticks = 0

    async def run(self) -> None:
        """Wait until all calls and timers have ended. If nothing happens for too long, cancel those that are left."""
        _name_current_task()
        for call in tuple(self._live.calls):
            if call.read:
                call.dispose()
        loop = asyncio.get_running_loop()
        since, before = loop.time(), self._progress()
        while await self._is_busy():
            tasks = _tasks()
            await _wait_for(tasks, TICK_SECONDS)
            self._ticks += 1
            now = self._progress()
            if now != before:
                since, before = loop.time(), now
            elif loop.time() - since > self._patience():
                log.warning("%d calls had been silent for %g s at exit and were closed", len(tasks), self._patience())
                await self.cancel()
                return

    async def cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for pending in (*tasks, *self._live.timers):
            pending.cancel()
        self._live.timers.clear()
        await _wait_for(tasks, CLOSE_SECONDS)

    def wait(self, done: futures.Future[None]) -> None:
        """Wait for `done`, or give up if the loop hangs. Call this on a thread other than the loop's."""
        ticks = -1
        while not futures.wait((done,), FIRST_SECONDS).done:
            if ticks == self._ticks:
                log.warning("at exit, a callback blocked rxllm's event loop for more than %g s", FIRST_SECONDS)
                return
            ticks = self._ticks

    async def _is_busy(self) -> bool:
        for _ in range(TURNS):  # a task that has just ended may have scheduled the start of the next task
            if _tasks() or self._live.timers:
                return True
            await asyncio.sleep(0)
        return False

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


async def _wait_for(tasks: set[asyncio.Task[object]], seconds: float) -> None:
    await (asyncio.wait(tasks, timeout=seconds) if tasks else asyncio.sleep(seconds))
