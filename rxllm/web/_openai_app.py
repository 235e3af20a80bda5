"""Serve engines as OpenAI's Chat Completions, for programs in any language.

===========================================  ===========================================================================
request                                      response
===========================================  ===========================================================================
``POST /v1/chat/completions``                the answer of ``rxllm.stream`` by the engine that `model` names
``GET /v1/models``, ``GET /v1/models/NAME``  the names of the engines
===========================================  ===========================================================================

Nothing is sent before the answer begins, so that an error before it has a status; one after it is a frame with an
``error``, and no ``[DONE]``. A client that leaves disposes its run, and one that reads slowly holds back the model.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import rxllm
from rxllm import Engine, Event
from rxllm.web._codec import Frame, frame_json, sse
from rxllm.web._openai_answer import Answer
from rxllm.web._openai_errors import RefusedError, refusal_of
from rxllm.web._openai_memory import Memory
from rxllm.web._openai_request import Chat, read_request, unknown_model

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Coroutine[Any, Any, None]]

READING = 30.0
"""How many seconds the body of a request may take."""

LEAVING = 1.0
"""How many seconds a client may take to read the error that ends its answer."""

_JSON = {"content-type": "application/json"}
_SSE = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}

log = logging.getLogger("rxllm")


def openai_app(
    engines: Mapping[str, Engine | str | Any],
    *,
    key: str | None = None,
    timeout: float = 600.0,
    max_body: int = 16 * 2**20,
    max_requests: int = 100,
) -> App:
    """Return an ASGI app that serves `engines`, by the names of models, as OpenAI's Chat Completions.

    >>> app = openai_app({"support": rxllm.Fake("Hello")})

    Serve it with any ASGI server, or mount it in Starlette or FastAPI; ``base_url`` of a client ends with ``/v1``. With
    all its operators, `prepare` and tools an engine answers like a model. Its own tools run here, and the client sees
    nothing of them; the client's tools are passed to the model, and answered in the client's next request.

    `key` is the one that clients must send; without it, requests of web pages (those with an ``Origin``) are refused. A
    request may take `timeout` seconds (408), its body `max_body` bytes (413), and `max_requests` are answered at a time
    (503).

    Raises ``ValidationError("invalid_option")`` for wrong arguments, and what ``rxllm.stream`` raises for an engine
    that is set up wrongly.
    """
    for name, value in (("timeout", timeout), ("max_body", max_body), ("max_requests", max_requests)):
        if not isinstance(value, int | float) or not value > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _invalid(name, f"must be a number above 0, not {str(value)[:80]!r}")
    return _App(_checked(engines), _checked_key(key), timeout, max_body, max_requests)


def _checked(engines: Any) -> dict[str, Engine]:
    if not isinstance(engines, Mapping) or not engines:
        raise _invalid("engines", 'must be a mapping of names to engines, such as {"support": engine}')
    checked: dict[str, Engine] = {}
    for name, engine in cast(Mapping[Any, Any], engines).items():
        if not isinstance(name, str) or not name:
            raise _invalid("engines", "must have names that are non-empty strings")
        checked[name] = engine if isinstance(engine, Engine) else Engine(engine)
        rxllm.stream(checked[name], "Hi")  # nothing is called before it is subscribed to
    return checked


def _checked_key(key: Any) -> bytes | None:
    if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable() and key.strip()):
        raise _invalid("key", "must be a non-empty string of ASCII, or None for no key")
    return None if key is None else key.encode()


def _invalid(name: str, fault: str) -> rxllm.ValidationError:
    return rxllm.ValidationError("invalid_option", errors=[((name,), fault)])


class GoneError(Exception):
    """The client has left."""


class _App:
    """The app: its engines, its limits, and the requests that it is answering."""

    def __init__(
        self, engines: dict[str, Engine], key: bytes | None, timeout: float, max_body: int, max_requests: int
    ) -> None:
        self._engines = engines
        self._key = key
        self._timeout = timeout
        self._max_body = max_body
        self._max_requests = max_requests
        self._memory = Memory()
        self._started = int(time.time())
        self._running = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._respond(scope, receive, _Response(send))
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for engine in self._engines.values():
            await rxllm.aclose(engine)
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Any, receive: Receive, response: _Response) -> None:
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._route(scope, receive, response)
            except TimeoutError:
                raise RefusedError(408, "the answer took too long", "timeout") from None
        except GoneError:
            return
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status >= 500:
                log.error("the request %s to openai_app failed", response.id, exc_info=error)
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVING):
                    await response.fail(refusal)

    async def _route(self, scope: Any, receive: Receive, response: _Response) -> None:
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        self._authorize(headers)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        match scope["method"], path:
            case "POST", "/v1/chat/completions":
                async with self._place():
                    body = await _body(receive, headers, self._max_body)
                    chat = read_request(body, self._engines)
                    await _until_gone(receive, self._complete(chat, response))
            case "GET", "/v1/models":
                models = [self._model(name) for name in self._engines]
                await response.json({"object": "list", "data": models})
            case "GET", _ if path.startswith("/v1/models/"):
                await response.json(self._model(path.removeprefix("/v1/models/")))
            case _, "/v1/chat/completions" | "/v1/models":
                raise RefusedError(405, f"this path has no method {scope['method'][:20]}", "method_not_allowed")
            case _:
                raise RefusedError(
                    404, "there is no such path; there are /v1/chat/completions and /v1/models", "not_found"
                )

    def _authorize(self, headers: Mapping[str, bytes]) -> None:
        if self._key is None:
            if "origin" in headers:  # any web page can send requests to a server on its reader's machine
                raise RefusedError(
                    403, "requests of web pages need a key: openai_app(..., key=...)", "origin_not_allowed"
                )
        elif not hmac.compare_digest(headers.get("authorization", b""), b"Bearer " + self._key):
            raise RefusedError(401, "the API key is missing or wrong", "invalid_api_key")

    def _model(self, name: str) -> Frame:
        if name not in self._engines:
            raise unknown_model(name)
        return {"id": name, "object": "model", "created": self._started, "owned_by": "rxllm"}

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        if self._running >= self._max_requests:
            raise RefusedError(503, "this server is busy", "busy", retry_after=1.0)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _complete(self, chat: Chat, response: _Response) -> None:
        engine = self._engines[chat.model]
        holds = not chat.stream or (chat.is_structured and _has_steps(engine, chat))
        answer = Answer(f"chatcmpl-{response.id}", chat, holds=holds)
        thread = self._memory.restore(chat.model, chat.thread)
        async with rxllm.to_async_iter(_events(engine, thread, chat, response.id)) as events:
            async for event in events:
                frames = answer.feed(event)
                if answer.error is not None:
                    if response.begun and chat.include_usage:
                        await response.frames([answer.usage_chunk()])
                    raise answer.error
                if chat.stream and frames:
                    await response.frames(frames)
        if answer.result is None:
            raise rxllm.StreamError("truncated")
        self._memory.keep(chat.model, chat.thread, thread, answer.result)
        if chat.stream:
            await response.frames(answer.last_chunks(), b"data: [DONE]\n\n")
        else:
            await response.json(answer.completion())


def _has_steps(engine: Engine, chat: Chat) -> bool:
    """Whether a structured answer may have text before its last step."""
    return bool(engine.tools or chat.tools or engine.params.keys() & {"tools", "structured_finalize"})


def _events(engine: Engine, thread: rxllm.Thread, chat: Chat, request_id: str) -> rxllm.Stream[Event]:
    more: dict[str, Any] = {"tools": chat.tools} if chat.tools else {}
    if chat.notes:
        more["metadata"] = {**(engine.params.get("metadata") or {}), "client": chat.notes}
    return rxllm.stream(engine, thread, request_id=request_id, include_raw_chunks=False, **chat.options, **more)


class _Response:
    """The response to one request."""

    def __init__(self, send: Send) -> None:
        self.id = uuid.uuid4().hex
        self.begun = False
        self._send = send

    async def json(self, frame: Frame, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        body = frame_json(frame)
        await self._begin(status, {**_JSON, "content-length": str(len(body)), **headers})
        await self._body(body, more=False)

    async def frames(self, frames: list[Frame], end: bytes = b"") -> None:
        """Send `frames`, and if there is an `end` nothing after it."""
        if not self.begun:
            await self._begin(200, _SSE)
        await self._body(b"".join(map(sse, frames)) + end, more=not end)

    async def fail(self, refusal: RefusedError) -> None:
        if self.begun:
            await self._body(sse(refusal.body), more=False)
        else:
            await self.json(refusal.body, refusal.status, refusal.headers)

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        fields = [(name.encode(), value.encode()) for name, value in {**headers, "x-request-id": self.id}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def _body(receive: Receive, headers: Mapping[str, bytes], most: int) -> bytes:
    """Return the body of a request. Raises `GoneError`, and `RefusedError` if it is too large or too slow."""
    too_large = RefusedError(413, f"the body has more than {most} bytes", "request_too_large")
    length = headers.get("content-length", b"0")
    if length.isdigit() and int(length) > most:
        raise too_large
    parts, size, more = list[bytes](), 0, True
    try:
        async with asyncio.timeout(READING):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                part, more = message.get("body", b""), message.get("more_body", False)
                parts.append(part)
                size += len(part)
                if size > most:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, "the body of the request took too long", "timeout") from None
    return b"".join(parts)


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until the client leaves. Raises `GoneError`."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise GoneError
        working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
