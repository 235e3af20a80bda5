"""The server: its thread, its socket, and the requests and connections that it has seen."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rxllm.testing.loopback._connection import Connection
from rxllm.testing.loopback._script import Reply, Request, Script, check_script

EMPTY = Reply()
TURNS = 5
"""Turns of the loop within which a connection that is being accepted is made."""


class Loopback:
    """The server: its `url`, `connections` and `requests` in the order they came, `open_count` of connections.

    With `accept_after` it listens at once but accepts no connection for so many seconds. `tls` is the server's side of
    HTTPS, with a certificate for 127.0.0.1.
    """

    def __init__(self, script: Script = EMPTY, *, accept_after: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.connections: list[Connection] = []
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self.port = 0
        self._script = check_script(script)
        self._accept_after = accept_after
        self._tls = tls
        self._changed = threading.Condition()
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def open_count(self) -> int:
        return sum(connection.closed_at is None for connection in list(self.connections))

    def wait_requests(self, count: int, timeout: float = 20.0) -> list[Request]:
        """Return the requests, once there are `count` of them. Raises ``TimeoutError``."""
        self.wait_until(lambda: len(self.requests) >= count, timeout)
        return self.requests

    def wait_until(self, condition: Callable[[], bool], timeout: float = 20.0) -> None:
        """Return once `condition` holds; it is checked when a connection, a request or a close is seen."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(f"{len(self.requests)} requests, {self.open_count} open connections")

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        # What it accepts inherits this, which asyncio sets for its own sockets only: else a frame waits 40 ms for the
        # acknowledgement of the one before.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="loopback", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self.errors and (kind is None or issubclass(kind, Exception)):
            raise self.errors[0]  # its context is what failed inside, perhaps because of it

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._accept_after)
        except TimeoutError:
            server = await self._loop.create_server(self._connect, sock=self._socket, backlog=2048, ssl=self._tls)
            await self._stopping.wait()
            self._loop.remove_reader(self._socket)
            for _ in range(TURNS):  # asyncio leaks a connection that it is accepting while the server is closed
                await asyncio.sleep(0)
            server.close()
        self._socket.close()
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)  # in this turn the transports call connection_lost

    def _connect(self) -> Connection:
        return Connection(self._reply_to, self._changed, self._opened, self.errors.append)

    def _opened(self, connection: Connection) -> None:
        with self._changed:
            self.connections.append(connection)
            self._changed.notify_all()

    def _reply_to(self, request: Request) -> Reply:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if callable(self._script):
            reply: Any = self._script(request)
            if not isinstance(reply, Reply):
                raise TypeError(f"the script returned {reply!r} instead of a Reply")
            return reply
        if isinstance(self._script, Reply):
            return self._script
        return self._script[min(len(self.requests), len(self._script)) - 1]
