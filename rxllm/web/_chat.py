"""An ASGI application that serves as a complete chat endpoint.

===========================================  ==========================================================================
request                                      answer
===========================================  ==========================================================================
``POST path``                                the next turn's events; the request's body contains a message, approvals or
                                             results
``GET path/ID/stream`` or ``GET path/ID``    the open turn's events, including past events, or 204 if no turn is open
``DELETE path/ID``                           204, after any open turn has been stopped and saved
``OPTIONS`` from a site in `origins`         204, with CORS headers
===========================================  ==========================================================================

A refused request is answered with JSON such as ``{"error": {"message": ..., "code": ...}}``. If the body is malformed,
the message begins with the path to the fault. Errors that are not the client's fault are logged, and sent without their
messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Never
from urllib.parse import quote, unquote

import reactivex
from msgspec.structs import replace
from reactivex import operators as rx

import rxllm
from rxllm import EngineError, Event, LLMError, RunError, Session, Stream, Thread, Tool, ValidationError, serializer
from rxllm import operators as ops
from rxllm.engine import Engine, as_engine
from rxllm.runtime import log_hidden, off_loop
from rxllm.session import SavedSession, SessionStore, session_size, stream_resume
from rxllm.tools import AgentTool
from rxllm.values.advice import unknown_option
from rxllm.values.argument_checks import check, check_count, check_instance, invalid_option, must_be
from rxllm.web._ag_ui_encoder import Encoder as AGUIEncoder
from rxllm.web._ag_ui_request import AGUIInput, ag_ui_id, from_ag_ui
from rxllm.web._chat_door import Allow, ChatRequest, Door
from rxllm.web._chat_refused import Refusals, without_refused
from rxllm.web._chat_replay import events_before, events_of_open_calls
from rxllm.web._chat_turns import MemoryTurns, SessionRuns, in_time, open_run
from rxllm.web._frames import frame_json
from rxllm.web._openai_app import App, read_body
from rxllm.web._openai_errors import RefusedError
from rxllm.web._requests import MAX_BYTES, MAX_VALUES, OUTDATED, check_id, load_request, most_values
from rxllm.web._response import Client, GoneError, Receive, Send, streaming_response, until_gone
from rxllm.web._runs import Runs
from rxllm.web._ui_request import from_ui, ui_id

log = logging.getLogger("rxllm")

PATIENCE = {"refuse": 1.0, "wait": 30.0}
"""The number of seconds that a request waits for an open turn to end.

Even with "refuse", a request waits briefly, because a turn that was just stopped will soon be saved.
"""

MAX_SESSION = 16_000_000
"""The default for `max_session`. A session of this length takes a fraction of a second to load and save."""

RECOVERY = 1.0
"""The number of seconds between searches for durable runs that have lost their process."""

_READERS: Mapping[str, Any] = {"ui": (ui_id, from_ui), "ag-ui": (ag_ui_id, from_ag_ui)}
_STATUSES = {"store_unavailable": 503, "overflow": 503, "missing_tool_results": 400, "invalid_option": 400}


_OPTIONS = (
    *("store", "protocol", "path", "allow", "origins", "system", "client_tools", "busy", "background", "runs"),
    *("max_body", "max_session", "max_per_minute", "max_running"),
)


def chat(
    engine: Engine | str | Any,
    store: SessionStore,
    *,
    protocol: Literal["ui", "ag-ui"] = "ui",
    path: str = "/api/chat",
    allow: Allow | None = None,
    origins: Collection[str] = (),
    system: str | None = None,
    client_tools: Collection[str] = (),
    busy: Literal["refuse", "wait"] = "refuse",
    background: bool = False,
    runs: Runs | SessionRuns | None = None,
    max_body: int = MAX_BYTES,
    max_session: int = MAX_SESSION,
    max_per_minute: int = 30,
    max_running: int = 100,
    **unknown: Never,
) -> App:
    """Return an ASGI application that lets browsers chat with `engine`, and keeps the sessions in `store`.

    >>> import rxllm
    >>> app = chat(rxllm.Fake("Hello"), rxllm.session.MemorySessions())

    Run the app on any ASGI server, or route requests for `path` and everything below it to the app. In Starlette, use
    ``Route("/api/chat{rest:path}", app)``.

    Arguments:
        protocol: "ui" for ``useChat``, "ag-ui" for AG-UI clients.
        allow: A function that takes a `ChatRequest` and a conversation id, and returns whether the request may use
            that conversation. It can be async. Without it, only requests from this machine are served.
        origins: Other sites whose pages may use the endpoint, such as ``["https://example.org"]``.
        system: The system prompt for new conversations.
        client_tools: The names of the tools that run in the browser.
        busy: What happens to a request while another turn is open. With "refuse", it is refused with status 409. With
            "wait", it waits for up to 30 seconds.
        background: Whether a turn continues when its browser disconnects. If not, its partial answer is saved.
        runs: The runs to use. By default, a new `Runs` keeps them in memory. With ``durable.open_runs(...)``, another
            process continues a turn whose process has died. Durable runs need ``runs.sessions`` as `store`.
        max_body: The maximum length of a request, in bytes.
        max_session: The maximum length of a conversation's JSON, in bytes. It may also have at most 100,000 values.
        max_per_minute: The maximum number of posts to one conversation per minute, and of other requests about it.
        max_running: The maximum number of turns that run in this process at the same time.

    Raises ``ValidationError("invalid_option")`` for invalid arguments, and the same errors as ``rxllm.stream`` for an
    invalid engine.
    """
    if unknown:
        name, value = next(iter(unknown.items()))
        raise EngineError("unknown_option", unknown_option("web.chat(...)", name, value, _OPTIONS, "web.chat"))
    check("protocol", protocol, protocol in [*_READERS], "'ui' or 'ag-ui'")
    check("busy", busy, busy in [*PATIENCE], "'refuse' or 'wait'")
    check("path", path, path.startswith("/") and path.rstrip("/") == path, 'a path such as "/api/chat"')
    check_instance("system", system, str | None, "text or None")
    check("client_tools", client_tools, not isinstance(client_tools, str), "a list of tool names")
    check_count("max_body", max_body)
    check_count("max_session", max_session)
    check_count("max_running", max_running)
    is_store = all(callable(getattr(store, method, None)) for method in ("load", "save", "delete"))
    check("store", store, is_store, "a session store, such as rxllm.session.MemorySessions()")
    engine, door = as_engine(engine), Door(allow, origins, max_per_minute)
    rxllm.stream(engine, "Hi")  # checks the engine without sending anything
    forgeable = sorted({*client_tools} & {tool.name for tool in _tools_of(engine) if tool.approval})
    check(
        "client_tools",
        forgeable,
        not forgeable,
        "names of tools without approval=True (a client could forge their results)",
    )
    kept = MemoryTurns(runs or Runs(grace=1.0), store) if runs is None or isinstance(runs, Runs) else runs
    is_theirs = isinstance(kept, MemoryTurns) or store is kept.sessions
    check("store", store, is_theirs, "runs.sessions (durable runs have their own session store)")

    def build(answers: Mapping[str, Any], session: Session) -> Stream[Event]:
        approvals, results = answers["approvals"], answers["results"]
        return stream_resume(engine.with_tools(*answers["tools"]), session, approvals=approvals, results=results)

    try:
        kept.add_factory(path, build)
    except ValidationError:
        fault = must_be("a path at which these runs do not serve a chat yet", path)
        raise invalid_option("path", f"{fault}; pass another path, or other runs") from None
    options = protocol, path, system, tuple(client_tools), busy, background, max_body, max_session, max_running
    return _Chat(engine, kept, Stream.of(kept.recover(every=RECOVERY)).share(), door, *options)


def _tools_of(engine: Engine) -> Iterator[Tool]:
    for tool in engine.tools:
        yield tool
        if isinstance(tool, AgentTool):
            yield from _tools_of(tool.engine)


class _Exchange:
    """A request, with methods to answer it. `cors` holds the headers that let a site in `origins` read the answer."""

    def __init__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.request, self.receive, self.cors = ChatRequest(scope), receive, dict[str, str]()
        self._send = send

    async def stream(self, events: Stream[Event], encoder: Any) -> None:
        response = streaming_response(events, encoder, headers=self.cors)
        await response(self.request.scope, self.receive, self._send)

    async def reply(self, status: int, headers: Mapping[str, str] = {}, body: bytes = b"") -> None:
        fields = {**self.cors, **headers, **({"content-type": "application/json"} if body else {})}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        await Client(self._send, status, encoded).send(body, more=False)


@dataclass(frozen=True)
class _Chat:
    engine: Engine
    runs: SessionRuns
    recovery: Stream[Any]
    door: Door
    protocol: str
    path: str
    system: str | None
    client_tools: tuple[str, ...]
    busy: str
    background: bool
    max_body: int
    max_session: int
    max_running: int
    beginning: list[str] = field(default_factory=list[str])  # conversations whose next turn is about to begin

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"web.chat handles http, not {scope['type']}")  # servers then run without "lifespan"
        exchange = _Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except (RefusedError, LLMError) as error:
            refused = _refusal(error)
            await exchange.reply(refused.status, refused.headers, frame_json(refused.body))
        except GoneError:
            pass

    async def _answer(self, exchange: _Exchange) -> None:
        request = exchange.request
        exchange.cors = self.door.enter(request)
        id, methods = self._place(request.scope)
        if request.method == "OPTIONS" and exchange.cors:
            headers = request.headers.get("access-control-request-headers", "content-type")
            allowed = {"access-control-allow-methods": ", ".join(methods), "access-control-allow-headers": headers}
            await exchange.reply(204, allowed)
        elif request.method not in methods:
            error = RefusedError(405, f"use {' or '.join(methods)} on this path", "method_not_allowed")
            error.headers["allow"] = ", ".join(methods)
            raise error
        elif request.method == "POST":
            await self._post(exchange)
        else:
            await self.door.admit(request, id)
            self.door.count(id, request.method)
            await (self._get if request.method == "GET" else self._delete)(exchange, id)

    def _place(self, scope: Any) -> tuple[str, tuple[str, ...]]:
        """Return the conversation id in the URL, and the methods that are allowed for this URL."""
        raw = scope.get("raw_path")  # the full path, even if a framework has mounted this application inside another
        path = quote(scope["path"]) if raw is None else raw.decode("latin-1").partition("?")[0]
        mount, found, rest = path.partition(quote(self.path))
        is_own = found and quote(scope.get("root_path", "")).startswith(mount)
        if is_own and rest in ("", "/"):
            return "", ("POST",)
        with suppress(ValidationError):
            if is_own and rest.startswith("/"):
                return check_id(unquote(rest[1:].removesuffix("/stream"))), ("GET", "DELETE")
        raise RefusedError(404, "no such path", "not_found")

    async def _post(self, exchange: _Exchange) -> None:
        headers = exchange.request.headers
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "the content-type must be application/json", "unsupported_media_type")
        length = {"content-length": headers.get("content-length", "0").encode("latin-1")}
        body = await read_body(exchange.receive, length, self.max_body)
        id, data = await off_loop(len(body), self._parsed, body)
        await self.door.admit(exchange.request, id)
        self.door.count(id, "POST")
        run, before, encoder = await self._next_turn(id, data, len(body), exchange.receive)
        try:
            await exchange.stream(self._events(run, before), encoder)
        finally:
            if not self.background:
                await self._leave(run)

    async def _leave(self, run: str) -> None:
        try:
            await in_time(self.runs.cancel(run))
        except RefusedError:  # it has already been logged
            pass
        except RunError as error:  # too late to send this to the client
            log_hidden(error, "web.chat: a turn could not be stopped")

    async def _get(self, exchange: _Exchange, id: str) -> None:
        saved = await self._load(id) if await self._open_run(id) else None
        if saved is None or saved.run is None:
            await exchange.reply(204)
        else:
            encoder = AGUIEncoder(thread_id=id) if self.protocol == "ag-ui" else self.protocol
            before = Thread() if saved.begun is None else saved.begun.thread
            events = self._events(saved.run, events_before(before) or events_of_open_calls(before))
            await exchange.stream(events, encoder)

    async def _delete(self, exchange: _Exchange, id: str) -> None:
        if (run := await self._open_run(id)) is not None:
            await in_time(self.runs.cancel(run))
        await self._settle(id, exchange.receive, PATIENCE["wait"])
        await exchange.reply(204)

    async def _open_run(self, id: str) -> str | None:
        return await open_run(self.runs.sessions, id)

    async def _load(self, id: str) -> SavedSession:
        return await in_time(self.runs.sessions.load(id))

    def _events(self, run: str, before: list[Event] | None = None) -> Stream[Event]:
        """Watch a run. Until the subscription ends, also continue any runs whose process has ended."""
        recovering = lambda: self.recovery.subscribe(on_error=_log_recovery)  # noqa: E731
        events = reactivex.using(recovering, lambda _: self.runs.watch(run, folded=True))
        return Stream.of(events.pipe(rx.start_with(*before)) if before else events).pipe(
            ops.errors_as_events(), ops.lift(Refusals)
        )

    def _parsed(self, body: bytes) -> tuple[str, Any]:
        read_id, _ = _READERS[self.protocol]
        data = load_request(body, self.max_body)
        return read_id(data), data

    def _is_too_long(self, session: Session) -> bool:
        text = serializer.to_json(session).encode()
        return len(text) > self.max_session or most_values(text) > MAX_VALUES

    async def _next_turn(self, id: str, data: Any, size: int, receive: Receive) -> tuple[str, list[Event], Any]:
        """Begin a turn as soon as no other turn is open. `size` is the length of the request in bytes.

        Return the run's id, a list of events, and the encoder. The events belong to earlier calls that are still open.
        The page must receive them before the run's own events.

        Raises ``RunError("conflict")`` if another turn stays open for too long, or if another request begins a turn
        first.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + PATIENCE[self.busy]
        while True:
            await self._settle(id, receive, until - clock())
            if len(self.runs.produced) + len(self.beginning) >= self.max_running:
                raise RefusedError(503, "this server is busy", "busy", retry_after=1.0)
            self.beginning.append(id)
            try:
                return await self._begin(id, data, size)
            except RunError as error:
                if error.reason != "conflict" or self.busy == "refuse" or clock() > until:
                    raise
            finally:
                self.beginning.remove(id)
            await until_gone(receive, lambda: asyncio.sleep(0.05))

    async def _settle(self, id: str, receive: Receive, seconds: float) -> None:
        """Wait until no turn is open.

        Raises ``RunError("conflict")`` if a turn stays open for too long.
        """

        async def settle() -> None:
            while (run := await self._open_run(id)) is not None:
                with suppress(LLMError):  # the run may have ended with an error
                    await self._events(run).pipe(ops.to_text())
                await asyncio.sleep(0.01)  # the turn may not have been saved yet

        # The first check is not limited by `seconds`. In a busy event loop, such a timeout could expire although no
        # turn is open.
        if await self._open_run(id) is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await until_gone(receive, settle)
        except TimeoutError:
            raise RunError("conflict") from None

    async def _begin(self, id: str, data: Any, size: int) -> tuple[str, list[Event], Any]:
        saved = await self._load(id)
        session = saved.session
        if self.system is not None and not session.messages:
            session = session.with_thread(Thread().add_system(self.system))
        _, read = _READERS[self.protocol]
        size += session_size(session)
        incoming = await off_loop(size, read, data, session, client_tools=self.client_tools)
        # If the last message is from the user, the page shows this turn in a new assistant message.
        is_message = data["messages"] and data["messages"][-1]["role"] == "user"
        before = events_of_open_calls(incoming.thread) if is_message and self.protocol == "ui" else []
        thread = without_refused(session, incoming.thread)
        session, encoder, tools = session.with_thread(thread), self.protocol, dict[str, Tool]()
        if isinstance(incoming, AGUIInput):
            own = {tool.name for tool in self.engine.tools}
            tools = {tool.name: tool for tool in incoming.tools if tool.name not in own}
            encoder = incoming.encoder()
        if await off_loop(size, self._is_too_long, session):
            raise RefusedError(413, "this conversation is too long; start a new one", "conversation_too_long")
        answers: dict[str, Any] = {"approvals": incoming.approvals, "results": incoming.results}
        rxllm.stream_resume(self.engine.with_tools(*tools.values()), session.thread, **answers)  # checks the answers
        input = {**answers, "tools": [*tools.values()]}
        run = await in_time(self.runs.start(self.path, input, session=replace(saved, session=session)))
        return run, before, encoder


def _log_recovery(error: Exception) -> None:
    log.warning("web.chat: the search for lost runs has failed", exc_info=error)


def _refusal(error: RefusedError | LLMError) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if OUTDATED in error.metadata:
        return RefusedError(409, str(error), OUTDATED)
    if isinstance(error, ValidationError) and error.reason == "invalid_request":
        return RefusedError(400, str(error), error.reason)
    if error.reason == "conflict":
        return RefusedError(409, "another answer in this conversation is under way", "busy", retry_after=1.0)
    log_hidden(error, "web.chat: a request failed")
    return RefusedError(_STATUSES.get(error.reason, 500), f"{error.TITLE}: {error.reason}", error.reason)
