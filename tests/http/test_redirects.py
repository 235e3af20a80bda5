"""Redirects of a given client: followed, with the keys for their own host only."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import httpx2
import pytest

import rxllm
from rxllm import Engine, OpenAIChat
from rxllm.testing.loopback import Loopback, Reply, chat
from tests.runtime.support import model
from tests.waiting import until

pytestmark = pytest.mark.sockets

KEY = "sk-sentinel-0123456789"


GIVEN = {"x-api-key": KEY, "api-key": KEY, "x-goog-api-key": KEY, "x-team": KEY}


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("status", [302, 307])
def test_no_key_follows_a_redirect_to_another_host(library: Any, status: int) -> None:
    """Nor from the query, where the server repeats it; nor what the client's own ``auth`` or headers add."""

    async def main() -> None:
        async with library.AsyncClient(
            follow_redirects=True, headers={"x-mine": KEY}, auth=("me", KEY), cookies={"session": KEY}
        ) as client:
            base_url = f"{here.url}?api-version=1&key={KEY}"
            adapter = OpenAIChat(base_url=base_url, client=client, api_key=KEY, headers=GIVEN)
            engine = Engine(adapter, model="m", retry=False)
            assert (await rxllm.generate(engine, "Hi")).output_text == "Hello"

    with Loopback(Reply(chat("Hello"))) as there:
        target = f"http://localhost:{there.port}/chat/completions?api-version=1&key={KEY}"
        with Loopback(Reply(b"moved", status, {"Location": target})) as here:
            asyncio.run(main())
    assert KEY in here.requests[0].path
    (request,) = there.requests
    assert KEY not in f"{request.path} {request.headers}"
    assert "authorization" not in request.headers
    assert request.method == ("POST" if status == 307 else "GET")


def test_a_redirect_on_the_same_host_keeps_the_keys_and_the_connection() -> None:
    async def main() -> None:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            engine = model(server, client=client, api_key=KEY)
            assert (await rxllm.generate(engine, "Hi")).output_text == "Hello"
        await until(lambda: server.open_count == 0)

    moved = Reply(b"moved", 307, {"Location": "/elsewhere"})
    with Loopback([moved, Reply(chat("Hello"))]) as server:
        asyncio.run(main())
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {KEY}"] * 2
    assert len(server.connections) == 1


def test_redirects_without_end_are_an_error() -> None:
    async def main() -> None:
        async with httpx.AsyncClient(follow_redirects=True, max_redirects=3) as client:
            with pytest.raises(rxllm.AdapterError, match="redirected more than 3 times") as caught:
                await rxllm.generate(model(server, client=client), "Hi")
            assert caught.value.reason == "invalid_request"

    with Loopback(Reply(b"", 307, {"Location": "/again"})) as server:
        asyncio.run(main())
    assert len(server.requests) == 4
