"""How an image call runs: answers read whole, failures by name, closes at once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import httpx2
import pytest

from rxllm.engine import Engine, aclose
from rxllm.images import OpenAIImages
from rxllm.pipelines import edit_image, generate_image
from rxllm.runtime import RetryPolicy, Stream
from rxllm.testing import PNG
from rxllm.testing.loopback import STALL, Cut, Loopback, Pause, Reply
from rxllm.values import Image, ImageAdapterError, ImageResponse
from tests.closing import SILENT, assert_closes
from tests.images.answers import openai_images, parts_of
from tests.waiting import until

pytestmark = pytest.mark.sockets

KEY = "sk-sentinel-0123456789"
MADE = Reply.of_json(openai_images())


def images(server: Loopback, **options: Any) -> Stream[ImageResponse]:
    """A call to `server`, made once."""
    return generate_image(OpenAIImages(base_url=server.url, **options), "a kestrel", model="m", retry=False)


def failure(reply: Reply, **options: Any) -> ImageAdapterError:
    with Loopback(reply) as server, pytest.raises(ImageAdapterError) as caught:
        images(server, **options).run()
    return caught.value


# Answers


def test_an_answer_in_pieces_is_one_response() -> None:
    text = json.dumps(openai_images(2)).encode()
    with Loopback(Reply([text[:9], Pause(0.02), text[9:50], text[50:]])) as server:
        assert len(images(server).run().images) == 2


@pytest.mark.parametrize("make", [httpx.AsyncClient, httpx2.AsyncClient])
def test_a_client_of_ones_own(make: Callable[[], Any]) -> None:
    """Forms too."""

    async def main() -> None:
        async with make() as client:
            adapter = OpenAIImages(base_url=server.url, client=client)
            assert len((await generate_image(adapter, "a kestrel", model="m")).images) == 1
            assert len((await edit_image(adapter, [PNG, PNG], "more", model="m")).images) == 1

    with Loopback(MADE) as server:
        asyncio.run(main())
        assert [part.name for part in parts_of(server.requests[1]) if part.filename] == ["image[]", "image[]"]


def test_the_connection_is_used_again_and_closed_with_the_engines() -> None:
    async def main() -> None:
        engine = Engine(image_adapter=OpenAIImages(base_url=server.url), model="m")
        for _ in range(3):
            await generate_image(engine, "a kestrel")
        assert (len(server.connections), server.open_count) == (1, 1)
        await aclose(engine)
        await until(lambda: server.open_count == 0)

    with Loopback(MADE) as server:
        asyncio.run(main())


def test_the_terminal_comes_after_the_close() -> None:
    """An answer that is refused half read leaves no connection behind."""

    async def main() -> bool:
        seen: list[bool] = []

        def settled(error: Exception) -> None:
            server.wait_until(lambda: server.open_count == 0)
            seen.append(True)

        images(server).subscribe(on_error=settled)
        await until(lambda: bool(seen))
        return seen[0]

    with Loopback(Reply([b"x" * 60_000] * 40, status=500)) as server:
        assert asyncio.run(main())


# Failures


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(before=STALL), "timeout"),
        (Reply([b'{"data": ', STALL]), "timeout"),
        (Reply([b'{"data": ', Cut.RESET]), "network_error"),
        (Reply([b'{"data": ', Cut.FIN]), "network_error"),
        (Reply.of_json({}, 302, location="/elsewhere"), "invalid_request"),
        (Reply(b"<html>busy</html>", status=503), "provider_unavailable"),
    ],
    ids=["silence", "stall", "reset", "fin", "redirect", "html"],
)
def test_a_call_that_breaks_is_an_error_of_images(reply: Reply, reason: str) -> None:
    error = failure(reply, timeout=1.0, api_key=KEY)
    assert (type(error), error.reason, error.provider) == (ImageAdapterError, reason, "openai")
    shown: Any = error
    while shown is not None:
        assert KEY not in f"{shown!r} {shown} {vars(shown)!r}"
        shown = shown.__cause__


def test_a_page_is_no_answer() -> None:
    error = failure(Reply(b"<html>log in</html>", headers={"Content-Type": "text/html"}), api_key=KEY)
    assert (type(error), error.reason) == (ImageAdapterError, "malformed_response")
    assert "returned a web page (text/html)" in error.message


def test_a_refused_connection() -> None:
    adapter = OpenAIImages(base_url=f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(ImageAdapterError) as caught:
        generate_image(adapter, "a kestrel", model="m", retry=False).run()
    assert caught.value.reason == "network_error"
    assert type(caught.value.__context__).__name__ == "ConnectError"


def test_an_answer_that_is_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.adapters.images.ANSWER_BYTES", 9)
    assert failure(MADE).reason == "malformed_response"


def test_a_failure_is_tried_again() -> None:
    busy = Reply.of_json({"error": {"message": "busy"}}, 503, retry_after="0")
    with Loopback([busy, Reply([Cut.RESET]), MADE]) as server:
        engine = Engine(image_adapter=OpenAIImages(base_url=server.url), retry=RetryPolicy(base_delay=0, jitter=0))
        assert len(generate_image(engine, "a kestrel", model="m").run().images) == 1
        assert len(server.requests) == 3


# Closes


Make = Callable[[Loopback], Stream[ImageResponse]]


def disposing(make: Make = images) -> Callable[[Loopback], Coroutine[Any, Any, None]]:
    async def leave(server: Loopback) -> None:
        subscription = make(server).subscribe()
        await until(lambda: server.requests)
        subscription.dispose()

    return leave


def test_a_dispose_before_the_answer_closes() -> None:
    assert_closes(disposing(), SILENT)


def test_a_dispose_within_the_answer_closes() -> None:
    assert_closes(disposing(), Reply([b'{"data": ', STALL]))


def test_a_dispose_while_an_input_is_fetched_closes() -> None:
    def call(server: Loopback) -> Stream[ImageResponse]:
        adapter = OpenAIImages(base_url="http://127.0.0.1:1")
        return edit_image(adapter, Image.from_url(server.url + "/a.png"), "more", model="m")

    assert_closes(disposing(call), SILENT)


def test_a_call_that_is_cancelled_closes() -> None:
    async def leave(server: Loopback) -> None:
        task = asyncio.create_task(_awaited(images(server)))
        await until(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert_closes(leave, SILENT)


async def _awaited(call: Stream[Any]) -> Any:
    return await call


def test_calls_disposed_while_they_connect_cost_the_pool_nothing() -> None:
    """A pool of two is still usable after forty of them."""

    async def main() -> None:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=2)) as client:
            adapter = OpenAIImages(base_url=server.url, client=client)
            for _ in range(40):
                subscription = generate_image(adapter, "a kestrel", model="m").subscribe()
                await asyncio.sleep(0)
                subscription.dispose()
            assert len((await generate_image(adapter, "a kestrel", model="m")).images) == 1

    with Loopback(MADE) as server:
        asyncio.run(main())
