"""A web server on a socket in the test's own loop, and browsers that read from it as they please."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import httpx
import uvicorn
from reactivex import from_iterable

import rxllm
from rxllm import Event, Stream, web
from rxllm.testing.loopback import Connection, Loopback
from tests.closing import assert_closed
from tests.runtime.support import model
from tests.waiting import PATIENCE, until

App = Callable[[Any, Any, Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[int]:
    """Serve `app` with uvicorn, and yield the port. Leaving stops the server, and waits for its end."""
    options = {"timeout_graceful_shutdown": PATIENCE, "lifespan": "off", **options}
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", http="h11", loop="asyncio", **options)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started or running.done())
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


def app_of(make: Callable[[], Stream[Any]], protocol: Any = "rxllm", **options: Any) -> App:
    """An application that answers every request with a new stream."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await web.streaming_response(make(), protocol, **options)(scope, receive, send)

    return app


def asks(server: Loopback) -> Callable[[], Stream[Event]]:
    return lambda: rxllm.stream_generate(model(server), "Hi")


async def get(app: App, path: str = "/", method: str = "GET") -> httpx.Response:
    async with serving(app) as port, httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.request(method, f"http://127.0.0.1:{port}{path}")


def decoded(body: bytes, protocol: str = "rxllm") -> list[Event]:
    return list(Stream.of(from_iterable(web.from_sse([body]))).pipe(web.decode(protocol)))


class Browser:
    """One request, over a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.body = bytearray()

    @classmethod
    async def ask(cls, port: int, path: str = "/", method: str = "GET", body: bytes = b"") -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{length}\r\n".encode() + body)
        return cls(reader, writer)

    async def read(self, size: int = 65536) -> bytes:
        data = await self._reader.read(size)
        self.body += data
        return data

    async def read_until(self, text: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.body:
                assert await self.read(), f"the server has closed after {bytes(self.body[-500:])!r}"

    async def read_all(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            while await self.read():
                pass
        return bytes(self.body)

    def close(self) -> None:
        self._writer.close()

    def leave(self) -> None:
        self._writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.leave()


async def assert_left(port: int, connection: Connection, path: str = "/") -> None:
    """Check that the call of a browser that has left is closed once the next browser has its answer.

    Both are served by the same loop, so that a slow machine delays both.
    """
    async with await Browser.ask(port, path) as browser:
        await browser.read_all()
    assert_closed(connection)
