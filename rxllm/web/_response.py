"""An ASGI response that streams events to a browser.

============================  ==========================================================================================
situation                     reaction
============================  ==========================================================================================
there is no event yet         The status and headers are sent at once, to show the browser that its request arrived.
the model is silent           A comment is sent every `heartbeat` seconds, so that no proxy closes the connection.
the browser reads slowly      While `WAITING` events are queued, no more data is read from the model's socket.
the browser stops reading     The response ends after `send_timeout` seconds.
the stream fails              The error is sent as a frame. The status remains 200.
the browser disconnects       The subscription is disposed, which ends the model call.
the server shuts down         The server cancels the response, which also disposes of the subscription.
============================  ==========================================================================================

Starlette's own ``StreamingResponse`` may notice a disconnect only on its next write. This response notices it
immediately.
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
from rxllm.values.argument_checks import check, check_instance, invalid_option, is_positive
from rxllm.web._codec import Encoder, encoder
from rxllm.web._for_client import for_client
from rxllm.web._frames import sse

Message = Any  # every framework uses a different mapping type for messages
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]
Filter = Callable[[Observable[Event]], Observable[Event]]

WAITING = 16
"""The maximum number of queued events. When it is reached, reading from the model pauses."""

HEARTBEAT = b":\n\n"
"""A comment in a stream of server-sent events. Clients ignore it."""

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
    """Return a response that sends `stream` to a browser.

    The response is an ASGI application that works with Starlette, FastAPI, Litestar and any other ASGI framework.
    Return it from a route, or call it: ``await response(scope, receive, send)``. It subscribes to `stream` when it is
    called, and disposes of the subscription if the browser disconnects.

    Arguments:
        protocol: The name of a protocol, or an encoder.
        heartbeat: A comment is sent after this many seconds of silence. With None, no comments are sent.
        send_timeout: The response ends if the browser reads nothing for this many seconds.
        headers: Extra headers, which replace default headers of the same name.
        filter: An operator that replaces `for_client`. It must hide internal data from browsers.

    Raises ``ValidationError("invalid_option")`` for invalid arguments.
    """
    check_instance("stream", stream, Observable, "a stream of events, such as rxllm.stream(...)")
    is_none_or_positive = heartbeat is None or is_positive(heartbeat)
    check("heartbeat", heartbeat, is_none_or_positive, "a positive number of seconds, or None")
    check("send_timeout", send_timeout, is_positive(send_timeout), "a positive number of seconds")
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
    """The response to one request. Its public attributes are those that Starlette expects of a response."""

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
        """Send all chunks. If an exception is raised, send an error frame and re-raise the exception."""
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
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def feed(self, event: Event) -> Iterable[bytes]:
        frames = b"".join(map(sse, self._encoder.feed(event)))
        return (frames,) if frames else ()

    def close(self) -> Iterable[bytes]:
        return (b"".join(map(sse, self._encoder.close())) + self._encoder.END,)


def _encode_headers(headers: Mapping[str, str]) -> Fields:
    for name, value in headers.items():
        if any(end in name + value for end in "\r\n\0"):
            raise invalid_option("headers", f"must not contain line breaks or null characters, but {name!r} does")
    # HTTP/2 forbids the "connection" header.
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if name != "connection"]


@cache
def _starlette_response(base: type[Any]) -> type[StreamingResponse]:
    """Return a subclass of both `StreamingResponse` and `base`. `base` is Starlette's ``Response`` class.

    FastAPI converts a result to JSON unless the result is an instance of Starlette's class.
    """
    return type("StreamingResponse", (StreamingResponse, base), {})


# Everything below is also used by `rxllm.web._chat` and `rxllm.web._openai_app`.


class GoneError(Exception):
    """Raised if the client has disconnected, or has stopped reading."""


class Client:
    """The connection to a client."""

    def __init__(self, send: Send, status: int, headers: Fields) -> None:
        self.status = status
        self.headers = headers
        self.begun = False
        self._send = send
        self._lock = asyncio.Lock()  # only one message can be sent at a time
        self._now = asyncio.get_running_loop().time
        self._since = self._now()  # the time at which the current send began or the last one ended

    async def begin(self) -> None:
        """Send the status and headers if they have not been sent yet."""
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
        """Send a comment after every `heartbeat` seconds in which nothing was sent.

        Raises `GoneError` if a single send takes `patience` seconds.
        """
        while True:
            is_behind = self._lock.locked()
            seconds = self._since + (patience if is_behind else heartbeat) - self._now()
            if seconds > 0:
                await asyncio.sleep(min(seconds, heartbeat, patience))  # a send may start or end while we sleep
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
        except OSError as error:  # some servers raise this after a disconnect
            raise GoneError from error


async def until_gone(receive: Receive, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the `work` functions until one of them ends. Raise `GoneError` if the client disconnects first."""
    leaving = asyncio.ensure_future(_wait_until_gone(receive))
    tasks = [leaving]
    try:
        await asyncio.sleep(0)  # the client may have disconnected already
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
