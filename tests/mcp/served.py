"""A server made with the official SDK, over HTTP in a thread of the test's process, or as a program over stdio.

``python served.py modern`` and ``python served.py handshake`` speak that era only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated, Any

import mcp_types
import uvicorn
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Image, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from rxllm.testing import PNG
from tests.waiting import PATIENCE, wait_until


class Choice(BaseModel):
    size: str


@dataclass
class Seen:
    """The calls of `slow` by name, and other things that have happened in the tools."""

    started: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    payments: list[int] = field(default_factory=list)


async def size_of(item: str) -> Choice | Elicit[Choice]:
    return Elicit(f"Which size of {item}?", Choice)


def server(seen: Seen) -> MCPServer:
    """A server with a tool for everything that a client must cope with."""
    app = MCPServer("tests")

    @app.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @app.tool()
    async def slow(name: str, turns: int | None = None) -> str:
        """Take some turns of the event loop, or for ever."""
        seen.started.append(name)
        try:
            if turns is None:
                await asyncio.Event().wait()
            for _ in range(turns or 0):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            seen.cancelled.append(name)
            raise
        return "done"

    @app.tool(structured_output=False)
    async def count(to: int, ctx: Context) -> str:
        """Count, and say how far."""
        for number in range(1, to + 1):
            await ctx.report_progress(number, to, f"at {number}")
        return "counted"

    @app.tool(structured_output=False)
    def fail() -> str:
        """Fail."""
        raise ToolError("no such city")

    @app.tool(structured_output=False)
    def picture() -> list[Any]:
        """A picture with its title."""
        return ["A dot:", Image(data=PNG.to_binary(), format="png")]

    @app.tool(structured_output=False)
    def blocks() -> list[Any]:
        """A sound, a text file and a link."""
        sound = mcp_types.AudioContent(type="audio", data=base64.b64encode(b"RIFF").decode(), mime_type="audio/wav")
        text = mcp_types.TextResourceContents(uri="file:///a.txt", text="hello")
        link = mcp_types.ResourceLink(type="resource_link", uri="file:///b.txt", name="b")
        return [sound, mcp_types.EmbeddedResource(type="resource", resource=text), link]

    @app.tool(structured_output=False)
    async def order(item: str, choice: Annotated[ElicitationResult[Choice], Resolve(size_of)]) -> str:
        """Order an item, whose size the user says."""
        return f"{item}: {choice.data.size}" if choice.action == "accept" else f"{item}: {choice.action}"

    @app.tool(structured_output=False)
    async def confirm(item: str, ctx: Context) -> str:
        """Ask the user in the middle of the call, as servers do that speak the handshake."""
        answer = await ctx.elicit(f"Really {item}?", Choice)
        return f"{item}: {answer.data.size}" if answer.action == "accept" else f"{item}: {answer.action}"

    @app.tool(structured_output=False)
    async def grow(ctx: Context) -> str:
        """Add a tool to the server."""
        app.add_tool(lambda: "grown", name=f"grown_{len(app._tool_manager._tools)}", description="New.")
        await ctx.notify_tools_changed()
        with contextlib.suppress(Exception):
            await ctx.request_context.session.send_tool_list_changed()
        return "grown"

    return app


class Refusing:
    """An application without an era: it does not know what is modern."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version") == b"2026-07-28":
            body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Bad Request: no session"}}'
            head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 400, "headers": head})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)


@contextlib.contextmanager
def served(seen: Seen, *, handshake: bool = False) -> Generator[str]:
    """Serve over HTTP in a thread, and yield the URL."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    app: Any = server(seen).streamable_http_app()
    config = uvicorn.Config(
        Refusing(app) if handshake else app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_until(lambda: running.started or not thread.is_alive())
        assert running.started
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            thread.join(PATIENCE)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    server(Seen()).run("stdio")
