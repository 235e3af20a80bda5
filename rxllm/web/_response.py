"""A stream as the response of a web server: an ASGI application of server-sent events; and runs without a browser.

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
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import cache
from threading import RLock
from typing import Any, cast

from reactivex import Observable, Subject

from rxllm import ErrorEvent, Event, Stream, StreamError, to_async_iter
from rxllm import operators as ops
from rxllm.values.argument_checks import check, check_count, check_instance, check_seconds, invalid_option, is_positive
from rxllm.web._codec import Encoder, encoder, sse
from rxllm.web._for_client import for_client

# The client of one request to an ASGI server: what it is sent, and whether it is still there


Message = Any  # a mapping, of which each framework has a type of its own
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]

HEARTBEAT = b":\n\n"
"""A comment, which readers of server-sent events leave out."""


class GoneError(Exception):
    """The client has left, or takes nothing any more."""


class Client:
    """What the server sends to. The head of the response is `status` and `headers`, and goes before its first bytes."""

    def __init__(self, send: Send, status: int, headers: Fields) -> None:
        self.status = status
        self.headers = headers
        self.begun = False
        self._send = send
        self._lock = asyncio.Lock()  # a server takes one message at a time
        self._now = asyncio.get_running_loop().time
        self._since = self._now()  # when the latest message was taken, or sent if it is not taken yet

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
        """Send a comment after each `heartbeat` of silence. Raise `GoneError` if nothing is taken for `patience`."""
        while True:
            is_behind = self._lock.locked()
            seconds = self._since + (patience if is_behind else heartbeat) - self._now()
            if seconds > 0:
                await asyncio.sleep(min(seconds, heartbeat, patience))  # it may fall behind, or catch up, meanwhile
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
        except OSError as error:  # how a server may tell that the client has left
            raise GoneError from error


async def until_gone(receive: Receive, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do all of `work` at a time, until one is done. Raise `GoneError` once the client has left."""
    leaving = asyncio.ensure_future(_gone(receive))
    tasks = [leaving]
    try:
        await asyncio.sleep(0)  # it may have left already
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


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise GoneError


# A stream as the response of a web server


Filter = Callable[[Observable[Event]], Observable[Event]]

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
        client = Client(send, self.status_code, self.raw_headers)
        write = self._write_head if scope["method"] == "HEAD" else self._write
        with suppress(GoneError):
            await until_gone(receive, lambda: write(client), lambda: client.watch(self._heartbeat, self._send_timeout))
        if self.background is not None:
            await self.background()

    async def _write_head(self, client: Client) -> None:
        await client.send(b"", more=False)

    async def _write(self, client: Client) -> None:
        """Send all chunks. Raise the error of a stream that is broken, rather than failed, once the client knows."""
        await client.begin()
        try:
            async with to_async_iter(self._stream, WAITING) as chunks:
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
    """The bytes of each event."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def feed(self, event: Event) -> Iterable[bytes]:
        frames = b"".join(map(sse, self._encoder.feed(event)))
        return (frames,) if frames else ()

    def close(self) -> Iterable[bytes]:
        return (b"".join(map(sse, self._encoder.close())) + self._encoder.END,)


def _raw(headers: Mapping[str, str]) -> Fields:
    for name, value in headers.items():
        check("headers", value, not any(end in name + value for end in "\r\n\0"), f"one line for {name!r}")
    # Whether a connection lives on is between servers, and HTTP/2 forbids to say it.
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if name != "connection"]


@cache
def _starlette_response(base: type[Any]) -> type[StreamingResponse]:
    """Return the class with Starlette's as a base: FastAPI makes JSON of anything else."""
    return type("StreamingResponse", (StreamingResponse, base), {})


# Streams that go on without a browser: kept in memory by an id, to come back to and to stop


class _Run:
    """One run: `stop` cancels it, and `ended` says when it has ended."""

    def __init__(self, source: Observable[Event], grace: float) -> None:
        self.stop: Subject[None] = Subject()
        self.ended: float | None = None
        run = Stream.of(source).take_until(self.stop).finally_action(self._end)
        self.stream = run.pipe(for_client(), ops.share_folded(grace))

    def _end(self) -> None:
        self.ended = time.monotonic()


class Runs:
    """Streams by id, which browsers leave and come back to. Leaving is not stopping: that is `cancel`.

    >>> import rxllm
    >>> runs = Runs()
    >>> answer = runs.start("chat-1", rxllm.stream_generate(rxllm.Fake("Hello"), "Hi"))
    >>> runs.watch("chat-1").pipe(ops.to_response()).run()
    Response('Hello', stop, 0 tokens)
    >>> runs.watch("chat-2") is None, runs.cancel("chat-1")
    (True, False)

    What is kept is what a client may see (`for_client`), since a late watcher is told less of how a tool ended. A run
    goes on for `grace` seconds after the last watcher has left; one that has ended is kept as long, see
    `ops.share_folded`. There are never more than `most` of them. Give ids that cannot be guessed, or check whose they
    are: whoever knows an id may watch.
    """

    def __init__(self, most: int = 1000, grace: float = 300.0) -> None:
        check_count("most", most)
        self._most = most
        self._grace = check_seconds("grace", grace)
        self._runs: dict[str, _Run] = {}
        self._lock = RLock()

    def start(self, id: str, stream: Observable[Event]) -> Stream[Event]:
        """Start `stream` now, on the running loop or else on rxllm's own, and return it for its first watcher.

        Raises ``ValidationError("invalid_option")`` while `id` runs and for wrong arguments, and
        ``StreamError("overflow")`` while `most` run.
        """
        check_instance("id", id, str, "a string")
        check_instance("stream", stream, Observable, "a stream of events, as rxllm.stream(...) returns")
        with self._lock:
            self._make_room(id)
            run = self._runs[id] = _Run(stream, self._grace)
        run.stream.subscribe(on_error=lambda error: None).dispose()
        return run.stream

    def watch(self, id: str) -> Stream[Event] | None:
        """Return the run: what it has said so far, then live events. None if there is no such run."""
        with self._lock:
            self._forget()
            run = self._runs.get(id)
        return run and run.stream

    def cancel(self, id: str) -> bool:
        """Stop the run, and return whether it was running. Its watchers get a ``StreamError("cancelled")``."""
        with self._lock:
            run = self._runs.get(id)
        if run is None or run.ended is not None:
            return False
        run.stop.on_error(StreamError("cancelled", f"the run {id[:80]!r} was cancelled"))
        return True

    def cancel_all(self) -> None:
        """Stop all runs, as a server does before its loop ends: then they would fail."""
        with self._lock:
            ids = [*self._runs]
        for id in ids:
            self.cancel(id)

    def _make_room(self, id: str) -> None:
        self._forget()
        if id in self._runs and self._runs[id].ended is None:
            fault = f"must not be that of a run that goes on, not {id[:80]!r}; watch it, or cancel it first"
            raise invalid_option("id", fault)
        self._runs.pop(id, None)
        if len(self._runs) >= self._most:
            ended = {id: run.ended for id, run in self._runs.items() if run.ended is not None}
            if not ended:
                raise StreamError("overflow", f"{self._most} runs go on; cancel one, or pass a larger most=")
            del self._runs[min(ended, key=ended.__getitem__)]

    def _forget(self) -> None:
        since = time.monotonic() - self._grace
        self._runs = {id: run for id, run in self._runs.items() if run.ended is None or run.ended > since}
