"""A chat that survives reloads, closed tabs and kill -9: ``uvicorn --app-dir examples/chat_endpoint app:app``."""

import os
import secrets
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route

import rxllm
from rxllm import durable, web

runs = durable.open_runs("chat.db", {}, lease=3.0)


@rxllm.tool(approval=True)
def order(item: str, amount: int) -> str:
    """Order an item for the user, who must approve it."""
    return f"{amount} {item} ordered"


async def page(request):  # each browser has one conversation, whose id only its cookie knows
    response = FileResponse(Path(__file__).with_name("page.html"))
    response.set_cookie("chat", request.cookies.get("chat") or secrets.token_urlsafe(), httponly=True)
    return response


async def history(request):
    session = (await runs.session(id := request.cookies["chat"])).session
    shown = [[message.role, message.text] for message in session.messages if message.role in ("user", "assistant")]
    pending = {call.id: repr(call) for call in session.pending_tool_calls}
    approvals = {call.id: web.approval_id(call) for call in session.pending_tool_calls}
    return JSONResponse({"id": id, "messages": shown, "pending": pending, "approvals": approvals})


engine = rxllm.Engine(os.environ.get("RXLLM_MODEL", "local")).with_tools(order)
allow = lambda request, id: request.cookies.get("chat") == id  # noqa: E731
chat = web.chat(engine, runs.sessions, runs=runs, background=True, allow=allow)
app = Starlette(routes=[Route("/", page), Route("/history", history), Route("/api/chat{rest:path}", chat)])
