"""The one-shot HTTP source: whole responses, and the errors and closes of their requests."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from rxllm import AdapterError, Stream
from rxllm.runtime import Answer, Asker, fetched
from rxllm.testing.loopback import STALL, Cut, Loopback, Reply
from tests.runtime.support import until, until_closed


def ask(server: Loopback, **options: Any) -> Stream[Answer]:
    """The response to a GET, with a client that has an ``auth`` of its own."""

    async def work(asker: Asker) -> Answer:
        async with httpx.AsyncClient(auth=("me", "secret")) as client:
            return await asker.ask(client, client.build_request("GET", f"{server.url}?key=abc"), **options)

    return fetched(work)


@pytest.mark.parametrize("status", [200, 201, 404, 503])
def test_a_response_comes_whole_whatever_its_status(status: int) -> None:
    with Loopback(Reply([b"Hel", b"lo"], status, {"X-Mine": "1"})) as server:
        stream = ask(server)
        assert server.requests == []
        answers = list(stream)
        assert [(answer.status, answer.headers["x-mine"], answer.body) for answer in answers] == [
            (status, "1", b"Hello")
        ]
        stream.run()
        assert len(server.requests) == 2


def test_the_response_is_closed_before_the_item_comes() -> None:
    """And with it its own client, which the work has closed."""

    async def main() -> None:
        await ask(server)
        await until(lambda: server.open_count == 0)

    with Loopback(Reply(b"Hello")) as server:
        asyncio.run(main())


@pytest.mark.parametrize("anonymous", [False, True])
def test_an_anonymous_request_leaves_out_the_clients_auth(anonymous: bool) -> None:
    with Loopback(Reply(b"Hello")) as server:
        ask(server, anonymous=anonymous).run()
    assert ("authorization" in server.requests[0].headers) is not anonymous


@pytest.mark.parametrize(
    ("reply", "options", "reason", "text"),
    [
        (Reply(b"Hello"), {"limit": 4}, "malformed_response", "sent more than 4 bytes"),
        (Reply([b"Hel", STALL]), {"seconds": 0.1}, "timeout", "took longer than 0.1 s"),
        (Reply([Cut.RESET]), {}, "network_error", "could not be reached"),
    ],
    ids=["too long", "too slow", "cut"],
)
def test_a_response_that_does_not_come_whole_is_a_typed_error_without_the_query(
    reply: Reply, options: dict[str, Any], reason: str, text: str
) -> None:
    with Loopback(reply) as server:
        with pytest.raises(AdapterError) as caught:
            ask(server, provider="mine", **options).run()
        assert (caught.value.reason, caught.value.provider) == (reason, "mine")
        assert text in caught.value.message
        assert "abc" not in caught.value.message
        server.connections[0].wait_closed()


def test_a_dispose_ends_the_request_that_is_under_way() -> None:
    async def main() -> None:
        items: list[Any] = []
        subscription = ask(server).subscribe(items.append, items.append)
        await until(lambda: len(server.requests) == 1)
        subscription.dispose()
        await until_closed(server.connections[0])
        assert items == []

    with Loopback(Reply([b"Hel", STALL])) as server:
        asyncio.run(main())
