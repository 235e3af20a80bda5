"""`web.chat` behind a real server: browsers that leave, return and stop, sixty at once, in all frameworks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from rxllm import Fake, web
from rxllm.session import MemorySessions
from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk
from rxllm.web._chat_turns import MemoryTurns
from tests.closing import STALLED, assert_closed
from tests.runtime.support import model
from tests.waiting import PATIENCE, pauses, until
from tests.web.chats import Page, Slow, body, made, says, text_of
from tests.web.chats import thread as stored
from tests.web.serving import serving

pytestmark = pytest.mark.sockets


@contextlib.asynccontextmanager
async def opened(app: Any) -> AsyncIterator[Page]:
    async with serving(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
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


async def until_stored(store: Any, expected: list[str]) -> None:
    await until(lambda: stored(store), expected.__eq__)


def test_a_browser_that_leaves_ends_the_model_call_and_the_partial_turn_is_saved() -> None:
    async def main(server: Loopback) -> None:
        store = MemorySessions()
        async with opened(web.chat(model(server), store)) as page:
            await leave(page, "Hi", "c")
            assert text_of(await Page(page.client, "next").say("Hi")) == "Hello"
            assert_closed(server.connections[0])
            await until_stored(store, ["Hi", "abc"])
            assert (await page.back()).status_code == 204

    with Loopback([STALLED, Reply(chat("Hello"))]) as server:
        asyncio.run(main(server))


def looks_for_open_turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the sessions whose open turn was looked for, as a message does that finds one."""
    looked, open_run = list[str](), MemoryTurns.open_run

    async def look(self: MemoryTurns, id: str) -> str | None:
        looked.append(id)
        return await open_run(self, id)

    monkeypatch.setattr(MemoryTurns, "open_run", look)
    return looked


def test_a_message_right_after_leaving_waits_until_the_turn_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(web._chat.PATIENCE, "refuse", 3600.0)
    looked = looks_for_open_turns(monkeypatch)

    class Store(MemorySessions):
        async def save(self, session: Any, version: int = 0) -> Any:
            before = len(looked)
            if version == 1:  # the end of the first turn, while which the next message looks for it
                await until(lambda: len(looked) > before)
            return await super().save(session, version)

    async def main() -> None:
        store = Store()
        app, _ = made(["Once ", ("delay", 3600), "upon"], "Yes?", store=store)
        async with opened(app) as page:
            await leave(page, "A story!", "Once ")
            assert text_of(await page.say("Stop.")) == "Yes?"
        assert await stored(store) == ["A story!", "Once ", "Stop.", "Yes?"]

    asyncio.run(main())


def test_in_the_background_the_turn_ends_and_its_browser_returns() -> None:
    async def main() -> None:
        slow, store = Slow(), MemorySessions()
        async with opened(web.chat(slow.model, store, background=True)) as page:
            await leave(page, "A story!", "Once ")
            texts = ["", "", ""]
            back = [asyncio.create_task(watch(page, texts, i)) for i in range(3)]
            await until(lambda: texts == ["Once "] * 3)
            slow.go.set()
            await asyncio.gather(*back)
            assert texts == ["Once upon."] * 3
            await until_stored(store, ["A story!", "Once upon."])
            assert (await page.back()).status_code == 204

    asyncio.run(main())


def test_in_the_background_a_turn_without_browsers_ends_and_can_be_stopped() -> None:
    async def main() -> None:
        slow, store = Slow(), MemorySessions()
        async with opened(web.chat(slow.model, store, background=True)) as page:
            await leave(page, "A story!", "Once ")
            slow.go.set()
            await until_stored(store, ["A story!", "Once upon."])
            slow.go.clear()
            await leave(page, "More!", "Once ")
            assert (await page.stop()).status_code == 204
            assert await stored(store) == ["A story!", "Once upon.", "More!", "Once "]

    asyncio.run(main())


def test_a_browser_that_leaves_while_it_waits_begins_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = looks_for_open_turns(monkeypatch)

    async def main() -> None:
        slow, store, running = Slow(), MemorySessions(), list[Any]()
        app = web.chat(slow.model, store, busy="wait")

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            running.append(scope)
            try:
                await app(scope, receive, send)
            finally:
                running.remove(scope)

        async with opened(watched) as page:
            first = asyncio.create_task(page.say("A story!"))
            await until(lambda: slow.asked == 1)
            before = len(looked)
            second = asyncio.create_task(page.say("Another!"))
            await until(lambda: len(looked) > before)  # it has found the first turn, and waits for its end
            second.cancel()
            await until(lambda: len(running) == 1)
            slow.go.set()
            assert text_of(await first) == "Once upon."
            assert text_of(await page.say("A third!")) == "Once upon."
        assert slow.questions == ["A story!", "A third!"]

    asyncio.run(main())


def test_two_tabs() -> None:
    async def main() -> None:
        app, store = made(["Once ", ("delay", 3600), "upon"], "Yes?")
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

    asyncio.run(main())


@pytest.mark.judges
def test_sixty_browsers_at_once() -> None:
    def answer(request: Any) -> Reply:
        return Reply(said(request.json["messages"][-1]["content"]))

    def said(text: str) -> Iterator[bytes | Pause]:
        yield chat_chunk(f"To {text}: ")
        yield from pauses(lambda: len(server.requests) % 60 == 0)  # until those of all browsers are here
        yield from chat("hello.")

    async def main(server: Loopback) -> None:
        app = web.chat(model(server), store := MemorySessions())
        async with serving(app, backlog=512, timeout_keep_alive=3600) as port:
            options: Any = {"timeout": PATIENCE, "limits": httpx.Limits(max_connections=60)}
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", **options) as client:
                pages = [Page(client, f"c{i}") for i in range(60)]
                for turn in (1, 2):
                    answers = await asyncio.gather(*(page.say(f"{page.id}-{turn}") for page in pages))
                    assert [text_of(answer) for answer in answers] == [f"To c{i}-{turn}: hello." for i in range(60)]
            for page in pages:
                texts = [text for turn in (1, 2) for text in (f"{page.id}-{turn}", f"To {page.id}-{turn}: hello.")]
                assert await stored(store, page.id) == texts
        await until(lambda: len(asyncio.all_tasks()) == 1)

    with Loopback(answer) as server:
        asyncio.run(main(server))
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

    return Litestar([handler], logging_config=None)  # its own would set the root logger


def litestar_below(app: Any) -> Any:
    @asgi("/", is_mount=True, copy_scope=True)
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return Litestar([handler], logging_config=None)  # its own would set the root logger


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
        app, store = made(["Once ", ("delay", 3600)], "Yes?")
        async with opened(wrap(app)) as page:
            page.path = path
            await leave(page, "A story!", "Once ")
            await until_stored(store, ["A story!", "Once "])
            assert text_of(await page.say("Hi")) == "Yes?"
            page.path = path.rstrip("/")
            assert ((await page.back()).status_code, (await page.stop()).status_code) == (204, 204)
            assert (await page.client.put(path)).status_code == 405

    asyncio.run(main())


def test_an_endpoint_at_another_path() -> None:
    async def main() -> None:
        app = web.chat(Fake("Hello"), MemorySessions(), path="/talk")
        async with opened(Starlette(routes=[Mount("/talk", app)])) as page:
            page.path = "/talk/"
            assert text_of(await page.say("Hi")) == "Hello"

    asyncio.run(main())
