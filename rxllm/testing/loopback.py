"""A scripted HTTP/1.1 server on its own thread.

::

    with Loopback(Reply([chat_chunk("Hi"), Pause(0.01), chat_finish(), DONE])) as server:
        httpx.post(server.url + "/chat/completions", json={})
        server.requests[0].json

The server records who closed each connection, and when. The script is a `Reply`, a list of replies, or a function that
takes a `Request` and returns a `Reply`. The last reply in a list is repeated.

A body of bytes is sent with a ``Content-Length``. An iterable is sent in chunks, one for each bytes object. A `Pause`
delays the next chunk, and a `Cut` cuts the body off.

An invalid script or body raises ``TypeError`` immediately, and an empty list of replies raises ``ValueError``. The
items of an iterator are checked only when they are sent. An error in the running server is raised at the end of the
``with`` block. A request with a body must have a ``Content-Length``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, cast

__all__ = [
    "DONE",
    "SSE_HEADERS",
    "STALL",
    "Connection",
    "Cut",
    "Loopback",
    "Pause",
    "Reply",
    "Request",
    "Script",
    "chat",
    "chat_chunk",
    "chat_event",
    "chat_finish",
    "endless",
]

SSE_HEADERS = {"Content-Type": "text/event-stream"}


@dataclass(frozen=True)
class Pause:
    """A pause of `seconds` seconds. By default, it lasts forever."""

    seconds: float = math.inf


STALL = Pause()


class Cut(Enum):
    """Closes the connection in the middle of a chunk. ``FIN`` is a normal close, and ``RESET`` a reset."""

    FIN = "fin"
    RESET = "reset"


@dataclass(frozen=True)
class Reply:
    """A response. `before` is how long to wait before the first byte, in seconds or as a `Pause`."""

    body: bytes | Iterable[bytes | Pause | Cut] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE_HEADERS))
    before: float | Pause = 0.0

    def __post_init__(self) -> None:
        body: Any = self.body
        if isinstance(body, str) or not isinstance(body, Iterable):
            raise TypeError(
                f"a body must be bytes, or an iterable whose items are bytes, Pause or Cut objects, not {body!r}"
            )
        if isinstance(body, Sequence) and not isinstance(body, bytes):
            for item in cast(Sequence[Any], body):
                check_item(item)

    @classmethod
    def of_json(cls, data: Any, status: int = 200, **headers: str) -> Self:
        """Return a JSON response.

        Keyword arguments become headers. For example, ``retry_after="1"`` sends ``retry-after: 1``.
        """
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(json.dumps(data).encode(), status, {"Content-Type": "application/json", **fields})


@dataclass(frozen=True)
class Request:
    """A client's request. The names in `headers` are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Reply | Sequence[Reply] | Callable[[Request], Reply]


EMPTY = Reply()
TURNS = 5
"""The number of event loop turns that asyncio needs to finish accepting connections."""


class Loopback:
    """A scripted server.

    `connections` and `requests` are in order of arrival. `open_count` counts open connections. The server listens
    immediately, but accepts no connections for the first `accept_after` seconds. For HTTPS, pass `tls`, an SSL context
    with a certificate for 127.0.0.1.
    """

    def __init__(self, script: Script = EMPTY, *, accept_after: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.connections: list[Connection] = []
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self.port = 0
        self._script = check_script(script)
        self._accept_after = accept_after
        self._tls = tls
        self._changed = threading.Condition()
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def open_count(self) -> int:
        return sum(connection.closed_at is None for connection in list(self.connections))

    def wait_requests(self, count: int, timeout: float = 20.0) -> list[Request]:
        """Wait for `count` requests, and return all requests.

        Raises ``TimeoutError`` after `timeout` seconds.
        """
        self.wait_until(lambda: len(self.requests) >= count, timeout)
        return self.requests

    def wait_until(self, condition: Callable[[], bool], timeout: float = 20.0) -> None:
        """Wait until `condition` is true.

        The condition is checked whenever a connection opens or closes, or a request arrives. Raises ``TimeoutError``
        after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(
                    f"after {timeout} s there are {len(self.requests)} requests and {self.open_count} open connections"
                )

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        # Accepted sockets inherit this option. Without it, each frame would be delayed by 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="loopback", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self.errors and (kind is None or issubclass(kind, Exception)):
            raise self.errors[0]  # the block's exception becomes this error's context

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._accept_after)
        except TimeoutError:
            server = await self._loop.create_server(self._connect, sock=self._socket, backlog=2048, ssl=self._tls)
            await self._stopping.wait()
            self._loop.remove_reader(self._socket)
            for _ in range(TURNS):  # asyncio would leak connections that it is still accepting
                await asyncio.sleep(0)
            server.close()
        self._socket.close()
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)  # let transports call connection_lost

    def _connect(self) -> Connection:
        return Connection(self._reply_to, self._changed, self._record_open, self.errors.append)

    def _record_open(self, connection: Connection) -> None:
        with self._changed:
            self.connections.append(connection)
            self._changed.notify_all()

    def _reply_to(self, request: Request) -> Reply:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if callable(self._script):
            reply: Any = self._script(request)
            if not isinstance(reply, Reply):
                raise TypeError(f"the script returned {reply!r} instead of a Reply")
            return reply
        if isinstance(self._script, Reply):
            return self._script
        return self._script[min(len(self.requests), len(self._script)) - 1]


class Connection(asyncio.Protocol):
    """A connection to a client.

    It answers its `requests` one after another. `accepted_at` and `closed_at` are ``time.monotonic()`` times.
    `closed_by` is ``"client"`` or ``"server"``. The server notices at once when the client closes the connection.
    """

    def __init__(
        self,
        answer: Callable[[Request], Reply],
        changed: threading.Condition,
        on_open: Callable[[Connection], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.requests: list[Request] = []
        self.accepted_at = math.nan
        self.closed_at: float | None = None
        self.closed_by: str | None = None
        self._reply_to = answer
        self._changed = changed
        self._on_open = on_open
        self._on_error = on_error
        self._received = bytearray()
        self._written = 0
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False

    @property
    def bytes_sent(self) -> int:
        """The number of bytes sent, including response headers and chunk sizes."""
        return self._written - self._transport.get_write_buffer_size()

    def wait_closed(self, timeout: float = 20.0) -> float:
        """Wait until the connection closes, and return `closed_at`.

        Raises ``TimeoutError`` after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.closed_at is not None, timeout):
                raise TimeoutError(f"the connection is still open after {timeout} s and {len(self.requests)} requests")
        assert self.closed_at is not None
        return self.closed_at

    def abort(self) -> None:
        self._close("server", reset=True)

    # Called by asyncio, on the server's event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writable = asyncio.Event()
        self._writable.set()
        transport.set_write_buffer_limits(high=1)  # with a limit of 0, asyncio's TLS would never resume writing
        self.accepted_at = time.monotonic()
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next()

    def eof_received(self) -> None:
        self._record_close("client")

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._record_close("client")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _next(self) -> None:
        if self._task is None and (request := _take_request(self._received)) is not None:
            self.requests.append(request)
            self._task = asyncio.ensure_future(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            reply = self._reply_to(request)
            await _pause(reply.before)
            await self._send(reply)
        except Exception as error:
            self._on_error(error)
            self.abort()
        self._task = None
        if self.closed_at is None:
            self._next()

    async def _send(self, reply: Reply) -> None:
        await self._write(_head(reply))
        if isinstance(reply.body, bytes):
            return await self._write(reply.body)
        for item in reply.body:
            check_item(item)
            match item:
                case bytes():
                    await self._write(b"%x\r\n%b\r\n" % (len(item), item))
                case Pause():
                    await _pause(item)
                case Cut():
                    await self._write(b"ff\r\nda")
                    return self._close("server", reset=item is Cut.RESET)
        return await self._write(b"0\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        await self._writable.wait()
        self._written += len(data)
        self._transport.write(data)
        await asyncio.sleep(0)  # let other connections run

    def _close(self, by: str, *, reset: bool) -> None:
        if reset and self.closed_at is None:
            # With a linger time of 0, closing the socket resets the connection.
            connected = self._transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._record_close(by)
        if not self._is_lost:  # asyncio's transport may fail if it is aborted once it has sent all and closed
            self._transport.abort() if reset else self._transport.close()

    def _record_close(self, by: str) -> None:
        if self.closed_at is not None:
            return
        with self._changed:
            self.closed_at, self.closed_by = time.monotonic(), by
            self._changed.notify_all()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


async def _pause(pause: float | Pause) -> None:
    seconds = pause.seconds if isinstance(pause, Pause) else pause
    if math.isinf(seconds):
        await asyncio.Event().wait()
    elif seconds:
        await asyncio.sleep(seconds)


def _take_request(received: bytearray) -> Request | None:
    """Remove the first request from `received`, and return it. Return None if that request is incomplete."""
    head, blank_line, rest = bytes(received).partition(b"\r\n\r\n")
    if not blank_line:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", 0))
    if len(rest) < length:
        return None
    received[:] = rest[length:]
    return Request(method, path, headers, rest[:length])


def _head(reply: Reply) -> bytes:
    phrase = HTTPStatus(reply.status).phrase if reply.status in HTTPStatus._value2member_map_ else "Status"
    length = f"Content-Length: {len(reply.body)}" if isinstance(reply.body, bytes) else "Transfer-Encoding: chunked"
    headers = [f"{name}: {value}" for name, value in reply.headers.items()]
    return "\r\n".join([f"HTTP/1.1 {reply.status} {phrase}", length, *headers, "", ""]).encode()


def check_script(script: Any) -> Script:
    """Return `script` if it is valid. Raise ``ValueError`` if it is empty, and ``TypeError`` for any other fault."""
    if isinstance(script, Reply) or callable(script):
        return cast(Script, script)
    if isinstance(script, list | tuple):
        replies = cast(Sequence[Any], script)
        if not replies:
            raise ValueError("a script must have at least one Reply")
        if all(isinstance(reply, Reply) for reply in replies):
            return replies
    raise TypeError(f"a script must be a Reply, a list of Replies, or a function that takes a Request, not {script!r}")


def check_item(item: Any) -> None:
    if not isinstance(item, bytes | Pause | Cut):
        raise TypeError(f"a body may contain only bytes, Pause and Cut objects, not {item!r}")


# Frames in OpenAI's chat format

DONE = b"data: [DONE]\n\n"


def chat_event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """Return a chunk of a streamed chat with one choice. `more` contains other fields, such as ``usage``."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "loopback"}
    return b"data: " + json.dumps({**frame, "choices": [choice], **more}).encode() + b"\n\n"


def chat_chunk(text: str) -> bytes:
    return chat_event({"content": text})


def chat_finish(reason: str = "stop", **more: Any) -> bytes:
    return chat_event({}, reason, **more)


def chat(*texts: str) -> list[bytes]:
    """Return the frames of a complete streamed chat, with one chunk for each text."""
    return [*map(chat_chunk, texts), chat_finish(), DONE]


def endless(make: Callable[[int], bytes] | None = None, every: float = 0.0) -> Iterator[bytes | Pause]:
    """Yield frames forever, with `every` seconds between them.

    If `every` is 0, the client sets the pace. ``make(i)`` returns the next frame. By default, the frames contain the
    texts ``"0 "``, ``"1 "``, ``"2 "`` and so on. An iterator can be used only once, so call this function for each
    reply.
    """
    make = make or (lambda i: chat_chunk(f"{i} "))
    for i in itertools.count():
        yield make(i)
        if every:
            yield Pause(every)


def __dir__() -> list[str]:
    return __all__
