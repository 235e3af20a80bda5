"""The same over HTTPS, as every real provider is asked, and through a proxy."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from rxllm import AdapterError, Engine, Event, OpenAIChat, generate, stream_generate
from rxllm import operators as ops
from rxllm.http import clients
from rxllm.testing.loopback import DONE, Loopback, Reply, chat_chunk, chat_finish
from tests.closing import SILENT, STALLED, also_next, assert_closed, next_call
from tests.runtime.support import ON_BOTH, model
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.sockets

ANSWER = Reply([chat_chunk("Hel"), chat_chunk("lo"), chat_finish(), DONE])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def secured(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    return secured(authority)


@pytest.fixture
def trusted(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The adapters' own clients trust the authority."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ca.pem")
        authority.cert_pem.write_to_path(str(path))
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        clients._certificates.cache_clear()
        yield
    clients._certificates.cache_clear()


@pytest.mark.usefixtures("trusted")
class TestHTTPS:
    def test_answers_come_and_the_connection_is_used_again(self, tls: ssl.SSLContext) -> None:
        async def main(server: Loopback) -> list[str]:
            engine = model(server)
            return [(await generate(engine, "Hi")).output_text for _ in range(3)]

        with Loopback(ANSWER, tls=tls) as server:
            assert server.url.startswith("https://")
            assert asyncio.run(main(server)) == ["Hello"] * 3
            assert len(server.connections) == 1

    @pytest.mark.parametrize("reply", [STALLED, SILENT], ids=["mid-stream", "before the headers"])
    def test_dispose_closes_the_socket(self, tls: ssl.SSLContext, reply: Reply) -> None:
        async def main(server: Loopback) -> None:
            events: list[Event] = []
            subscription = stream_generate(model(server), "Hi").subscribe(events.append)
            await until(lambda: server.requests and (reply is SILENT or len(events) == 4))
            subscription.dispose()
            await next_call(server)
            assert_closed(server.connections[0])

        with Loopback(also_next(reply), tls=tls) as server:
            asyncio.run(main(server))

    def test_taking_enough_closes_too(self, tls: ssl.SSLContext) -> None:
        with Loopback(also_next(STALLED), tls=tls) as server:
            assert stream_generate(model(server), "Hi").pipe(ops.text()).take(2).to_list().run() == ["a", "b"]
            next_call(server).run()
            assert_closed(server.connections[0])

    def test_a_dispose_during_the_handshake_leaves_nothing(self, authority: trustme.CA) -> None:
        hello, disposed = threading.Event(), threading.Event()

        def wait(*_: Any) -> None:
            hello.set()
            disposed.wait(PATIENCE)

        async def main(server: Loopback) -> None:
            subscription = stream_generate(model(server), "Hi").subscribe()
            await until(hello.is_set)
            subscription.dispose()
            disposed.set()
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert not server.requests

        context = secured(authority)
        context.sni_callback = wait  # in the handshake
        with Loopback(ANSWER, tls=context) as server:
            asyncio.run(main(server))


@ON_BOTH
def test_an_unknown_authority_is_a_network_error_that_names_the_address(tls: ssl.SSLContext) -> None:
    with Loopback(ANSWER, tls=tls) as server, pytest.raises(AdapterError, match="CERTIFICATE_VERIFY_FAILED") as raised:
        generate(model(server), "Hi").run()
    assert raised.value.reason == "network_error"
    assert server.url in str(raised.value)
    assert "SSL_CERT_FILE" in str(raised.value)


@ON_BOTH
def test_the_environments_proxy_is_asked_and_dispose_closes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: Loopback) -> None:
        engine = Engine(OpenAIChat(base_url="http://model.example"), model="m", retry=False)
        events: list[Event] = []
        subscription = stream_generate(engine, "Hi").subscribe(events.append)
        await until(lambda: len(events) == 4)
        subscription.dispose()
        await next_call(server)
        assert_closed(server.connections[0])

    with Loopback(also_next(STALLED)) as server:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        asyncio.run(main(server))
        assert server.requests[0].path == "http://model.example/chat/completions"
