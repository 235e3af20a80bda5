"""Over HTTP/2, which a client given by the user may speak: many answers share one connection."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import trustme
from hypercorn.asyncio import serve
from hypercorn.config import Config

from rxllm import AdapterError, Engine, Event, OpenAIChat, generate, stream_generate
from rxllm.testing.loopback import DONE, chat_chunk, chat_finish
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.sockets

TEXT = "0 1 2 3 4 5 "
SILENT_AFTER = 2
FRAMES = [*(chat_chunk(f"{word} ") for word in TEXT.split()), chat_finish(), DONE]

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Server:
    """Says `TEXT` over HTTP/2. Asked to "refuse" it answers 429, asked to "stop" it falls silent in the text, and asked
    to "wait" before it.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.connections: set[Any] = set()
        self.versions: set[str] = set()
        self.asked: list[str] = []
        self.trusted, self._config = _secure(folder)
        self._config.bind = [f"fd://{self._socket.detach()}"]
        self._config.loglevel = "CRITICAL"
        self._config.graceful_timeout = 1.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._started = threading.Event()

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: None)  # it stops in the middle of answers
        self._started.set()
        await serve(self._app, self._config, shutdown_trigger=self._until_over)

    async def _until_over(self) -> None:
        await self._over.wait()

    async def _app(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.versions.add(scope["http_version"])
        self.connections.add(tuple(scope["client"]))
        body, more = b"", True
        while more:  # a body may arrive in pieces
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(body)["messages"][-1]["content"]
        self.asked.append(asked)
        if asked == "wait":
            await self._over.wait()
        status = 429 if asked == "refuse" else 200
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for n, frame in enumerate(FRAMES):
            if n == SILENT_AFTER and asked == "stop":
                await self._over.wait()
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


def _secure(folder: Path) -> tuple[ssl.SSLContext, Config]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    config = Config()
    config.certfile, config.keyfile = str(folder / "cert.pem"), str(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(config.certfile)
    issued.private_key_pem.write_to_path(config.keyfile)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context, config


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def model(request: pytest.FixtureRequest, server: Server) -> Iterator[Callable[..., Engine]]:
    server.connections.clear()
    server.versions.clear()

    def make(**options: Any) -> Engine:
        def client() -> Any:
            return request.param.AsyncClient(http2=True, verify=server.trusted, timeout=PATIENCE)

        return Engine(OpenAIChat(base_url=server.url, client=client, **options), model="m", retry=False)

    yield make
    assert server.versions == {"2"}


async def texts(engine: Engine, *asked: str) -> list[str]:
    return [answer.output_text for answer in await asyncio.gather(*[generate(engine, each) for each in asked])]


def test_answers_side_by_side_share_one_connection(server: Server, model: Callable[..., Engine]) -> None:
    async def main() -> None:
        engine = model()
        assert await texts(engine, "Hi") == [TEXT]
        assert await texts(engine, *["Hi"] * 10) == [TEXT] * 10

    asyncio.run(main())
    assert len(server.connections) == 1


def test_a_refusal_is_told(model: Callable[..., Engine], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with pytest.raises(AdapterError) as raised:
            await generate(model(), "refuse")
        assert raised.value.reason == "rate_limited"

    asyncio.run(main())
    assert not caplog.records


def test_a_silent_answer_ends_alone(server: Server, model: Callable[..., Engine]) -> None:
    """httpx's own read timeout ends all that share the connection."""

    async def main() -> None:
        engine = model()
        assert await texts(engine, "Hi") == [TEXT]  # so that the others need not connect
        stopped = generate(engine, "stop", timeout=2.0)
        answers = await asyncio.gather(stopped, generate(engine, "Hi"), generate(engine, "Hi"))
        assert [answer.output_text for answer in answers] == ["0 1 ", TEXT, TEXT]
        assert await texts(engine, "Hi") == [TEXT]

    asyncio.run(main())
    assert len(server.connections) == 1


@pytest.mark.parametrize(("asked", "come"), [("stop", 3), ("wait", 0)], ids=["in the text", "before the headers"])
def test_a_dispose_says_that_the_server_goes_on(
    server: Server, model: Callable[..., Engine], caplog: pytest.LogCaptureFixture, asked: str, come: int
) -> None:
    async def main() -> None:
        engine, events = model(), list[Event]()
        assert await texts(engine, "Hi") == [TEXT]
        subscription = stream_generate(engine, asked).subscribe(events.append)
        await until(lambda: server.asked[-1] == asked and len(events) == come)
        subscription.dispose()
        assert await texts(engine, "Hi") == [TEXT]
        assert len(events) == come

    with caplog.at_level(logging.WARNING, "rxllm"):
        asyncio.run(main())
    (told,) = caplog.records
    assert "ended early, but httpx cannot cancel a call over HTTP/2" in told.message
    assert "without http2=True" in told.message


@pytest.mark.judges
def test_a_dispose_leaves_the_others_whole(model: Callable[..., Engine]) -> None:
    """In every turn of the loop while it is sent: half of a frame would break the connection."""

    async def main(turns: int) -> None:
        engine = model()
        assert await texts(engine, "Hi") == [TEXT]
        others = asyncio.ensure_future(texts(engine, "Hi", "Hi"))
        subscription = stream_generate(engine, "stop").subscribe(lambda event: None)
        for _ in range(turns):
            await asyncio.sleep(0)
        subscription.dispose()
        assert await others == [TEXT] * 2
        assert await texts(engine, "Hi") == [TEXT]

    for turns in range(24):
        asyncio.run(main(turns))
