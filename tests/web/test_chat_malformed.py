"""Malformed posts to a `web.chat`: all shapes are refused with 400, and nothing of other conversations leaves."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import Any

import httpx
import pytest

from rxllm import Engine, Fake, Session, tool, web
from rxllm.session import MemorySessions
from tests.examples import examples
from tests.web.chats import browser
from tests.web.malformed import GOOD, HOSTILE_IDS, ID, SHAPES, STORED, WAITS, without
from tests.web.mutations import Mutations, halted

SECRET = "the-secret-of-another-conversation"
PROTOCOL: dict[str, Any] = {"from_ui": "ui", "from_ag_ui": "ag-ui"}
NAMES = pytest.mark.parametrize("name", PROTOCOL)


@tool(approval=True)
def pay(amount: int) -> str:
    raise AssertionError(amount)


def bytes_of(shape: Any) -> bytes | None:
    """Return the shape as a body, or None if it cannot be sent."""
    if isinstance(shape, bytes | str):
        return shape if isinstance(shape, bytes) else shape.encode(errors="surrogatepass")
    try:
        return json.dumps(shape).encode()
    except TypeError:
        return None


async def posted(app: Any, bodies: list[bytes]) -> list[httpx.Response]:
    json = {"content-type": "application/json"}
    async with browser(app) as client:
        return [await client.post("/api/chat", content=body, headers=json) for body in bodies]


def endpoint(name: str, *stored: str) -> tuple[Any, MemorySessions]:
    """An endpoint whose conversations with these ids wait for an approval and a result."""
    store, waiting = MemorySessions(), halted(*WAITS).thread

    async def fill() -> None:
        for id in stored:
            await store.save(Session(id=id).with_thread(waiting))
        await store.save(Session(id="other").append_user(SECRET))

    asyncio.run(fill())
    engine = Engine(Fake(lambda request: ["Hello"]), tools=[pay])
    app = web.chat(engine, store, protocol=PROTOCOL[name], client_tools=["locate"], max_per_minute=10**6)
    return app, store


@NAMES
@pytest.mark.parametrize("stored", [[], ["chat", "t"]], ids=["new", "waiting"])
def test_every_shape_is_a_400(name: str, stored: list[str]) -> None:
    app, store = endpoint(name, *stored)
    before = [asyncio.run(store.load(id)) for id in ("chat", "t")]
    shapes = [*SHAPES[name], *(STORED[name] if stored else [])]
    bodies = [body for shape in shapes if (body := bytes_of(shape)) is not None]
    assert len(bodies) >= 200
    answers = asyncio.run(posted(app, bodies))
    wrong = {answer.status_code: body[:100] for answer, body in zip(answers, bodies, strict=True)}
    assert set(wrong) <= {400, 413}, wrong
    for answer in answers:
        assert answer.json()["error"]["message"]
        assert SECRET not in answer.text
    assert [asyncio.run(store.load(id)) for id in ("chat", "t")] == before


@NAMES
def test_hostile_ids_are_refused(name: str) -> None:
    app, _ = endpoint(name)
    shapes = [*({**GOOD[name], ID[name]: id} for id in HOSTILE_IDS), without(ID[name], **GOOD[name])]
    answers = asyncio.run(posted(app, [json.dumps(shape).encode() for shape in shapes]))
    assert {answer.status_code for answer in answers} == {400}
    assert all(ID[name] in answer.json()["error"]["message"] for answer in answers)


def test_the_message_has_the_path() -> None:
    app, _ = endpoint("from_ui")
    wrong = {"id": "chat", "messages": [{"role": "user", "parts": [{"type": "text", "text": 5}]}]}
    (answer,) = asyncio.run(posted(app, [json.dumps(wrong).encode()]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert answer.json()["error"]["message"].startswith("messages.0.parts.0.text")


@NAMES
@pytest.mark.parametrize("seed", range(2))
def test_mutated_posts_are_answered_or_refused(name: str, seed: int) -> None:
    app, store = endpoint(name, "chat", "t")
    bodies = [body for body in islice(Mutations([GOOD[name]], seed), examples(300)) if b'"other"' not in body]
    for answer in asyncio.run(posted(app, bodies)):
        assert answer.status_code in (200, 400, 409), answer.text
        assert SECRET not in answer.text
    assert asyncio.run(store.load("other")).version > 0
