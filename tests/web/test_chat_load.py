"""Conversations of any size do not stop the event loop of ``web.chat``, and have bounds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rxllm import Fake, Session, serializer, web
from rxllm.session import MemorySessions, SavedSession
from rxllm.web import _chat
from rxllm.web._chat_turns import open_run
from tests.web.chats import Page, body, visit


class Counting(MemorySessions):
    loads = 0

    async def load(self, id: str) -> SavedSession:
        self.loads += 1
        return await super().load(id)


def parts(id: str, number: int) -> dict[str, Any]:
    return body(id, {"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}] * number})


@pytest.mark.parametrize(("length", "is_in_thread"), [(10, False), (70_000, True)])
def test_a_long_session_is_read_and_written_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, length: int, is_in_thread: bool
) -> None:
    threads: list[int] = []
    for name in ("from_json", "to_json"):
        function = getattr(serializer, name)
        monkeypatch.setattr(
            serializer,
            name,
            lambda *args, function=function, **options: (
                threads.append(threading.get_ident()) or function(*args, **options)
            ),
        )

    async def main() -> None:
        store = MemorySessions()
        saved = await store.save(Session(id="ada").append_user("x" * length))
        assert await store.load("ada") == saved
        assert len(threads) == 2
        assert [thread != threading.get_ident() for thread in threads] == [is_in_thread] * 2

    asyncio.run(main())


def test_no_session_is_read_to_say_that_no_turn_is_open() -> None:
    store = Counting()

    async def act(page: Page) -> None:
        assert (await page.say("Hi")).status_code == 200
        loads = store.loads
        assert ((await page.back()).status_code, (await page.stop()).status_code) == (204, 204)
        assert store.loads == loads

    visit(web.chat(Fake("Hello"), store), act)


def test_a_store_without_open_run_is_asked_for_the_session() -> None:
    store = Counting()
    assert asyncio.run(open_run(store, "ada")) is None
    assert store.loads == 1


def test_the_values_of_a_conversation_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chat, "MAX_VALUES", 1_000)

    async def act(page: Page) -> None:
        statuses: list[int] = []
        for number in (200, 100, 100):
            response = await page.client.post("/api/chat", json=parts("c", number))
            statuses.append(response.status_code)
        assert statuses == [200, 200, 413]
        assert response.json()["error"]["code"] == "conversation_too_long"

    visit(web.chat(Fake(lambda request: "Hello"), MemorySessions()), act)
