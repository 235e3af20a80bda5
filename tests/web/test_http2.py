"""Over HTTP/2, where a browser that leaves resets its stream and keeps the connection; the server is Hypercorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from h2.connection import H2Connection
from h2.events import DataReceived
from hypercorn.asyncio import serve
from hypercorn.config import Config

from rxllm import TextDelta
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.web._codec import PROTOCOLS
from tests.closing import STALLED, assert_closed
from tests.waiting import PATIENCE, until
from tests.web.serving import App, app_of, asks, decoded

pytestmark = pytest.mark.sockets


@contextlib.asynccontextmanager
async def serving_http2(app: App) -> AsyncIterator[httpx.AsyncClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config, ended = Config(), asyncio.Event()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = 1
    running = asyncio.create_task(serve(app, config, shutdown_trigger=ended.wait))
    try:
        async with httpx.AsyncClient(http1=False, http2=True, base_url=url, timeout=PATIENCE) as client:
            yield client
    finally:
        ended.set()
        await running


def test_every_protocol_goes_over_http2() -> None:
    async def main() -> list[bytes]:
        bodies: list[bytes] = []
        for protocol in PROTOCOLS:
            async with serving_http2(app_of(asks(server), protocol)) as client:
                response = await client.get("/")
                assert (response.status_code, response.http_version) == (200, "HTTP/2")
                bodies.append(response.content)
        return bodies

    with Loopback(Reply(chat("Hel", "lo"))) as server:
        bodies = asyncio.run(main())
    for protocol, body in zip(PROTOCOLS, bodies, strict=True):
        events = decoded(body, protocol)
        assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "Hello"


class Tabs:
    """Requests over one connection; httpx does not reset a stream that it closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._connection = H2Connection()
        self._connection.initiate_connection()

    async def open(self) -> int:
        """Ask, and return the number of the stream once it has said something."""
        stream = self._connection.get_next_available_stream_id()
        names = {"method": "GET", "path": "/", "scheme": "http", "authority": "test"}
        self._connection.send_headers(stream, [(f":{name}", value) for name, value in names.items()], end_stream=True)
        self._flush()
        while True:
            for event in self._connection.receive_data(await self._reader.read(65536)):
                if isinstance(event, DataReceived) and event.stream_id == stream:
                    return stream

    def close(self, stream: int) -> None:
        self._connection.reset_stream(stream)
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())


def test_a_stream_that_is_reset_ends_its_call_and_no_other() -> None:
    async def main() -> None:
        async with serving_http2(app_of(asks(server))) as client, asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            tabs = Tabs(reader, writer)
            await tabs.open()
            stream = await tabs.open()
            tabs.close(stream)
            await tabs.open()  # whose model has answered: by then the call of the one before has ended
            assert_closed(server.connections[1])
            assert server.open_count == 2
            writer.close()
            await until(lambda: server.open_count == 0)

    with Loopback(STALLED) as server:
        asyncio.run(main())
