"""A real HTTP/1.1 server on a socket, in a thread of its own, that answers as a script says and notes who closed when.

::

    with Loopback(Reply([chat_chunk("Hi"), Pause(0.01), chat_finish(), DONE])) as server:
        httpx.post(server.url + "/chat/completions", json={})
        server.requests[0].json

The script is a `Reply` for every request, a list of them (the last one again and again), or a function of the
`Request`. A body is bytes, sent with their length, or anything iterable, sent chunked: bytes are one chunk, a `Pause`
is waited for, and a `Cut` ends it. What is no script and no body raises ``TypeError`` where it is written; errors that
come up while it runs are raised when the ``with`` ends. Request bodies must have a length.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import socket
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
    """Wait so many seconds; for ever by default."""

    seconds: float = math.inf


TURNS = 5
"""Of the loop, in which a connection that is being accepted is made."""

STALL = Pause()


class Cut(Enum):
    """The server goes away in the middle of a chunk: with a FIN as if all were well, or with a reset."""

    FIN = "fin"
    RESET = "reset"


@dataclass(frozen=True)
class Reply:
    """An answer. `before` is the wait before the first byte of its head, in seconds or as a `Pause`."""

    body: bytes | Iterable[bytes | Pause | Cut] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE_HEADERS))
    before: float | Pause = 0.0

    def __post_init__(self) -> None:
        body: Any = self.body
        if isinstance(body, str) or not isinstance(body, Iterable):
            raise TypeError(f"a body is bytes, or an iterable of bytes, Pause and Cut, not {body!r}")
        if isinstance(body, Sequence) and not isinstance(body, bytes):
            for item in cast(Sequence[Any], body):
                _check_item(item)

    @classmethod
    def of_json(cls, data: Any, status: int = 200, **headers: str) -> Self:
        """A plain JSON answer; ``retry_after="1"`` is the header Retry-After."""
        named = {name.replace("_", "-"): held for name, held in headers.items()}
        return cls(json.dumps(data).encode(), status, {"Content-Type": "application/json", **named})


@dataclass(frozen=True)
class Request:
    """What a client asked, header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Reply | Sequence[Reply] | Callable[[Request], Reply]


class Loopback:
    """The server: `url`, `connections` and `requests` in the order they came, `open_count` of connections.

    With `accept_after` it listens at once but takes no connection for so many seconds.
    """

    def __init__(self, script: Script = Reply(), *, accept_after: float = 0.0) -> None:
        self.connections: list[Connection] = []
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self.port = 0
        self._script = _checked(script)
        self._accept_after = accept_after
        self._changed = threading.Condition()
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_count(self) -> int:
        return sum(connection.closed_at is None for connection in list(self.connections))

    def wait_requests(self, count: int, timeout: float = 5.0) -> list[Request]:
        """The requests, once there are `count` of them. Raises ``TimeoutError``."""
        self.wait_until(lambda: len(self.requests) >= count, timeout)
        return self.requests

    def wait_until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return once `condition` holds; it is asked when a connection, a request or a close is seen."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(f"{len(self.requests)} requests, {self.open_count} open connections")

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="loopback", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if kind is None and self.errors:
            raise self.errors[0]

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._accept_after)
        except TimeoutError:
            server = await self._loop.create_server(lambda: Connection(self), sock=self._socket, backlog=2048)
            await self._stopping.wait()
            self._loop.remove_reader(self._socket)
            for _ in range(TURNS):  # asyncio leaks a connection that it is accepting while the server is closed
                await asyncio.sleep(0)
            server.close()
        self._socket.close()
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)  # lets the transports say that they are lost

    def reply_to(self, request: Request) -> Reply:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if callable(self._script):
            reply: Any = self._script(request)
            if not isinstance(reply, Reply):
                raise TypeError(f"the script gave {reply!r} and no Reply")
            return reply
        if isinstance(self._script, Reply):
            return self._script
        return self._script[min(len(self.requests), len(self._script)) - 1]

    def note(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


class Connection(asyncio.Protocol):
    """One connection: what it asked, what it was sent, and when it went away.

    `accepted_at` and `closed_at` are of ``time.monotonic()``; `closed_by` is ``"client"`` or ``"server"``. A close by
    the client is seen at once, also while the server stalls, or waits because the client does not read.
    """

    def __init__(self, server: Loopback) -> None:
        self.requests: list[Request] = []
        self.accepted_at = math.nan
        self.closed_at: float | None = None
        self.closed_by: str | None = None
        self._server = server
        self._received = bytearray()
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the operating system, heads and chunk sizes included."""
        return self._written - self._transport.get_write_buffer_size()

    def wait_closed(self, timeout: float = 5.0) -> float:
        """When it was closed. Raises ``TimeoutError``."""
        self._server.wait_until(lambda: self.closed_at is not None, timeout)
        assert self.closed_at is not None
        return self.closed_at

    def abort(self) -> None:
        self._close("server", reset=True)

    # What asyncio calls, on the server's loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writable = asyncio.Event()
        self._writable.set()
        transport.set_write_buffer_limits(high=0)
        self.accepted_at = time.monotonic()
        self._server.note(lambda: self._server.connections.append(self))

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next()

    def eof_received(self) -> None:
        self._closed("client")

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed("client")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # The answer

    def _next(self) -> None:
        if self._task is None and (request := _take_request(self._received)) is not None:
            self.requests.append(request)
            self._task = asyncio.ensure_future(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            reply = self._server.reply_to(request)
            await _pause(reply.before)
            await self._send(reply)
        except Exception as error:
            self._server.errors.append(error)
            self.abort()
        self._task = None
        if self.closed_at is None:
            self._next()

    async def _send(self, reply: Reply) -> None:
        body = reply.body
        length = f"Content-Length: {len(body)}" if isinstance(body, bytes) else "Transfer-Encoding: chunked"
        lines = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}", length]
        lines += [f"{name}: {held}" for name, held in reply.headers.items()]
        await self._write("\r\n".join([*lines, "", ""]).encode())
        if isinstance(body, bytes):
            return await self._write(body)
        for item in body:
            _check_item(item)
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
        await asyncio.sleep(0)  # an endless body lets the others have their turn

    def _close(self, by: str, *, reset: bool) -> None:
        if reset and self.closed_at is None:
            made = self._transport.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._closed(by)
        self._transport.abort() if reset else self._transport.close()

    def _closed(self, by: str) -> None:
        if self.closed_at is not None:
            return

        def change() -> None:
            self.closed_at, self.closed_by = time.monotonic(), by

        self._server.note(change)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _checked(script: Any) -> Script:
    if isinstance(script, Reply) or callable(script):
        return cast(Script, script)
    if isinstance(script, list | tuple):
        replies = cast(Sequence[Any], script)
        if not replies:
            raise ValueError("a script has at least one Reply")
        if all(isinstance(each, Reply) for each in replies):
            return replies
    raise TypeError(f"a script is a Reply, a list of them, or a function of the Request, not {script!r}")


def _check_item(item: Any) -> None:
    if not isinstance(item, bytes | Pause | Cut):
        raise TypeError(f"a body is made of bytes, Pause and Cut, not {item!r}")


def _take_request(received: bytearray) -> Request | None:
    head, found, rest = bytes(received).partition(b"\r\n\r\n")
    if not found:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): held.strip() for name, _, held in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", 0))
    if len(rest) < length:
        return None
    received[:] = rest[length:]
    return Request(method, path, headers, rest[:length])


async def _pause(pause: float | Pause) -> None:
    seconds = pause.seconds if isinstance(pause, Pause) else pause
    if math.isinf(seconds):
        await asyncio.Event().wait()
    elif seconds:
        await asyncio.sleep(seconds)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"


# OpenAI's chat dialect

DONE = b"data: [DONE]\n\n"


def chat_event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """A frame of one choice's `delta`; `more` stands beside the choices (``usage=...``)."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "loopback"}
    return b"data: " + json.dumps({**frame, "choices": [choice], **more}).encode() + b"\n\n"


def chat_chunk(text: str) -> bytes:
    return chat_event({"content": text})


def chat_finish(reason: str = "stop", **more: Any) -> bytes:
    return chat_event({}, reason, **more)


def chat(*texts: str) -> list[bytes]:
    """A whole answer, a chunk for each text."""
    return [*map(chat_chunk, texts), chat_finish(), DONE]


def endless(make: Callable[[int], bytes] = lambda i: chat_chunk(str(i)), every: float = 0.0) -> Iterator[bytes | Pause]:
    """Frames without end, as fast as the client reads or one in `every` seconds; each reply needs a new one."""
    for i in itertools.count():
        yield make(i)
        if every:
            yield Pause(every)


def __dir__() -> list[str]:
    return __all__
