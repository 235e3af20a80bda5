"""Input images that are URLs: what is fetched, what is not, and within which bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest

from rxllm.images import OpenAIImages
from rxllm.pipelines import edit_image
from rxllm.testing import PNG
from rxllm.testing.loopback import STALL, Cut, Loopback, Pause, Reply, Request
from rxllm.values import Image, ImageAdapterError
from tests.images.answers import image_reply, openai_images, parts_of

pytestmark = pytest.mark.sockets

KEY = "sk-sentinel-0123456789"
MADE = Reply.of_json(openai_images())


def edited(pictures: Callable[[Request], Reply] | Reply, path: str = "/a.png") -> list[Any]:
    """The files that are sent for one image whose URL leads to `pictures`."""
    with Loopback(pictures) as there, Loopback(MADE) as server:
        adapter = OpenAIImages(base_url=server.url, api_key=KEY, headers={"x-mine": "secret"})
        image = Image.from_url(there.url + path)
        edit_image(adapter, [PNG, image], "more", mask=image, model="m", retry=False).run()
        assert all(request.headers.keys() == {"host", "accept"} for request in there.requests)
        return [part for part in parts_of(server.requests[0]) if part.filename]


@pytest.mark.parametrize("make", [httpx.AsyncClient, httpx2.AsyncClient])
def test_what_a_client_says_by_itself_is_not_for_the_pictures_host(make: Callable[..., Any]) -> None:
    async def main() -> None:
        async with make(auth=("me", KEY), headers={"x-mine": KEY}, cookies={"mine": KEY}) as client:
            adapter = OpenAIImages(base_url=server.url, client=client)
            await edit_image(adapter, Image.from_url(there.url + "/a.png"), "more", model="m")

    with Loopback(image_reply()) as there, Loopback(MADE) as server:
        asyncio.run(main())
        assert there.requests[0].headers.keys() == {"host", "accept"}
        assert server.requests[0].headers["x-mine"] == KEY


def unfetched(pictures: Any, path: str = "/a.png?sig=secret") -> ImageAdapterError:
    with Loopback(pictures) as there, Loopback(MADE) as server:
        image = Image.from_url(path if "://" in path else there.url + path)
        with pytest.raises(ImageAdapterError, match="could not be fetched") as caught:
            edit_image(OpenAIImages(base_url=server.url), image, "more", model="m", retry=False).run()
        assert server.requests == []
    assert caught.value.metadata["url"].endswith(path.partition("?")[0])
    assert "secret" not in str(caught.value)
    return caught.value


def test_they_are_fetched_and_sent_with_the_type_that_came() -> None:
    files = edited(image_reply(b"webp", "image/webp; charset=x"))
    assert [(part.name, part.kind, part.data) for part in files] == [
        ("image[]", "image/png", PNG.to_binary()),
        ("image[]", "image/webp", b"webp"),
        ("mask", "image/webp", b"webp"),
    ]


def test_redirects_are_followed() -> None:
    def reply(request: Request) -> Reply:
        hops = int(request.path.lstrip("/"))
        return Reply(status=302, headers={"Location": str(hops - 1)}) if hops else image_reply()

    assert len(edited(reply, "/5")) == 3
    assert "more than 5 times" in unfetched(reply, "/6").message


def test_a_data_uri_needs_no_fetching() -> None:
    with Loopback(MADE) as server:
        image = Image.from_url(PNG.to_data_uri())
        edit_image(OpenAIImages(base_url=server.url), image, "more", model="m").run()
        (file,) = [part for part in parts_of(server.requests[0]) if part.filename]
    assert (file.kind, file.data) == ("image/png", PNG.to_binary())


@pytest.mark.parametrize(
    ("reply", "reason", "why"),
    [
        (Reply(b"", status=404), "invalid_request", "HTTP 404"),
        (Reply(b"<html>", headers={"Content-Type": "text/html"}), "invalid_request", "text/html"),
        (Reply(b"x", headers={}), "invalid_request", "no type"),
        (Reply([b"x", Cut.RESET]), "network_error", "could not be reached"),
        (Reply(status=302, headers={"Location": "file:///etc/passwd"}), "invalid_request", "only http"),
    ],
)
def test_what_is_no_picture(reply: Reply, reason: str, why: str) -> None:
    error = unfetched(reply)
    assert error.reason == reason
    assert why in error.message


def test_other_schemes_are_not_fetched() -> None:
    assert unfetched(Reply(), "file:///etc/passwd").reason == "invalid_request"
    assert unfetched(Reply(), "ftp://127.0.0.1/a.png").reason == "invalid_request"


def test_an_error_shows_neither_the_user_of_a_url_nor_its_query() -> None:
    image = Image.from_url("ftp://me:secret@example.org/a.png?sig=secret")
    with pytest.raises(ImageAdapterError, match="could not be fetched") as caught:
        edit_image(OpenAIImages(base_url="http://127.0.0.1:1"), image, "more", model="m", retry=False).run()
    assert caught.value.metadata["url"] == "ftp://example.org/a.png"
    assert "secret" not in str(caught.value)


def test_a_picture_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.adapters.images.FETCH_BYTES", 100_000)
    error = unfetched(Reply([b"x" * 60_000] * 9, headers={"Content-Type": "image/png"}))
    assert error.reason == "invalid_request"
    assert "100000 bytes" in error.message


@pytest.mark.parametrize("reply", [Reply([b"x", STALL], headers={"Content-Type": "image/png"}), Reply(before=STALL)])
def test_a_picture_that_does_not_come(monkeypatch: pytest.MonkeyPatch, reply: Reply) -> None:
    monkeypatch.setattr("rxllm.adapters.images.FETCH_SECONDS", 1.0)
    assert unfetched(reply).reason == "timeout"


def test_a_slow_drip_is_no_way_round_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.adapters.images.FETCH_SECONDS", 1.0)
    drip = [piece for _ in range(1200) for piece in (b"x", Pause(0.05))]
    assert unfetched(Reply(drip, headers={"Content-Type": "image/png"})).reason == "timeout"
