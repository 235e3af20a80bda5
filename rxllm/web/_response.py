"""A stream as a web server's response: an ASGI application that sends server-sent events.

============================  ==========================================================================================
while                         the response
============================  ==========================================================================================
there is no event yet         sends its head at once, so that a browser knows that its question has arrived
the model is silent           sends a comment every `heartbeat` seconds, so that no proxy closes the connection
the browser is slow           stops reading the model's socket once `WAITING` events are waiting
the browser reads nothing     ends after `send_timeout` seconds
the stream fails              sends the error as a frame; the status stays 200
the browser leaves            disposes its subscription, which ends the call
the server stops              does the same when the server cancels it
============================  ==========================================================================================

On ASGI 2.4 servers Starlette's own ``StreamingResponse`` notices a disconnect only when it writes; this response
listens for it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, cast

from reactivex import Observable

from rxllm import ErrorEvent, Event, Stream, StreamError, to_async_iter
from rxllm import operators as ops
from rxllm.values.argument_checks import check, check_instance, is_positive
from rxllm.web._codec import Encoder, encoder
from rxllm.web._for_client import for_client
from rxllm.web._frames import sse

Message = Any  # a mapping, for which each framework has its own type
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]
Filter = Callable[[Observable[Event]], Observable[Event]]

WAITING = 16
"""Maximum events waiting for a slow browser, besides the events in its socket; then the model's socket must wait."""

HEARTBEAT = b":\n\n"
"""A comment, which readers of server-sent events ignore."""

_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def streaming_response(
    stream: Observable[Event],
    protocol: str | Encoder = "rxllm",
    *,
    heartbeat: float | None = 15.0,
    send_timeout: float = 60.0,
    headers: Mapping[str, str] | None = None,
    filter: Filter | None = None,
) -> StreamingResponse:
    """Return `stream` as a response for Starlette, FastAPI, Litestar and any other ASGI server.

    It is an ASGI application: return it from a route, or ``await response(scope, receive, send)``. It subscribes once,
    when the server calls it, and disposes its subscription when the browser leaves.

    Arguments:
        protocol: The name of a protocol, or an encoder.
        heartbeat: Seconds of silence before a comment is sent; None sends no comments.
        send_timeout: Seconds that a browser may go without reading before the response ends.
        headers: Headers that extend or replace the headers for server-sent events and for the protocol.
        filter: The operator that removes what must not leave the server, instead of `for_client`.

    Raises ``ValidationError("invalid_option")`` for wrong arguments.
    """
    check_instance("stream", stream, Observable, "a stream of events, as rxllm.stream(...) returns")
    is_none_or_positive = heartbeat is None or is_positive(heartbeat)
    check("heartbeat", heartbeat, is_none_or_positive, "a number of seconds above 0, or None")
    check("send_timeout", send_timeout, is_positive(send_timeout), "a number of seconds above 0")
    is_name = isinstance(protocol, str) or not hasattr(protocol, "feed")
    frames = encoder(cast(str, protocol)) if is_name else cast(Encoder, protocol)
    chunks = stream.pipe(ops.errors_as_events(), filter or for_client(), ops.lift(lambda: _Chunks(frames)))
    fields = _encode_headers(
        _HEADERS | frames.HEADERS | {name.lower(): value for name, value in (headers or {}).items()}
    )
    responses = sys.modules.get("starlette.responses")
    cls = StreamingResponse if responses is None else _starlette_response(responses.Response)
    return cls(chunks, frames, fields, heartbeat or math.inf, send_timeout)


class StreamingResponse:
    """The response to a request, with the attributes that Starlette expects."""

    def __init__(
        self, chunks: Stream[bytes], encoder: Encoder, headers: Fields, heartbeat: float, send_timeout: float
    ) -> None:
        self._chunks = chunks
        self._encoder = encoder
        self._heartbeat = heartbeat
        self._send_timeout = send_timeout
        self.status_code = 200
        self.raw_headers = headers
        self.background: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        client = Client(send, self.status_code, self.raw_headers)
        write = self._write_head if scope["method"] == "HEAD" else self._write
        with suppress(GoneError):
            await until_gone(receive, lambda: write(client), lambda: client.watch(self._heartbeat, self._send_timeout))
        if self.background is not None:
            await self.background()

    async def _write_head(self, client: Client) -> None:
        await client.send(b"", more=False)

    async def _write(self, client: Client) -> None:
        """Send all chunks. If the stream breaks, send an error frame to the client, then raise the stream's error."""
        await client.begin()
        try:
            async with to_async_iter(self._chunks, WAITING) as chunks:
                async for chunk in chunks:
                    await client.send(chunk)
        except GoneError:
            raise
        except Exception:
            last = _Chunks(self._encoder)
            error = (*last.feed(ErrorEvent(StreamError("unknown"))), *last.close())
            await client.send(b"".join(error), more=False)
            raise
        await client.send(b"", more=False)


class _Chunks:
    """Turns events into bytes."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def feed(self, event: Event) -> Iterable[bytes]:
        frames = b"".join(map(sse, self._encoder.feed(event)))
        return (frames,) if frames else ()

    def close(self) -> Iterable[bytes]:
        return (b"".join(map(sse, self._encoder.close())) + self._encoder.END,)


def _encode_headers(headers: Mapping[str, str]) -> Fields:
    for name, value in headers.items():
        check("headers", value, not any(end in name + value for end in "\r\n\0"), f"one line for {name!r}")
    # HTTP/2 forbids the header "connection".
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if name != "connection"]


@cache
def _starlette_response(base: type[Any]) -> type[StreamingResponse]:
    """Return a `StreamingResponse` that is also Starlette's response: FastAPI turns any other object into JSON."""
    return type("StreamingResponse", (StreamingResponse, base), {})


# The client of a request, here and in `rxllm.web._openai_app`


class GoneError(Exception):
    """The client has left, or has stopped reading."""


class Client:
    """The client of a request. The head of the response, `status` and `headers`, is sent before its first bytes."""

    def __init__(self, send: Send, status: int, headers: Fields) -> None:
        self.status = status
        self.headers = headers
        self.begun = False
        self._send = send
        self._lock = asyncio.Lock()  # a server takes one message at a time
        self._now = asyncio.get_running_loop().time
        self._since = self._now()  # when the latest send began or, once it is over, ended

    async def begin(self) -> None:
        """Send the head at once."""
        async with self._lock:
            if not self.begun:
                await self._begin()

    async def send(self, body: bytes, *, more: bool = True) -> None:
        async with self._lock:
            self._since = self._now()
            if not self.begun:
                await self._begin()
            await self._try({"type": "http.response.body", "body": body, "more_body": more})
            self._since = self._now()

    async def watch(self, heartbeat: float, patience: float) -> None:
        """Send a comment after each `heartbeat` of silence; raise `GoneError` if a send exceeds `patience`."""
        while True:
            is_behind = self._lock.locked()
            seconds = self._since + (patience if is_behind else heartbeat) - self._now()
            if seconds > 0:
                await asyncio.sleep(min(seconds, heartbeat, patience))  # the client may fall behind, or catch up
            elif is_behind:
                raise GoneError
            else:
                try:
                    async with asyncio.timeout(patience):
                        await self.send(HEARTBEAT)
                except TimeoutError:
                    raise GoneError from None

    async def _begin(self) -> None:
        self.begun = True
        await self._try({"type": "http.response.start", "status": self.status, "headers": self.headers})

    async def _try(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # some servers raise it when the client has left
            raise GoneError from error


async def until_gone(receive: Receive, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run all of `work` concurrently until the first ends. Raise `GoneError` once the client has left."""
    leaving = asyncio.ensure_future(_wait_until_gone(receive))
    tasks = [leaving]
    try:
        await asyncio.sleep(0)  # the client may have left already
        if not leaving.done():
            tasks = [*(asyncio.ensure_future(start()) for start in work), leaving]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise GoneError
