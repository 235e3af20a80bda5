"""A stream as the response of a web server: an ASGI application that sends its frames as server-sent events.

============================  ==========================================================================================
while                         it
============================  ==========================================================================================
nobody reads yet              sends its head at once, so that a browser knows that its question has arrived
the model is silent           sends a comment every `heartbeat` seconds, so that no proxy gives up
the browser is slow           stops reading the model's socket, once `WAITING` events wait
the browser takes nothing     ends after `send_timeout` seconds
the stream fails              sends the error as a frame; the status stays 200
the browser leaves            disposes its subscription, and with it the call
the server stops              the same, when the server cancels it
============================  ==========================================================================================

On servers of ASGI 2.4 Starlette's own ``StreamingResponse`` sees a browser leave only when it writes; this one listens.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, cast

from reactivex import Observable, abc

from rxllm import ErrorEvent, Event, Stream, StreamError, to_async_iter
from rxllm import operators as ops
from rxllm.values.argument_checks import check, check_instance, is_positive
from rxllm.web._codec import Encoder, encoder, sse
from rxllm.web._for_client import for_client

Message = Any  # a mapping, of which each framework has a type of its own
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Filter = Callable[[Observable[Event]], Observable[Event]]

HEARTBEAT = b":\n\n"
"""A comment, which readers of server-sent events leave out."""

WAITING = 16
"""How many events wait for a slow browser, beside what its socket holds, before the model's socket is left alone."""

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

    It is an ASGI application: return it from a route, or ``await response(scope, receive, send)``. It subscribes when
    the server calls it, once, and disposes its subscription when the browser leaves.

    Arguments:
        protocol: The name of one, or an encoder.
        heartbeat: After how many seconds of silence a comment is sent; None sends none.
        send_timeout: For how many seconds a browser may take nothing before it is left.
        headers: Headers beside those of server-sent events and of the protocol; one of the same name replaces it.
        filter: The operator that decides what may leave, instead of `for_client`.

    Raises ``ValidationError("invalid_option")`` for wrong arguments.
    """
    responses = sys.modules.get("starlette.responses")
    cls = StreamingResponse if responses is None else _starlette_response(responses.Response)
    return cls(stream, protocol, heartbeat, send_timeout, headers or {}, filter or for_client())


class StreamingResponse:
    """The response to one request, with what Starlette looks for in one."""

    def __init__(
        self,
        stream: Observable[Event],
        protocol: str | Encoder,
        heartbeat: float | None,
        send_timeout: float,
        headers: Mapping[str, str],
        filter: Filter,
    ) -> None:
        check_instance("stream", stream, Observable, "a stream of events, as rxllm.stream(...) returns")
        check(
            "heartbeat", heartbeat, heartbeat is None or is_positive(heartbeat), "a number of seconds above 0, or None"
        )
        check("send_timeout", send_timeout, is_positive(send_timeout), "a number of seconds above 0")
        is_name = isinstance(protocol, str) or not hasattr(protocol, "feed")
        self._encoder = encoder(cast(str, protocol)) if is_name else cast(Encoder, protocol)
        self._stream = stream.pipe(ops.errors_as_events(), filter, ops.lift(lambda: _Chunks(self._encoder)))
        self._heartbeat = heartbeat or math.inf
        self._send_timeout = send_timeout
        self.status_code = 200
        self.raw_headers = _raw(_HEADERS | self._encoder.HEADERS | {name.lower(): headers[name] for name in headers})
        self.background: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_leave(receive))
        try:
            await asyncio.sleep(0)  # it may have left already
            if leaving.done():
                leaving.result()
            else:
                with suppress(_Left):
                    await self._respond(scope, leaving, _Browser(send))
        finally:
            leaving.cancel()
        if self.background is not None:
            await self.background()

    async def _respond(self, scope: Message, leaving: asyncio.Task[None], browser: _Browser) -> None:
        await browser.send_head(self.status_code, self.raw_headers)
        if scope["method"] == "HEAD":
            await browser.send(b"", more=False)
            return
        chunks = _Beating(self._stream)
        writing = asyncio.create_task(_write(chunks, self._encoder, browser))
        try:
            for task in await self._watch(browser, chunks, {leaving, writing}):
                task.result()
        finally:
            writing.cancel()
            await asyncio.wait({writing})  # its subscription is disposed

    async def _watch(
        self, browser: _Browser, chunks: _Beating, tasks: set[asyncio.Task[None]]
    ) -> set[asyncio.Task[None]]:
        """Return when the browser has left, takes nothing any more, or has everything: which of `tasks` are done."""
        now = asyncio.get_running_loop().time
        while True:
            limit = self._send_timeout if browser.is_behind else self._heartbeat
            seconds = browser.since + limit - now()
            if seconds > 0:
                seconds = min(seconds, self._send_timeout)  # it may fall behind meanwhile
                done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return done
            elif browser.is_behind:
                return set()
            else:
                browser.since = now()
                chunks.beat()


class _Left(Exception):  # noqa: N818 no error
    """The browser has left."""


class _Browser:
    """What the server sends to: whether it takes it, and since when it does so."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._now = asyncio.get_running_loop().time
        self.since = self._now()
        self.is_behind = False

    async def send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._try({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, body: bytes, *, more: bool = True) -> None:
        self.since, self.is_behind = self._now(), True
        await self._try({"type": "http.response.body", "body": body, "more_body": more})
        self.since, self.is_behind = self._now(), False

    async def _try(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # how a server may say it
            raise _Left from error


class _Chunks:
    """The bytes of each event."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def feed(self, event: Event) -> Iterable[bytes]:
        frames = b"".join(map(sse, self._encoder.feed(event)))
        return (frames,) if frames else ()

    def close(self) -> Iterable[bytes]:
        return (b"".join(map(sse, self._encoder.close())) + self._encoder.END,)


class _Beating(Stream[bytes]):
    """The chunks of a stream, and heartbeats between them."""

    def __init__(self, source: Observable[bytes]) -> None:
        self._source = source
        self._observer: abc.ObserverBase[bytes] | None = None
        super().__init__(self._begin)

    def _begin(
        self, observer: abc.ObserverBase[bytes], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        self._observer = observer
        return self._source.subscribe(observer, scheduler=scheduler)

    def beat(self) -> None:
        if self._observer is not None:
            self._observer.on_next(HEARTBEAT)


async def _write(stream: Observable[bytes], encoder: Encoder, browser: _Browser) -> None:
    """Send all chunks. Raise the error of a stream that is broken, rather than failed, once the browser knows."""
    with suppress(_Left):
        try:
            async with to_async_iter(stream, WAITING) as chunks:
                async for chunk in chunks:
                    await browser.send(chunk)
        except _Left:
            raise
        except Exception:
            last = _Chunks(encoder)
            error = (*last.feed(ErrorEvent(StreamError("unknown"))), *last.close())
            await browser.send(b"".join(error), more=False)
            raise
        await browser.send(b"", more=False)


async def _leave(receive: Receive) -> None:
    """Return when the browser has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    for name, value in headers.items():
        check("headers", value, not any(end in name + value for end in "\r\n\0"), f"one line for {name!r}")
    # Whether a connection lives on is between servers, and HTTP/2 forbids to say it.
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if name != "connection"]


@cache
def _starlette_response(base: type[Any]) -> type[StreamingResponse]:
    """Return the class with Starlette's as a base: FastAPI makes JSON of anything else."""
    return type("StreamingResponse", (StreamingResponse, base), {})
