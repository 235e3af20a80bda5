"""One request of Chat Completions: its body, and its response as JSON or as a stream."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping

from rxllm.web._codec import Frame, frame_json, sse
from rxllm.web._http import Client, Fields, GoneError, Receive, Send
from rxllm.web._openai_errors import RefusedError

READING = 30.0
"""How many seconds the body of a request may take."""

HEARTBEAT = 15.0
"""After how many seconds of silence a stream has a comment, so that no proxy gives up."""

_JSON = {"content-type": "application/json"}
_SSE = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


class Response(Client):
    """The response to one request, as JSON or as server-sent events, with an `id`."""

    def __init__(self, send: Send) -> None:
        self.id = uuid.uuid4().hex
        super().__init__(send, 200, self._fields(_SSE))

    async def json(self, frame: Frame, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        body = frame_json(frame)
        self.status, self.headers = status, self._fields({**_JSON, "content-length": str(len(body)), **headers})
        await self.send(body, more=False)

    async def frames(self, frames: Iterable[Frame], end: bytes = b"") -> None:
        """Send `frames` as server-sent events, and if there is an `end` nothing after it."""
        await self.send(b"".join(map(sse, frames)) + end, more=not end)

    async def fail(self, error: RefusedError) -> None:
        """Send `error`: as the response, or as the last frame of one that has begun."""
        if self.begun:
            await self.send(sse(error.body), more=False)
        else:
            await self.json(error.body, error.status, error.headers)

    def _fields(self, headers: Mapping[str, str]) -> Fields:
        return [(name.encode(), value.encode()) for name, value in {**headers, "x-request-id": self.id}.items()]


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
