"""Browsers of `web.chat`, over its ASGI interface or over sockets, and what they send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import httpx

from rxllm import Engine, Fake, Session, ToolCall, ask_user, tool, web
from rxllm.session import MemorySessions

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
    transport = httpx.ASGITransport(app, client=client)
    async with httpx.AsyncClient(**{"transport": transport, "base_url": BASE, "timeout": 20, **options}) as opened:
        yield opened


def visit(app: Any, act: Callable[[Page], Awaitable[Any]], **options: Any) -> Any:
    """Run `act` with a page over the ASGI interface, which answers at its end. Raises ``TimeoutError``."""

    async def main() -> Any:
        async with browser(app, **options) as client:
            return await act(Page(client))

    return in_time(main())


def in_time(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(90):
            return await main

    return asyncio.run(bounded())


def made(*script: Any, store: Any = None, **options: Any) -> tuple[Any, Any]:
    """Return an endpoint with a fake model, and its store."""
    store = store or MemorySessions()
    engine = Engine(Fake(*(script or (echo,))), tools=[pay, ask], retry=False)
    return web.chat(engine, store, **options), store


async def thread(store: Any, id: str = "c") -> list[str]:
    session: Session = (await store.load(id)).session
    return [message.text for message in session.messages]
