"""An app that serves engines over OpenAI's Chat Completions API.

===========================================  ===========================================================================
request                                      response
===========================================  ===========================================================================
``POST /v1/chat/completions``                the answer from the engine named in ``model``, run with ``rxllm.stream``
``GET /v1/models``, ``GET /v1/models/NAME``  the engines' names, or the entry for the engine ``NAME``
===========================================  ===========================================================================

The status and headers of a stream are sent with its first chunk, or after `HEARTBEAT` seconds if there is no chunk
yet. If an error occurs earlier, the response has the error's own status. A later error is sent as a frame with an
``error`` field, and is not followed by ``[DONE]``. If a client disconnects, its run ends. If a client reads slowly, the
model is slowed down.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import rxllm
from rxllm import Engine, Event, ToolExecutionCompleted
from rxllm.runtime import log_hidden
from rxllm.values.argument_checks import check, check_count, invalid_option
from rxllm.web._frames import Frame, frame_json, sse
from rxllm.web._openai_answer import Answer, Memory
from rxllm.web._openai_errors import RefusedError, refusal_of
from rxllm.web._openai_request import Chat, read_request, unknown_model
from rxllm.web._response import Client, Fields, GoneError, Receive, Send, until_gone

log = logging.getLogger("rxllm")

READING = 30.0
"""The time limit for a request's body, in seconds."""

HEARTBEAT = 15.0
"""The number of seconds of silence after which a comment is sent, so that no proxy closes the connection."""

LONG = 100_000
"""The size in bytes above which a request is parsed in a separate thread."""

LEAVING = 1.0
"""The time limit for sending a final error, in seconds."""

_DIGITS = 19
"""The maximum number of digits of a length. ``int`` refuses thousands of digits."""

_JSON = {"content-type": "application/json"}
_SSE = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}

App = Callable[[Any, Receive, Send], Coroutine[Any, Any, None]]


def openai_app(
    engines: Mapping[str, Engine | str | Any],
    *,
    key: str | None = None,
    timeout: float = 600.0,
    max_body: int = 16 * 2**20,
    max_requests: int = 100,
) -> App:
    """Return an ASGI app that serves `engines` as OpenAI models.

    >>> app = openai_app({"support": rxllm.Fake("Hello")})

    The app speaks the Chat Completions API. Run it on any ASGI server, or mount it in Starlette or FastAPI. Clients use
    the app's address plus ``/v1`` as their ``base_url``, and see each engine as a model. The engine's own tools run on
    the server, unseen by the client. The client runs its own tools, and sends their results with its next request.

    If a `key` is given, every client must send it. Without a `key`, requests from web pages, which have an ``Origin``
    header, are rejected. A request that takes longer than `timeout` seconds fails with status 408. A request whose body
    is longer than `max_body` bytes fails with 413. If `max_requests` requests are already running, a new one fails with
    503.

    Raises ``ValidationError("invalid_option")`` for invalid arguments, and the same errors as ``rxllm.stream`` for an
    invalid engine.
    """
    check_count("max_body", max_body)
    check_count("max_requests", max_requests)
    is_above_0 = isinstance(timeout, int | float) and timeout > 0  # pyright: ignore[reportUnnecessaryIsInstance]
    check("timeout", timeout, is_above_0, "a positive number of seconds")
    if key is not None and not (
        isinstance(cast(Any, key), str) and key.isascii() and key.isprintable() and key.strip()
    ):
        raise invalid_option("key", "must be a non-empty string of printable ASCII, or None for no key")
    return _App(_check_engines(engines), key, timeout, max_body, max_requests)


def _check_engines(engines: Mapping[str, Any]) -> dict[str, Engine]:
    names = list[Any](engines) if isinstance(cast(Any, engines), Mapping) else []
    fits = bool(names) and all(isinstance(name, str) and name for name in names)
    check("engines", engines, fits, 'a mapping of names to engines, such as {"support": engine}')
    checked = {name: engine if isinstance(engine, Engine) else Engine(engine) for name, engine in engines.items()}
    for engine in checked.values():
        rxllm.stream(engine, "Hi")  # checks the engine without sending anything
    return checked


class _App:
    def __init__(
        self, engines: dict[str, Engine], key: str | None, timeout: float, max_body: int, max_requests: int
    ) -> None:
        self._engines = engines
        self._key = None if key is None else key.strip().encode()
        self._timeout = timeout
        self._max_body = max_body
        self._places = asyncio.Semaphore(max_requests)
        self._memory = Memory()
        self._started = int(time.time())

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._respond(scope, receive, Response(send))
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for engine in self._engines.values():
            await rxllm.aclose(engine)
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Any, receive: Receive, response: Response) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._route(scope, receive, response)
        except GoneError:
            return
        except Exception as error:
            refusal = refusal_of(error)
            if isinstance(error, rxllm.LLMError):
                log_hidden(error, "openai_app: request %s failed", response.id)
            elif refusal.status >= 500:
                trace = None if isinstance(error, RefusedError) else error
                log.error("openai_app: request %s failed: %r", response.id, error, exc_info=trace)
            with suppress(TimeoutError, GoneError):
                async with asyncio.timeout(LEAVING):
                    await response.fail(refusal)

    async def _route(self, scope: Any, receive: Receive, response: Response) -> None:
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        self._authorize(headers)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        match scope["method"], path:
            case "POST", "/v1/chat/completions":
                body = await read_body(receive, headers, self._max_body)
                if self._places.locked():  # a client that sends its body slowly takes no place
                    raise RefusedError(503, "this server is busy", "busy", retry_after=1.0)
                async with self._places:
                    await self._chat(body, receive, response)
            case "GET", "/v1/models":
                models = [self._model(name) for name in self._engines]
                await response.json({"object": "list", "data": models})
            case "GET", _ if path.startswith("/v1/models/"):
                await response.json(self._model(path.removeprefix("/v1/models/")))
            case _, "/v1/chat/completions" | "/v1/models":
                message = f"method {scope['method'][:20]} is not allowed for this path"
                raise RefusedError(405, message, "method_not_allowed")
            case _:
                message = "no such path; use /v1/chat/completions or /v1/models"
                raise RefusedError(404, message, "not_found")

    def _authorize(self, headers: Mapping[str, bytes]) -> None:
        if self._key is None:
            if "origin" in headers:  # any web page can make a browser call a local server
                message = "requests from web pages are rejected unless the server has a key: openai_app(..., key=...)"
                raise RefusedError(403, message, "origin_not_allowed")
            return
        scheme, _, key = headers.get("authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            raise RefusedError(401, "the API key is missing or wrong", "invalid_api_key")

    def _model(self, name: str) -> Frame:
        if name not in self._engines:
            raise unknown_model(name)
        return {"id": name, "object": "model", "created": self._started, "owned_by": "rxllm"}

    async def _chat(self, body: bytes, receive: Receive, response: Response) -> None:
        # Parsing a long request can take a second.
        reading = asyncio.to_thread(self._read, body) if len(body) > LONG else None
        chat, thread = self._read(body) if reading is None else await reading
        watch = [lambda: response.watch(HEARTBEAT, self._timeout)] if chat.stream else []
        await until_gone(receive, lambda: self._complete(chat, thread, response), *watch)

    def _read(self, body: bytes) -> tuple[Chat, rxllm.Thread]:
        """Return the request in `body`, and its thread with the full messages of earlier runs restored."""
        chat = read_request(body, self._engines)
        return chat, self._memory.restore(chat.model, chat.thread)

    async def _complete(self, chat: Chat, thread: rxllm.Thread, response: Response) -> None:
        engine = self._engines[chat.model]
        holds = not chat.stream or (chat.is_structured and _has_steps(engine, chat))
        answer = Answer(f"chatcmpl-{response.id}", chat, holds=holds)
        async with rxllm.to_async_iter(_events(engine, thread, chat, response.id)) as events:
            async for event in events:
                if isinstance(event, ToolExecutionCompleted) and event.error is not None:
                    log_hidden(event.error, "openai_app: a tool failed in request %s", response.id)
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
    """Return whether a chat with a structured answer may take more than one step."""
    return bool(engine.tools or chat.tools or engine.params.keys() & {"tools", "structured_finalize"})


def _events(engine: Engine, thread: rxllm.Thread, chat: Chat, request_id: str) -> rxllm.Stream[Event]:
    more: dict[str, Any] = {"tools": chat.tools} if chat.tools else {}
    if chat.notes:
        more["metadata"] = {**(engine.params.get("metadata") or {}), "client": chat.notes}
    return rxllm.stream(engine, thread, request_id=request_id, include_raw_chunks=False, **chat.options, **more)


class Response(Client):
    """A response that is sent as JSON or as server-sent events. Its `id` is sent as ``x-request-id``."""

    def __init__(self, send: Send) -> None:
        self.id = uuid.uuid4().hex
        super().__init__(send, 200, self._fields(_SSE))

    async def json(self, frame: Frame, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        body = frame_json(frame)
        self.status, self.headers = status, self._fields({**_JSON, "content-length": str(len(body)), **headers})
        await self.send(body, more=False)

    async def frames(self, frames: Iterable[Frame], end: bytes = b"") -> None:
        """Send `frames` as server-sent events. If `end` is given, send it too and finish the response."""
        await self.send(b"".join(map(sse, frames)) + end, more=not end)

    async def fail(self, error: RefusedError) -> None:
        """Send `error` as the last frame if the response has begun, or else as the whole response."""
        if self.begun:
            await self.send(sse(error.body), more=False)
        else:
            await self.json(error.body, error.status, error.headers)

    def _fields(self, headers: Mapping[str, str]) -> Fields:
        return [(name.encode(), value.encode()) for name, value in {**headers, "x-request-id": self.id}.items()]


async def read_body(receive: Receive, headers: Mapping[str, bytes], most: int) -> bytes:
    """Read the body of a request.

    Raises `RefusedError` if the body is too long or arrives too slowly. Raises `GoneError` if the client disconnects.
    """
    too_large = RefusedError(413, f"the request body is longer than {most} bytes", "request_too_large")
    length = headers.get("content-length", b"0")
    if length.isdigit() and (len(digits := length.lstrip(b"0")) > _DIGITS or int(digits or b"0") > most):
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
        raise RefusedError(408, f"the request body did not arrive within {READING:g} seconds", "timeout") from None
    return b"".join(parts)
