"""Browsers of `web.chat`, over its ASGI interface or over sockets, and what they send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from rxllm import Engine, Fake, Session, TextDelta, ToolCall, ask_user, tool, web
from rxllm.session import MemorySessions
from rxllm.testing import World, simulate
from tests.waiting import PATIENCE

BASE = "http://localhost"
STREAMS = {"ui": "text/event-stream; charset=utf-8", "ag-ui": "text/event-stream; charset=utf-8"}

paid: list[int] = []


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    paid.append(amount)
    return f"paid {amount}"


@tool
def ask() -> Any:
    """Ask the user."""
    return ask_user("Where to?")


PAYS = ToolCall("c1", "pay", {"amount": 5})
ASKS = ToolCall("c1", "ask", {})


def echo(request: Any) -> Any:
    return [f"You wrote {request.messages[-1].text}"]


class Slow:
    """A model that ends its answers, "Once upon.", when `go` is set; `questions` are those it was asked."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.go = asyncio.Event()

    @property
    def asked(self) -> int:
        return len(self.questions)

    async def model(self, request: Any, call: Any) -> Any:
        self.questions.append(request.messages[-1].text)
        yield TextDelta("Once ")
        await self.go.wait()
        yield TextDelta("upon.")


def says(text: str) -> dict[str, Any]:
    return {"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}


def approval(id: str = "c1", approved: bool = True) -> dict[str, Any]:
    answer = {"state": "approval-responded", "approval": {"id": id, "approved": approved}}
    return {"role": "assistant", "parts": [{"type": "dynamic-tool", "toolName": "pay", "toolCallId": id, **answer}]}


def body(id: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": id, "trigger": "submit-message", "messages": list(messages), **fields}


def ag_body(id: str, text: str | None = None, **fields: Any) -> dict[str, Any]:
    messages = [] if text is None else [{"id": "m1", "role": "user", "content": text}]
    return {"threadId": id, "runId": "r1", "messages": messages, **fields}


def text_of(response: httpx.Response) -> str:
    """Return the text of the answer, in either protocol."""
    assert response.status_code == 200, response.text
    frames = list(web.from_sse(response.content))
    kinds = ("text-delta", "TEXT_MESSAGE_CONTENT")
    return "".join(frame["delta"] for frame in frames if frame["type"] in kinds)


class Page:
    """The page of a browser with one conversation."""

    def __init__(self, client: httpx.AsyncClient, id: str = "c", path: str = "/api/chat") -> None:
        self.client, self.id, self.path = client, id, path

    async def post(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        return await self.client.post(self.path, json=body(self.id, *messages, **fields))

    async def say(self, text: str) -> httpx.Response:
        return await self.post(says(text))

    async def back(self) -> httpx.Response:
        return await self.client.get(f"{self.path}/{self.id}/stream")

    async def stop(self) -> httpx.Response:
        return await self.client.delete(f"{self.path}/{self.id}")


@contextlib.asynccontextmanager
async def browser(app: Any, client: tuple[str, int] = ("127.0.0.1", 5000), **options: Any) -> AsyncIterator[Any]:
    options = {"transport": httpx.ASGITransport(app, client=client), "base_url": BASE, "timeout": PATIENCE, **options}
    async with httpx.AsyncClient(**options) as opened:
        yield opened


def visit(app: Any, act: Callable[[Page], Awaitable[Any]], **options: Any) -> Any:
    """Run `act` with a page over the ASGI interface, which answers at its end."""

    async def main() -> Any:
        async with browser(app, **options) as client:
            return await act(Page(client))

    return asyncio.run(main())


def simulated(app: Any, act: Callable[[Page], Awaitable[Any]]) -> Any:
    """Run `act` as `visit` does, in virtual time."""

    async def main(world: World) -> Any:
        async with browser(app) as client:
            return await act(Page(client))

    return simulate(main, faults=()).value


def opens_at_return(app: Any, gate: asyncio.Event) -> Any:
    """Return `app`, which sets `gate` when it begins to answer a ``GET``."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        async def seen(message: Any) -> None:
            if scope["method"] == "GET":
                gate.set()
            await send(message)

        await app(scope, receive, seen)

    return served


def made(*script: Any, store: Any = None, **options: Any) -> tuple[Any, Any]:
    """Return an endpoint with a fake model, and its store."""
    store = store or MemorySessions()
    engine = Engine(Fake(*(script or (echo,))), tools=[pay, ask], retry=False)
    return web.chat(engine, store, **options), store


async def thread(store: Any, id: str = "c") -> list[str]:
    session: Session = (await store.load(id)).session
    return [message.text for message in session.messages]
