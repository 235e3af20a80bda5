"""The clients of `web.chat`, under Node: `Chat` of the npm package `ai`, and `HttpAgent` of `@ag-ui/client`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from rxllm import AdapterError, web
from rxllm.session import MemorySessions
from tests.web import clients
from tests.web.chats import PAYS, Slow, made, paid
from tests.web.chats import thread as stored
from tests.web.serving import serving

pytestmark = pytest.mark.sockets


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def run_chat(act: str, url: str) -> list[Any]:
    return clients.run("chat", {"act": act, "url": url})


async def seen_by(act: Callable[[str], Any], app: Any) -> list[Any]:
    """What `act` shows, with the address of a server."""
    async with serving(app) as port:
        return await asyncio.to_thread(act, f"http://127.0.0.1:{port}/")


@pytest.mark.judges
def test_use_chat_approves_stops_and_goes_on() -> None:
    failure = AdapterError("provider_unavailable", "secret")
    app, store = made(PAYS, "Paid.", ["word ", ("delay", 3600), "more"], ["Hel", failure])

    async def main() -> tuple[list[Any], list[list[str]]]:
        lines = await seen_by(lambda url: clients.run("ui_chat", f"{url}api/chat"), app)
        return lines, [await stored(store, id) for id in store._saved]

    seen, threads = asyncio.run(main())
    assert [line["status"] for line in seen] == ["ready", "ready", "ready", "error"]
    assert seen[0]["message"]["parts"][-1]["state"] == "approval-requested"
    assert seen[1]["message"]["parts"][-1]["text"] == "Paid."
    assert seen[3]["error"] == "adapter error: provider_unavailable"
    assert threads == [["Pay 5.", "", "paid 5", "Paid.", "Go on.", "word ", "Again.", "Hel"]]
    assert paid == [5]


@pytest.mark.judges
def test_use_chat_returns_to_its_answer() -> None:
    async def main() -> tuple[list[Any], list[str]]:
        slow, store = Slow(), MemorySessions()

        async def release(request: Any) -> Response:
            slow.go.set()
            return Response(status_code=204)

        app = web.chat(slow.model, store, background=True)
        routes = [Route("/api/chat{rest:path}", app), Route("/go", release, methods=["POST"])]
        resume = partial(run_chat, "resume")
        return await seen_by(resume, Starlette(routes=routes)), await stored(store, "c/1")

    lines, texts = asyncio.run(main())
    begun, whole = ["A story!", "Once "], ["A story!", "Once upon."]
    assert [line["texts"] for line in lines] == [begun, whole, whole, [*whole, "More!", "Once upon."]]
    assert [line["status"] for line in lines] == ["streaming", "ready", "ready", "ready"]
    assert texts == [*whole, "More!", "Once upon."]


@pytest.mark.judges
def test_an_ag_ui_agent_approves_and_goes_on() -> None:
    app, store = made(PAYS, "Paid.", "You are welcome.", protocol="ag-ui")
    lines = asyncio.run(seen_by(partial(run_chat, "agent"), app))
    assert [len(line["interrupts"]) for line in lines] == [1, 0, 0]
    assert lines[-1]["messages"] == [
        *(["user", "Pay 5."], ["assistant", ""], ["tool", "paid 5"], ["assistant", "Paid."]),
        *(["user", "Thanks."], ["assistant", "You are welcome."]),
    ]
    texts = ["Pay 5.", "", "paid 5", "Paid.", "Thanks.", "You are welcome."]
    assert asyncio.run(stored(store)) == texts
    assert paid == [5]
