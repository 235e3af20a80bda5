"""The world in which a simulated app runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from datetime import UTC, datetime
from random import Random
from typing import Any, NoReturn, Self, TypeVar

import httpcore
import msgspec
import reactivex.scheduler.scheduler
from anyio._backends._asyncio import CancelScope
from reactivex.scheduler import TimeoutScheduler

from rxllm.runtime import LoopScheduler, current_place
from rxllm.runtime.portal import Portal
from rxllm.runtime.threads import DaemonThreads, Live
from rxllm.testing._simulation_loop import Moment, NumberedTask, VirtualLoop, outside_of_loop
from rxllm.testing._simulation_network import world_context
from rxllm.testing.loopback import EMPTY, Connection, Loopback, Reply, Request, Script

T = TypeVar("T")


class World:
    """A simulated world. `random` generates random numbers for the app. `faults` lists the faults injected so far."""

    def __init__(self, loop: VirtualLoop, seed: int, cancel: int | None) -> None:
        self.seed = seed
        self.random = Random(f"app {seed}")
        self.servers: list[SimulatedServer] = []
        self._loop = loop
        self._cancel = cancel

    @property
    def faults(self) -> tuple[Moment, ...]:
        return tuple(self._loop.faults.injected)

    def serve(self, script: Script = EMPTY) -> SimulatedServer:
        """Return a new server that follows `script`. See ``rxllm.testing.loopback`` for scripts."""
        server = SimulatedServer(script, self._loop, 8000 + len(self.servers))
        self.servers.append(server)
        return server

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        task = asyncio.current_task()
        self._loop.note(task.label if isinstance(task, NumberedTask) else "a callback", what)

    async def cancellable(self, work: Awaitable[T]) -> T | None:
        """Return the result of `work`, or None if `work` was cancelled.

        The simulation cancels only `work`. The app continues, so it can check what the cancelled work left behind.
        """

        async def run() -> T:
            # Schedule the cancellation here, once the task has started. If the task were cancelled before its first
            # step, `work` would never start.
            self._loop.schedule_cancel(task, self._cancel)
            return await work

        task: Any = self._loop.create_task(run(), name="cancellable")
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self._loop.schedule_cancel(None, None)
        return None if task.cancelled() else task.result()


class SimulatedServer(Loopback):
    """A `Loopback` without a socket or a thread. Its `url`, `requests` and `connections` work as usual."""

    def __init__(self, script: Script, loop: VirtualLoop, port: int) -> None:
        super().__init__(script)
        self.port = port
        self._virtual = loop
        loop.listeners[port] = self._connect

    def _reply_to(self, request: Request) -> Reply:
        self._virtual.note(f"server {self.port}", f"receives a request for {request.path}")
        reply = super()._reply_to(request)
        if not self._virtual.faults.strikes("429"):
            return reply
        self._virtual.inject(f"server {self.port}", "429")
        error = {"message": "Too many requests.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
        return Reply.of_json({"error": error}, 429, retry_after="1")

    def open_connections(self) -> list[Connection]:
        return [connection for connection in self.connections if connection.closed_at is None]

    def __enter__(self) -> Self:
        return self  # code that was written for a Loopback uses the server in a with block

    def __exit__(self, *_: object) -> None:
        pass

    def wait_until(self, condition: Callable[[], bool], timeout: float = 0.0) -> NoReturn:
        raise RuntimeError("a simulation cannot block: await asyncio.sleep(...) instead")


EPOCH = 1_750_000_000
"""The value of ``time.time()`` when a simulation begins."""


@contextlib.contextmanager
def stand_ins(loop: VirtualLoop, seed: int, pools: PoolWatch) -> Generator[None]:
    """Replace the clock and random numbers, watch connection pools, and forbid new threads.

    The replacements affect only code that runs on this thread. The state of the ``random`` module is an exception,
    because all threads share this state.
    """
    pool = httpcore.AsyncConnectionPool
    bytes_of = random.Random(f"bytes {seed}").randbytes
    scheduler = LoopScheduler(loop)
    scopes: dict[int, tuple[int, object]] = {}

    def hash_scope(scope: object) -> int:
        return scopes.setdefault(id(scope), (len(scopes), scope))[0]

    def refuse_thread(thread: threading.Thread) -> NoReturn:
        fault = f"threads are not allowed in a simulation, but the app started the thread {thread.name!r}"
        error = RuntimeError(f"{fault}: use tasks, asyncio.to_thread or Rx timers")
        loop.call_exception_handler({"message": "the app started a thread", "exception": error})  # Rx may swallow it
        raise error

    with _one_at_a_time, contextlib.ExitStack() as stack:
        for owner, name, stand_in in (
            (time, "monotonic", loop.time),
            (time, "perf_counter", loop.time),
            (time, "time", lambda: EPOCH + loop.time()),
            (time, "monotonic_ns", lambda: int(loop.time() * 1e9)),
            (time, "perf_counter_ns", lambda: int(loop.time() * 1e9)),
            (time, "time_ns", lambda: int((EPOCH + loop.time()) * 1e9)),
            (time, "sleep", loop.sleep),
            (os, "urandom", bytes_of),
            (random, "_urandom", bytes_of),  # SystemRandom and secrets call this function
            (reactivex.scheduler.scheduler, "default_now", lambda: datetime.fromtimestamp(EPOCH + loop.time(), UTC)),
            (TimeoutScheduler, "singleton", lambda: scheduler),
            (threading.Thread, "start", refuse_thread),
            (CancelScope, "__hash__", hash_scope),  # anyio iterates over sets of these scopes
            (pool, "handle_async_request", pools.wrap_handler(pool.handle_async_request)),
        ):
            stack.callback(_replace_function(owner, name, stand_in))
        state = random.getstate()
        stack.callback(random.setstate, state)
        random.seed(f"random {seed}")
        threads = loop.threads = InlineThreads(loop)
        place = msgspec.structs.replace(current_place.get(), threads=threads, portal=SimulatedPortal(loop))
        stack.callback(current_place.reset, current_place.set(place))
        yield


_here = threading.local()
"""This thread's stand-ins for global functions, by name."""

_one_at_a_time = threading.Lock()
"""Held by a simulation for as long as it replaces global functions."""


def check_outside() -> None:
    if vars(_here):
        raise RuntimeError("a simulation cannot run inside another: await the inner app, or simulate it later")


def _replace_function(owner: Any, name: str, stand_in: Callable[..., Any]) -> Callable[[], None]:
    """Replace a function on this thread, and return a function that restores it."""
    key = f"{owner.__name__}.{name}"
    original: Any = inspect.getattr_static(owner, name)
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        # A module that was imported during a simulation may still call this function afterwards.
        return getattr(_here, key, function)(*args, **kwargs)

    def restore() -> None:
        setattr(owner, name, original)
        delattr(_here, key)

    setattr(_here, key, stand_in)
    setattr(owner, name, staticmethod(call) if isinstance(original, classmethod) else call)
    return restore


class InlineThreads(DaemonThreads):
    """Runs blocking functions on the current thread. If a function sleeps, its result arrives later in virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with outside_of_loop():
            try:
                settle = functools.partial(future.set_result, fn(*args, **kwargs))
            except BaseException as error:
                settle = functools.partial(future.set_exception, error)

        def end() -> None:
            with contextlib.suppress(Exception):  # the caller may have cancelled the future
                settle()

        seconds, self._loop.slept = self._loop.slept, 0.0
        if seconds:
            self._loop.call_later(seconds, end, context=world_context())
        else:
            end()
        return future

    def leave(self, job: Future[Any], what: str) -> None:
        job.cancel()


class SimulatedPortal(Portal):
    """A portal whose event loop is the simulation's own."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.live = Live()
        self.loop = loop
        self.thread = threading.current_thread()


class PoolWatch:
    """Counts the connection pool slots that are taken although no request is using them. A closed pool has no slots."""

    def __init__(self) -> None:
        self.lost = 0
        self._pools: set[Any] = set()

    def wrap_handler(self, handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a ``handle_async_request`` method that counts its pool's slots and then calls `handle`."""

        async def handle_watched(pool: Any, request: Any) -> Any:
            self._pools.add(pool)
            self._count(pool)
            return await handle(pool, request)

        return handle_watched

    def count_all(self) -> None:
        for pool in self._pools:
            self._count(pool)

    def _count(self, pool: Any) -> None:
        used = [connection for connection in pool.connections if not (connection.is_idle() or connection.is_closed())]
        self.lost = max(self.lost, len(used) - len(pool._requests))
