"""Attacks on `web.chat` that once succeeded: races for a place, proxies, stores that hang, and strange paths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxllm import Engine, Fake, RunError, Session, web
from rxllm.session import MemorySessions
from tests.web.chats import Page, browser, made, says, simulated, text_of, visit


class Hanging(MemorySessions):
    """A store whose method `hangs` never ends."""

    hangs: str | None = None

    async def load(self, id: str) -> Any:
        await self.pause("load")
        return await super().load(id)

    async def save(self, session: Session, version: int = 0) -> Any:
        await self.pause("save")
        return await super().save(session, version)

    async def pause(self, method: str) -> None:
        if self.hangs == method:
            await asyncio.Event().wait()


@pytest.mark.parametrize("method", ["load", "save"])
def test_a_store_that_hangs_is_unavailable_and_locks_nothing(method: str) -> None:
    store = Hanging()

    async def act(page: Page) -> list[int]:
        store.hangs = method
        statuses = [(await page.say("Hi")).status_code]
        store.hangs = None
        return [*statuses, (await page.say("Hi")).status_code, (await page.stop()).status_code]

    assert simulated(web.chat(Fake("a", "b"), store), act) == [503, 200, 204]


def test_a_store_that_hangs_at_the_end_of_a_turn_locks_nothing() -> None:
    store = Hanging()

    def answer(request: Any) -> list[str]:
        store.hangs = "save" if request.messages[-1].text == "Hang" else None
        return ["Hi"]

    async def act(page: Page) -> list[int]:
        statuses = [(await page.say("Hang")).status_code]
        store.hangs = None
        return [*statuses, (await page.say("Again")).status_code]

    assert simulated(web.chat(Fake(answer), store), act) == [200, 200]


def test_posts_at_the_same_moment_do_not_pass_the_limit_on_running_turns() -> None:
    go = asyncio.Event()

    async def wait(request: Any, call: Any) -> Any:
        await go.wait()
        for event in ():
            yield event

    async def main() -> list[int]:
        async with browser(web.chat(Engine(wait), MemorySessions(), max_running=2)) as client:
            posts = [asyncio.create_task(Page(client, str(number)).say("Hi")) for number in range(10)]
            while sum(post.done() for post in posts) < 8:
                await asyncio.sleep(0)
            go.set()
            return sorted(response.status_code for response in await asyncio.gather(*posts))

    assert asyncio.run(main()) == [200] * 2 + [503] * 8


@pytest.mark.judges
def test_a_wait_for_a_turn_does_not_spin() -> None:
    saves: list[int] = []

    class Lost(MemorySessions):
        async def save(self, session: Session, version: int = 0) -> Any:
            saves.append(version)
            raise RunError("conflict")

    answer = simulated(web.chat(Fake("a"), Lost(), busy="wait"), lambda page: page.say("Hi"))
    assert answer.status_code == 409
    assert 1 < len(saves) <= 30 / 0.05 + 1


@pytest.mark.parametrize(
    "name",
    [
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-client-ip",
        "cf-connecting-ip",
        "true-client-ip",
        "x-envoy-external-address",
    ],
)
def test_what_passed_a_proxy_is_not_local(name: str) -> None:
    app, _ = made()
    assert visit(app, lambda page: page.say("Hi"), headers={name: "1"}).status_code == 403


def test_the_old_http_of_a_proxy_is_not_local() -> None:
    app, _ = made()

    async def old(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "http_version": "1.0"}, receive, send)

    assert visit(old, lambda page: page.say("Hi")).status_code == 403


def test_the_path_is_not_looked_for_inside_another() -> None:
    app, _ = made()

    async def act(page: Page) -> list[int]:
        paths = ("/evil/api/chat", "/evil/api/chat/c", "/api/chat-old/api/chat/c")
        return [(await page.client.get(path)).status_code for path in paths]

    assert visit(app, act) == [404] * 3


def test_below_a_mount_the_path_follows_it() -> None:
    app, _ = made()

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/v1"}, receive, send)

    async def act(page: Page) -> str:
        page.path = "/v1/api/chat"
        return text_of(await page.post(says("Hi")))

    assert visit(mounted, act) == "You wrote Hi"


def test_a_conversation_does_not_grow_for_ever() -> None:
    app, store = made(max_session=3_000)

    async def act(page: Page) -> list[int]:
        statuses = [(await page.say("x" * 1_000)).status_code for _ in range(4)]
        return [*statuses, (await Page(page.client, "another").say("Hi")).status_code]

    assert visit(app, act) == [200, 413, 413, 413, 200]
    assert len(asyncio.run(store.load("c")).session.messages) == 2
