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

import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, cast

from reactivex import Observable

from rxllm import ErrorEvent, Event, StreamError, to_async_iter
from rxllm import operators as ops
from rxllm.values.argument_checks import check, check_instance, is_positive
from rxllm.web._codec import Encoder, encoder, sse
from rxllm.web._for_client import for_client
from rxllm.web._http import Client, Fields, GoneError, Message, Receive, Send, until_gone

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
