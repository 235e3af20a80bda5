"""One request of an ASGI server: its body, its response as JSON or as a stream, and whether its client is there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from rxllm.web._codec import Frame, frame_json, sse
from rxllm.web._openai_errors import RefusedError

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

READING = 30.0
"""How many seconds the body of a request may take."""

HEARTBEAT = 15.0
"""After how many seconds of silence a stream has a comment, so that no proxy gives up."""

_JSON = {"content-type": "application/json"}
_SSE = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


class GoneError(Exception):
    """The client has left."""


class Response:
    """The response to one request: its `id`, and whether it has `begun`."""

    def __init__(self, send: Send) -> None:
        self.id = uuid.uuid4().hex
        self.begun = False
        self._send = send
        self._lock = asyncio.Lock()  # a server takes one message at a time
        self._chunks = 0

    async def json(self, frame: Frame, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        body = frame_json(frame)
        await self._begin(status, {**_JSON, "content-length": str(len(body)), **headers})
        await self._put({"type": "http.response.body", "body": body})

    async def frames(self, frames: Iterable[Frame], end: bytes = b"") -> None:
        """Send `frames` as server-sent events, and if there is an `end` nothing after it."""
        await self._chunk(b"".join(map(sse, frames)) + end, more=not end)

    async def fail(self, error: RefusedError) -> None:
        """Send `error`: as the response, or as the last frame of one that has begun."""
        if self.begun:
            await self._chunk(sse(error.body), more=False)
        else:
            await self.json(error.body, error.status, error.headers)

    async def keep_alive(self) -> None:
        """Send comments whenever nothing else has been sent for a while."""
        while True:
            seen = self._chunks
            await asyncio.sleep(HEARTBEAT)
            if seen == self._chunks and not self._lock.locked():
                await self._chunk(b":\n\n", more=True)

    async def _chunk(self, data: bytes, *, more: bool) -> None:
        async with self._lock:
            if not self.begun:
                await self._begin(200, _SSE)
            await self._put({"type": "http.response.body", "body": data, "more_body": more})
            self._chunks += 1

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        fields = [(name.encode(), value.encode()) for name, value in {**headers, "x-request-id": self.id}.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": fields})

    async def _put(self, message: Any) -> None:
        try:
            await self._send(message)
        except OSError as error:  # how a server may tell that the client has left
            raise GoneError from error


async def read_body(receive: Receive, headers: Mapping[str, bytes], most: int) -> bytes:
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


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and what is to run `beside` it, until the client leaves. Raises `GoneError`."""
    working, leaving, *others = map(asyncio.ensure_future, (work, _gone(receive), *beside))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise GoneError
        working.result()
    finally:
        for task in (working, leaving, *others):
            task.cancel()
        await asyncio.gather(working, leaving, *others, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
