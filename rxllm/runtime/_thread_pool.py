"""Threads that never keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

IDLE_KEPT = 16
"""How many threads wait for their next job; others end."""

_Job = tuple["Future[Any]", Callable[[], Any]]


class _Worker(threading.Thread):
    pass


def is_daemon_worker() -> bool:
    """Whether the current thread is one of rxllm's own."""
    return isinstance(threading.current_thread(), _Worker)


class DaemonThreads(ThreadPoolExecutor):
    """An executor that grows and shrinks as needed and that nothing ever waits for.

    A job that hangs costs its thread and no more. The threads of a ``ThreadPoolExecutor`` would delay the interpreter's
    exit, and refuse new jobs while a last call is still running. One thread is always ready, because none can be
    started at exit. `running` counts the jobs, and `left` those of them that run on although nobody waits for them.
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
        """Stop waiting for `job`, which the log calls `what`."""
        if job.cancel():  # it has not begun
            return
        with self._guard:
            self.left += 1
        job.add_done_callback(self._on_returned)  # called at once if it is done
        logging.getLogger("rxllm").warning(
            "%s was cancelled or timed out, but keeps running: Python cannot stop a thread (%d such now)",
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
        except RuntimeError:  # the interpreter is shutting down: the job waits for a running thread
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
        """Do nothing: the threads end with the process."""


_threads: DaemonThreads | None = None

stand_in_threads: contextvars.ContextVar[DaemonThreads | None] = contextvars.ContextVar("rxllm_threads", default=None)
"""Where blocking functions run in this context instead of in the process's threads; simulations have no threads."""


def _forget() -> None:
    # A forked child does not have its parent's threads.
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def daemon_threads() -> DaemonThreads:
    """Return the process's threads, made on first use, or those that stand in for them here."""
    global _threads
    if (stand_in := stand_in_threads.get()) is not None:
        return stand_in
    if _threads is None:
        _threads = DaemonThreads()
    return _threads


async def in_thread(fn: Callable[[], T], what: str = "a function") -> T:
    """Run the blocking function `fn` in a thread, in the caller's context, and return its result.

    When this is cancelled, `fn` runs on and its result is dropped; the log then calls it `what`.
    """
    job = daemon_threads().submit(contextvars.copy_context().run, fn)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        daemon_threads().leave(job, what)
        raise
