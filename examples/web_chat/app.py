"""A chat in the browser, with one model or with two models side by side.

It shows answers, thinking and tool calls while they stream. You can approve calls, stop an answer, or reload the page.

    pip install '.[local,web]' && python examples/web_chat/app.py                 # then open http://127.0.0.1:8000
    python examples/web_chat/app.py openai:gpt-5-mini anthropic:claude-haiku-4-5  # or with other models

The system prompt and the history stay on the server. The server accepts only texts and approvals from the browser.
"""

import html
import json
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import reactivex
import uvicorn
from models import AGENT, MODELS, order
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

import rxllm
from rxllm import operators as ops
from rxllm import session, web

FOLDER = Path(__file__).parent
PAGE = (FOLDER / "page.html").read_text("utf-8")
FILES = {
    name: ((FOLDER / name).read_bytes(), f"text/{kind}")
    for kind, names in {
        "css": ["page.css"],
        "javascript": ["page.js", "draw.js", "markdown.js", "vendor/marked.esm.js"],
    }.items()
    for name in names
}
CSP = (
    "default-src 'none'; connect-src 'self'; style-src 'self'; script-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}
BEGIN = rxllm.Session(thread=rxllm.Thread().add_system("You are a friendly assistant."))
VISITS, TURNS, BYTES = 100, 100, 20_000  # limits: visits in memory, turns in a chat, bytes in a request


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """A message from the browser: a text, approvals of pending calls by the calls' ids, or a retry."""

    text: str = ""
    approvals: dict[str, bool] = {}
    retry: bool = False


class Chat:
    """A conversation with one model: its session, and its turns as streams."""

    def __init__(self, engine: rxllm.Engine) -> None:
        self.id, self.engine, self.session = secrets.token_urlsafe(), engine, BEGIN
        self.turns: list[rxllm.Stream[rxllm.Event]] = []
        self.has_failed = False

    def start_turn(self, answer: Answer, runs: web.Runs) -> None:
        """Start a turn. Raises ``LLMError`` if the conversation is not waiting for this answer."""
        if answer.approvals:
            self.session.require("resume")
            self.session.require_pending(answer.approvals)
            events = session.stream_resume(self.engine, self.session, approvals=answer.approvals)
        elif answer.retry:
            self.session.require("start")
            events = session.stream_start(self.engine, self.before_failure())
        else:
            self.session.require("reply")
            events = session.stream_reply(self.engine, self.session, answer.text)
        keep = ops.finally_result(self.keep, ops.to_session(self.session, keep_partial=True))
        # A browser that reconnects receives the kept events, so keep only events that a client is allowed to see.
        run = runs.start(self.id, events.pipe(keep, web.for_client())).pipe(ops.errors_as_events())
        begin = rxllm.Custom("turn", {"number": len(self.turns), "text": answer.text, "retry": answer.retry})
        pending = reactivex.defer(lambda _: reactivex.of(rxllm.Custom("pending", self.pending())))
        self.turns.append(rxllm.Stream.of(reactivex.concat(reactivex.of(begin), run, pending)))

    def pending(self) -> list[str]:
        return [call.id for call in self.session.pending_tool_calls]

    def before_failure(self) -> rxllm.Session:
        """Return the session without its partial answer. Raises ``SessionError`` if the last answer has not failed."""
        if not self.has_failed:
            raise rxllm.SessionError("invalid_status_for_operation", "There is no failed answer to retry.")
        thread = self.session.thread
        is_partial = thread.last is not None and thread.last.role == "assistant"
        return replace(self.session, thread=thread[:-1]) if is_partial else self.session

    def keep(self, turn: rxllm.values.Turn, outcome: rxllm.telemetry.Outcome) -> None:
        self.has_failed = outcome == "failed"
        if turn.session.thread != self.session.thread:  # otherwise nothing was received, and the pending calls remain
            self.session = replace(turn.session, status="idle") if turn.session.status == "error" else turn.session


class Visit:
    """The chats at one address, and the number of open pages that show them."""

    def __init__(self, engines: Iterable[rxllm.Engine]) -> None:
        self.chats, self.pages = [Chat(engine) for engine in engines], 0


def web_app(models: Mapping[str, rxllm.Engine]) -> Starlette:
    """Return the application. Its page shows the names in `models`."""
    runs, visits = web.Runs(grace=10), dict[str, Visit]()
    content = PAGE.replace("MODELS", html.escape(json.dumps(list(models))))

    def find(request: Request) -> tuple[Visit, Chat]:
        visit, model = visits.get(request.path_params["visit"]), request.path_params.get("model", 0)
        if visit is None or model >= len(visit.chats):
            raise HTTPException(404, "This chat does not exist. The server may have deleted it.")
        return visit, visit.chats[model]

    async def enter(request: Request) -> Response:
        if len(visits) == VISITS:
            del visits[next(iter(visits))]
        visits[id := secrets.token_urlsafe()] = Visit(models.values())
        return RedirectResponse(f"/{id}", 303)

    async def page(request: Request) -> Response:
        if request.path_params["visit"] not in visits:
            return RedirectResponse("/", 303)
        find(request)[0].pages += 1
        return HTMLResponse(content, headers=HEADERS)

    async def file(request: Request) -> Response:
        if request.path_params["name"] not in FILES:
            raise HTTPException(404)
        content, type = FILES[request.path_params["name"]]
        return Response(content, media_type=type, headers=HEADERS)

    async def leave(request: Request) -> Response:
        """Stop the chats once their last page is closed. A reload opens the new page before it closes the old one."""
        visit, _ = find(request)
        visit.pages -= 1
        for chat in visit.chats if visit.pages <= 0 else ():
            runs.cancel(chat.id)
        return Response(status_code=204)

    async def watch(request: Request) -> Response:
        turns = find(request)[1].turns[request.path_params["begin"] :]
        return web.streaming_response(rxllm.Stream.of(reactivex.concat(*turns)))

    async def send(request: Request) -> Response:
        _, chat = find(request)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > BYTES:
                raise HTTPException(413, "This message is too long.")
        if len(chat.turns) == TURNS:
            raise HTTPException(409, "This chat is full. Start a new one.")
        try:
            answer = msgspec.json.decode(body, type=Answer)
            if bool(answer.text) + bool(answer.approvals) + answer.retry != 1:
                raise HTTPException(422, "A message must have a text, approvals or a retry.")
            chat.start_turn(answer, runs)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise HTTPException(422, f"This is not a valid message: {error}") from error
        except rxllm.LLMError as error:
            raise HTTPException(409, str(error)) from error
        return web.streaming_response(chat.turns[-1])

    async def stop(request: Request) -> Response:
        runs.cancel(find(request)[1].id)
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/", enter),
            Route("/files/{name:path}", file),
            Route("/{visit}", page),
            Route("/{visit}/leave", leave, methods=["POST"]),
            Route("/{visit}/{model:int}/{begin:int}", watch),
            Route("/{visit}/{model:int}", send, methods=["POST"]),
            Route("/{visit}/{model:int}", stop, methods=["DELETE"]),
        ]
    )


app = web_app(MODELS)

if __name__ == "__main__":
    named = {name: rxllm.Engine(name).with_tools(order, AGENT) for name in sys.argv[1:]}
    uvicorn.run(web_app(named or MODELS), port=8000, timeout_graceful_shutdown=1)
