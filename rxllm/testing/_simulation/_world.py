"""What a simulated app gets: servers, a section that may be cancelled, and notes in the trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NoReturn, Self, TypeVar

from rxllm.testing._simulation._faults import Moment
from rxllm.testing._simulation._loop import NumberedTask, VirtualLoop
from rxllm.testing.loopback import Loopback, Reply, Request, Script
from rxllm.testing.loopback._connection import Connection
from rxllm.testing.loopback._server import EMPTY

T = TypeVar("T")


class World:
    """A simulated world: `seed`, `random` for draws of the app's own, and `faults`, those that have struck so far."""

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
        """Return a new server, which answers as `script` says; see ``rxllm.testing.loopback``."""
        server = SimulatedServer(script, self._loop, 8000 + len(self.servers))
        self.servers.append(server)
        return server

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        task = asyncio.current_task()
        self._loop.note(task.label if isinstance(task, NumberedTask) else "a callback", what)

    async def cancellable(self, work: Awaitable[T]) -> T | None:
        """Return what `work` returns. If the run has a cancel, it strikes here instead of at the whole app: then None.

        What the app does afterwards shows what the cancel has left behind.
        """

        async def run() -> T:
            self._loop.aim(task, self._cancel)  # now: what is cancelled before its first step leaves `work` alone
            return await work

        task: Any = self._loop.create_task(run(), name="cancellable")
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self._loop.aim(None, None)
        return None if task.cancelled() else task.result()


class SimulatedServer(Loopback):
    """A `Loopback` without a socket and a thread: the same script, `url`, `requests` and `connections`."""

    def __init__(self, script: Script, loop: VirtualLoop, port: int) -> None:
        super().__init__(script)
        self.port = port
        self._virtual = loop
        loop.listeners[port] = self._connect

    def _reply_to(self, request: Request) -> Reply:
        self._virtual.note(f"server {self.port}", f"is asked for {request.path}")
        reply = super()._reply_to(request)
        if not self._virtual.faults.strikes("429"):
            return reply
        self._virtual.inject(f"server {self.port}", "429")
        error = {"message": "Too many requests.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
        return Reply.of_json({"error": error}, 429, retry_after="1")

    def open_connections(self) -> list[Connection]:
        return [connection for connection in self.connections if connection.closed_at is None]

    def __enter__(self) -> Self:
        return self  # it serves already, so that code written for a Loopback runs

    def __exit__(self, *_: object) -> None:
        pass

    def wait_until(self, condition: Callable[[], bool], timeout: float = 0.0) -> NoReturn:
        raise RuntimeError("a simulation cannot block: await asyncio.sleep(...) lets the server see what was sent")
