from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from rxllm.testing import World, simulate
from rxllm.testing.loopback import (
    DONE,
    STALL,
    Cut,
    Loopback,
    Pause,
    Reply,
    Request,
    chat,
    chat_chunk,
    chat_finish,
    endless,
)
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.sockets


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        yield client


def test_it_sends_chunks_and_notes_the_request(client: httpx.Client) -> None:
    with Loopback(Reply([chat_chunk("Hi"), Pause(0.001), chat_finish(), DONE])) as server:
        response = client.post(server.url + "/chat/completions", json={"n": 1}, headers={"X-Mine": "a:b"})
        (request,) = server.requests
    assert response.content == b"".join([chat_chunk("Hi"), chat_finish(), DONE])
    assert response.headers["content-type"] == "text/event-stream"
    assert (request.method, request.path, request.json, request.headers["x-mine"]) == (
        "POST",
        "/chat/completions",
        {"n": 1},
        "a:b",
    )


def test_a_connection_is_used_again(client: httpx.Client) -> None:
    with Loopback(Reply(chat("a"))) as server:
        for _ in range(3):
            client.post(server.url, json={})
        assert (len(server.requests), len(server.connections), server.open_count) == (3, 1, 1)
        assert len(server.connections[0].requests) == 3


def test_replies_come_one_after_another_and_the_last_again(client: httpx.Client) -> None:
    busy = Reply.of_json({"error": "busy"}, 429, retry_after="1")
    with Loopback([busy, Reply(b"ok")]) as server:
        responses = [client.get(server.url) for _ in range(3)]
    assert [response.status_code for response in responses] == [429, 200, 200]
    assert (responses[0].json(), responses[0].headers["retry-after"]) == ({"error": "busy"}, "1")


def test_a_function_answers_the_request(client: httpx.Client) -> None:
    def echo(request: Request) -> Reply:
        return Reply(request.body)

    with Loopback(echo) as server:
        assert client.post(server.url, content=b"abc").content == b"abc"


def test_an_error_in_a_script_is_raised_at_the_end(client: httpx.Client) -> None:
    def broken(request: Request) -> Reply:
        raise KeyError(request.path)

    with pytest.raises(KeyError, match="/x"), Loopback(broken) as server, pytest.raises(httpx.TransportError):
        client.get(server.url + "/x")


def then_ok(make: Callable[[], Any]) -> Callable[[Request], Reply]:
    """A script that answers with ``make()``, and at ``/next`` with "ok"."""
    return lambda request: Reply(b"ok") if request.path == "/next" else Reply(make())


@pytest.mark.parametrize(
    "make", [lambda: [chat_chunk("a"), STALL], lambda: endless(every=1.0), endless], ids=["stall", "slow", "fast"]
)
def test_a_close_in_mid_stream_is_seen_before_a_next_request(client: httpx.Client, make: Callable[[], Any]) -> None:
    with Loopback(then_ok(make)) as server:
        with client.stream("POST", server.url, json={}) as response:
            next(response.iter_raw())
        client.get(server.url + "/next")
        assert (server.connections[0].closed_by, server.open_count) == ("client", 1)


def test_a_close_is_seen_while_the_client_does_not_read(client: httpx.Client) -> None:
    with Loopback(then_ok(lambda: endless(lambda i: b"x" * 65536))) as server:
        with client.stream("GET", server.url) as response:
            next(response.iter_raw())

            def is_blocked() -> bool:
                sent = server.connections[0].bytes_sent
                client.get(server.url + "/next")  # the server's loop turns meanwhile
                return server.connections[0].bytes_sent == sent

            wait_until(is_blocked)
            assert 65536 < server.connections[0].bytes_sent < 64 * 2**20
        client.get(server.url + "/next")
        assert server.connections[0].closed_by == "client"


@pytest.mark.parametrize("cut", Cut)
def test_a_cut_is_an_error_of_the_client_s(client: httpx.Client, cut: Cut) -> None:
    expected = httpx.RemoteProtocolError if cut is Cut.FIN else httpx.ReadError
    begun = threading.Event()

    def body() -> Iterator[bytes | Pause | Cut]:
        yield chat_chunk("a")
        while not begun.is_set():
            yield Pause(0.001)
        yield cut

    with Loopback(Reply(body())) as server:
        with client.stream("GET", server.url) as response:
            begun.set()
            with pytest.raises(expected):
                list(response.iter_raw())
        server.connections[0].wait_closed()
        assert server.connections[0].closed_by == "server"


def test_a_stall_before_the_head(client: httpx.Client) -> None:
    with Loopback(Reply(before=STALL)) as server:
        with pytest.raises(httpx.ReadTimeout):
            client.get(server.url, timeout=1.0)
        assert len(server.wait_requests(1)) == 1
        server.connections[0].wait_closed()


def test_a_wait_before_the_head() -> None:
    async def app(world: World) -> float:
        async with httpx.AsyncClient(timeout=None, verify=False) as client:
            assert (await client.get(world.serve(Reply(b"ok", before=60.0)).url)).content == b"ok"
        return asyncio.get_running_loop().time()

    assert simulate(app, faults=()).value == pytest.approx(60.0, abs=0.1)


def test_a_wait_before_the_connection_is_taken(client: httpx.Client) -> None:
    with Loopback(Reply(b"ok"), accept_after=3600.0) as server:
        with pytest.raises(httpx.ReadTimeout):
            client.get(server.url, timeout=1.0)
        assert server.connections == []
    with Loopback(Reply(b"ok"), accept_after=1.0) as server:
        assert client.get(server.url).content == b"ok"


def test_it_ends_with_connections_open(client: httpx.Client) -> None:
    with Loopback(Reply([chat_chunk("a"), STALL])) as server, client.stream("GET", server.url) as response:
        next(response.iter_raw())
    assert server.open_count == 0


def test_waiting_in_vain_raises() -> None:
    with Loopback() as server, pytest.raises(TimeoutError):
        server.wait_requests(1, timeout=1.0)


@pytest.mark.parametrize("body", ["hello", ["text"], [chat_chunk("a"), "text"], bytearray(b"a"), 5, None])
def test_a_body_that_is_no_bytes_is_refused(body: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        Reply(body)


def test_text_in_a_body_is_an_error_when_it_is_met(client: httpx.Client) -> None:
    with (
        pytest.raises(TypeError, match="not 'text'"),
        Loopback(Reply(item for item in [b"a", "text"])) as server,
        pytest.raises(httpx.TransportError),
    ):
        client.get(server.url)


@pytest.mark.parametrize("script", ["hello", b"hello", 5, None, ["hello"], [Reply(), None], iter([Reply()])])
def test_a_script_that_is_none_is_refused(script: Any) -> None:
    with pytest.raises(TypeError, match="a script must be a Reply, a list of Replies, or a function"):
        Loopback(script)


def test_a_script_without_a_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one Reply"):
        Loopback([])


def test_a_function_that_gives_no_reply_is_an_error(client: httpx.Client) -> None:
    with (
        pytest.raises(TypeError, match="returned 'ok' instead of a Reply"),
        Loopback(lambda request: "ok") as server,
        pytest.raises(httpx.TransportError),
    ):
        client.get(server.url)


def test_a_fault_in_a_script_is_not_hidden_by_its_consequences(client: httpx.Client) -> None:
    with (
        pytest.raises(TypeError, match="returned 'ok'") as caught,
        Loopback(lambda request: "ok") as server,  # type: ignore[arg-type, return-value]
    ):
        client.get(server.url)
    assert isinstance(caught.value.__context__, httpx.TransportError)


def test_an_interrupt_of_a_test_is_not_replaced(client: httpx.Client) -> None:
    def interrupt() -> None:
        with Loopback(lambda request: "ok") as server:  # type: ignore[arg-type, return-value]
            with suppress(httpx.TransportError):
                client.get(server.url)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
