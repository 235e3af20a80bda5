"""`web.chat` behind a real server: browsers that leave, return and stop, sixty at once, in all frameworks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount, Route

import rxllm
from rxllm import Fake, web
from rxllm.session import MemorySessions
from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk
from tests.runtime.support import STALLED, model, now, until, until_closed
from tests.web.chats import Page, body, in_time, made, says, text_of
from tests.web.chats import thread as stored
from tests.web.serving import serving
from tests.web.test_response import PROMPT


@contextlib.asynccontextmanager
async def opened(app: Any) -> AsyncIterator[Page]:
    async with serving(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        yield Page(client)


async def leave(page: Page, text: str, seen: str) -> None:
    """Post a message, and leave once the answer contains `seen`."""
    async with page.client.stream("POST", page.path, json=body(page.id, says(text))) as response:
        text = ""
        async for frame in web.from_sse(response.aiter_bytes()):
            text += frame.get("delta", "")
            if seen in text:
                return
    raise AssertionError(text)


async def watch(page: Page, texts: list[str], i: int) -> None:
    """Return to the turn, and add what arrives to ``texts[i]``."""
    async with page.client.stream("GET", f"{page.path}/{page.id}/stream") as response:
        async for frame in web.from_sse(response.aiter_bytes()):
            texts[i] += frame.get("delta", "")


async def until_stored(store: Any, expected: list[str], id: str = "c") -> None:
    async with asyncio.timeout(20):
        while await stored(store, id) != expected:
            await asyncio.sleep(0.005)


def test_a_browser_that_leaves_ends_the_model_call_and_the_partial_turn_is_saved() -> None:
    async def main(server: Loopback) -> list[float]:
        store, times = MemorySessions(), list[float]()
        async with opened(web.chat(model(server), store)) as page:
            for turn in range(5):
                await leave(page, "Hi", "c")
                left = now()
                await until_closed(server.connections[turn])
                times.append((server.connections[turn].closed_at or 0.0) - left)
                await until_stored(store, ["Hi", "abc"] * (turn + 1))
                assert (await page.back()).status_code == 204
        return times

    with Loopback(STALLED) as server:
        times = in_time(main(server))
    assert min(map(abs, times)) < PROMPT  # a loaded machine may hold up any of them, and a fault in the code all


def test_a_message_right_after_leaving_waits_until_the_turn_is_saved() -> None:
    class Store(MemorySessions):
        async def save(self, session: Any, version: int = 0) -> Any:
            await asyncio.sleep(0.05)
            return await super().save(session, version)

    async def main() -> None:
        store = Store()
        app, _ = made(["Once ", ("delay", 30), "upon"], "Yes?", store=store)
        async with opened(app) as page:
            await leave(page, "A story!", "Once ")
            assert text_of(await page.say("Stop.")) == "Yes?"
        assert await stored(store) == ["A story!", "Once ", "Stop.", "Yes?"]

    in_time(main())


def test_in_the_background_the_turn_ends_and_its_browser_returns() -> None:
    async def main() -> None:
        go, store = asyncio.Event(), MemorySessions()

        async def story(request: Any, call: Any) -> Any:
            yield rxllm.TextDelta("Once ")
            await go.wait()
            yield rxllm.TextDelta("upon.")

        async with opened(web.chat(story, store, background=True)) as page:
            await leave(page, "A story!", "Once ")
            texts = ["", "", ""]
            back = [asyncio.create_task(watch(page, texts, i)) for i in range(3)]
            await until(lambda: texts == ["Once "] * 3)
            go.set()
            await asyncio.gather(*back)
            assert texts == ["Once upon."] * 3
            await until_stored(store, ["A story!", "Once upon."])
            assert (await page.back()).status_code == 204

    in_time(main())


def test_in_the_background_a_turn_without_browsers_ends_and_can_be_stopped() -> None:
    async def main() -> None:
        store = MemorySessions()
        app, _ = made(
            ["Once ", "upon ", ("delay", 0.05), "a time."], ["And ", ("delay", 30)], store=store, background=True
        )
        async with opened(app) as page:
            await leave(page, "A story!", "Once ")
            await until_stored(store, ["A story!", "Once upon a time."])
            await leave(page, "More!", "And ")
            assert (await page.stop()).status_code == 204
            assert await stored(store) == ["A story!", "Once upon a time.", "More!", "And "]

    in_time(main())


def test_a_browser_that_leaves_while_it_waits_begins_no_turn() -> None:
    async def main() -> None:
        go, store, questions = asyncio.Event(), MemorySessions(), list[str]()

        async def story(request: Any, call: Any) -> Any:
            questions.append(request.messages[-1].text)
            yield rxllm.TextDelta("Once ")
            await go.wait()
            yield rxllm.TextDelta("upon.")

        async with opened(web.chat(story, store, busy="wait")) as page:
            first = asyncio.create_task(page.say("A story!"))
            await until(lambda: questions == ["A story!"])
            with pytest.raises(httpx.ReadTimeout):
                await page.client.post(page.path, json=body(page.id, says("Another!")), timeout=0.2)
            go.set()
            assert text_of(await first) == "Once upon."
            assert text_of(await page.say("A third!")) == "Once upon."
        assert questions == ["A story!", "A third!"]

    in_time(main())


def test_two_tabs() -> None:
    async def main() -> None:
        app, store = made(["Once ", ("delay", 30), "upon"], "Yes?")
        async with opened(app) as page:
            first = asyncio.create_task(leave(page, "A story!", "upon"))
            await until_stored(store, ["A story!"])
            assert (await page.say("Hi")).status_code == 409
            texts = [""]
            watching = asyncio.create_task(watch(page, texts, 0))
            await until(lambda: texts == ["Once "])
            assert (await page.stop()).status_code == 204
            await watching
            with pytest.raises(AssertionError, match="Once "):
                await first
            assert text_of(await page.say("Hi")) == "Yes?"

    in_time(main())


@pytest.mark.long
def test_sixty_browsers_at_once() -> None:
    def answer(request: Any) -> Reply:
        return Reply([chat_chunk(f"To {request.json['messages'][-1]['content']}: "), Pause(0.05), *chat("hello.")])

    async def main(server: Loopback) -> None:
        app = web.chat(model(server), store := MemorySessions())
        async with serving(app, backlog=512, timeout_keep_alive=60) as port:
            limits = httpx.Limits(max_connections=60)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits) as client:
                pages = [Page(client, f"c{i}") for i in range(60)]
                for turn in (1, 2):
                    answers = await asyncio.gather(*(page.say(f"{page.id}-{turn}") for page in pages))
                    assert [text_of(answer) for answer in answers] == [f"To c{i}-{turn}: hello." for i in range(60)]
            for page in pages:
                texts = [text for turn in (1, 2) for text in (f"{page.id}-{turn}", f"To {page.id}-{turn}: hello.")]
                assert await stored(store, page.id) == texts
        await until(lambda: len(asyncio.all_tasks()) == 1)

    with Loopback(answer) as server:
        in_time(main(server))
    assert len(server.requests) == 120


# Frameworks


def starlette_route(app: Any) -> Any:
    return Starlette(routes=[Route("/api/chat{rest:path}", app)])


def starlette_mount(app: Any) -> Any:
    return Starlette(routes=[Mount("/v1", routes=[Mount("/api/chat", app)])])


def fastapi(app: Any) -> Any:
    api = FastAPI()
    api.add_route("/api/chat{rest:path}", app)
    return api


def fastapi_mount(app: Any) -> Any:
    api = FastAPI()
    api.mount("/api/chat", app)
    return api


def litestar(app: Any) -> Any:
    @asgi("/api/chat", is_mount=True, copy_scope=True)
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return Litestar([handler])


def litestar_below(app: Any) -> Any:
    @asgi("/", is_mount=True, copy_scope=True)
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return Litestar([handler])


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        *((lambda app: app, "/api/chat"), (starlette_route, "/api/chat"), (starlette_mount, "/v1/api/chat/")),
        *((fastapi, "/api/chat"), (fastapi_mount, "/api/chat/"), (litestar, "/api/chat")),
        (litestar_below, "/api/chat"),
    ],
    ids=["alone", "starlette", "starlette mount", "fastapi", "fastapi mount", "litestar", "litestar below"],
)
def test_frameworks(wrap: Any, path: str) -> None:
    async def main() -> None:
        app, store = made(["Once ", ("delay", 30)], "Yes?")
        async with opened(wrap(app)) as page:
            page.path = path
            await leave(page, "A story!", "Once ")
            await until_stored(store, ["A story!", "Once "])
            assert text_of(await page.say("Hi")) == "Yes?"
            page.path = path.rstrip("/")
            assert ((await page.back()).status_code, (await page.stop()).status_code) == (204, 204)
            assert (await page.client.put(path)).status_code == 405

    in_time(main())


def test_an_endpoint_at_another_path() -> None:
    async def main() -> None:
        app = web.chat(Fake("Hello"), MemorySessions(), path="/talk")
        async with opened(Starlette(routes=[Mount("/talk", app)])) as page:
            page.path = "/talk/"
            assert text_of(await page.say("Hi")) == "Hello"

    in_time(main())
