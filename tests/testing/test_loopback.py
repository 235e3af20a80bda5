from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

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
from tests.runtime.support import assert_prompt


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=5) as client:
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


@pytest.mark.parametrize(
    "make", [lambda: [chat_chunk("a"), STALL], lambda: endless(every=0.001), endless], ids=["stall", "slow", "fast"]
)
def test_a_close_in_mid_stream_is_seen_at_once(client: httpx.Client, make: Callable[[], Any]) -> None:
    times: list[float] = []
    for _ in range(5):
        with Loopback(Reply(make())) as server:
            with client.stream("POST", server.url, json={}) as response:
                next(response.iter_raw())
                before = time.monotonic()
            (connection,) = server.connections
            times.append(connection.wait_closed() - before)
            assert (connection.closed_by, server.open_count) == ("client", 0)
    assert_prompt(times)


def test_a_close_is_seen_while_the_client_does_not_read(client: httpx.Client) -> None:
    times: list[float] = []
    for _ in range(3):
        with Loopback(Reply(endless(lambda i: b"x" * 65536))) as server:
            with client.stream("GET", server.url) as response:
                next(response.iter_raw())
                (connection,) = server.connections
                sent = blocked_at(connection)
                before = time.monotonic()
            times.append(connection.wait_closed() - before)
            assert 65536 < sent < 64 * 2**20
    assert_prompt(times)


def blocked_at(connection: object) -> int:
    """What was sent once two looks in a row find no more."""
    for _ in itertools.count():
        sent = connection.bytes_sent
        time.sleep(0.05)
        if connection.bytes_sent == sent:
            return sent
    raise AssertionError


@pytest.mark.parametrize("cut", Cut)
def test_a_cut_is_an_error_of_the_client_s(client: httpx.Client, cut: Cut) -> None:
    expected = httpx.RemoteProtocolError if cut is Cut.FIN else httpx.ReadError
    with Loopback(Reply([chat_chunk("a"), Pause(0.01), cut])) as server:
        with client.stream("GET", server.url) as response, pytest.raises(expected):
            list(response.iter_raw())
        server.connections[0].wait_closed()
        assert server.connections[0].closed_by == "server"


def test_a_stall_before_the_head(client: httpx.Client) -> None:
    with Loopback(Reply(before=STALL)) as server:
        with pytest.raises(httpx.ReadTimeout):
            client.get(server.url, timeout=0.05)
        assert len(server.wait_requests(1)) == 1
        server.connections[0].wait_closed()


def test_a_wait_before_the_head(client: httpx.Client) -> None:
    with Loopback(Reply(b"ok", before=0.03)) as server:
        before = time.monotonic()
        assert client.get(server.url).content == b"ok"
    assert time.monotonic() - before >= 0.03


def test_a_wait_before_the_connection_is_taken(client: httpx.Client) -> None:
    with Loopback(Reply(b"ok"), accept_after=0.03) as server:
        before = time.monotonic()
        assert client.get(server.url).content == b"ok"
        assert server.connections[0].accepted_at - before > 0.01


def test_it_ends_with_connections_open(client: httpx.Client) -> None:
    with Loopback(Reply([chat_chunk("a"), STALL])) as server, client.stream("GET", server.url) as response:
        next(response.iter_raw())
    assert server.open_count == 0


def test_waiting_in_vain_raises() -> None:
    with Loopback() as server, pytest.raises(TimeoutError):
        server.wait_requests(1, timeout=0.01)


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


def test_what_is_wrong_in_a_script_is_not_hidden_by_what_comes_of_it(client: httpx.Client) -> None:
    with (
        pytest.raises(TypeError, match="returned 'ok'") as caught,
        Loopback(lambda request: "ok") as server,  # type: ignore[arg-type, return-value]
    ):
        client.get(server.url)
    assert isinstance(caught.value.__context__, httpx.TransportError)


def test_what_interrupts_a_test_is_not_replaced(client: httpx.Client) -> None:
    def interrupt() -> None:
        with Loopback(lambda request: "ok") as server:  # type: ignore[arg-type, return-value]
            with suppress(httpx.TransportError):
                client.get(server.url)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
