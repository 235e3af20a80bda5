"""The server that is measured against: a process of its own, which writes bytes that it has encoded before.

``POST /answer/{arrival}/{wire}/{kind}/{count}/...`` is answered with so many deltas, which arrive as `ARRIVALS` says.
``POST /live/{streams}/{rate}/{seconds}/...`` is answered, once so many streams have asked, with `rate` deltas a second
in each of them, evenly spread; a delta's text is the time at which it is sent, ``time.monotonic_ns()``, which all
processes of a machine share. ``GET /late`` says how late the last live run was sent: whether the server kept up.

``python -m tests.benchmarks.server`` prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache

from tests.benchmarks import wires
from tests.benchmarks.files import allow_many_files

ARRIVALS = {"burst": (50, True, 0.003), "queued": (50, False, 0.003), "single": (1, False, 0.001)}
"""How many deltas are written at once, whether as one HTTP chunk, and the seconds between two writes.

`burst` is what a proxy makes of a stream, `queued` what piles up while a reader is busy; `single` is a segment each.
"""

STAMP = 19
"""The digits of a time in a live stream."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@cache
def writes(arrival: str, wire: str, kind: str, count: int) -> tuple[bytes, ...]:
    """What is written, write by write."""
    size, joined, _ = ARRIVALS[arrival]
    frames = wires.answer(wire, kind, count)
    groups = [frames[start : start + size] for start in range(0, len(frames), size)]
    made = [chunked(b"".join(group)) if joined else b"".join(map(chunked, group)) for group in groups]
    form = b"application/x-ndjson" if wire == "ollama" else b"text/event-stream"
    return (HEAD % form + made[0], *made[1:-1], (made[-1] if len(made) > 1 else b"") + END)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One connection, which asks one thing after the other."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        self._received = b""
        self._answer(head.split(b" ", 2)[1].decode().strip("/").split("/"))

    def _answer(self, path: list[str]) -> None:
        match path:
            case ["answer", arrival, wire, kind, count, *_]:
                self._send(writes(arrival, wire, kind, int(count)), ARRIVALS[arrival][2])
            case ["live", streams, rate, seconds, *_]:
                self._lives.join(self, int(streams), int(rate), float(seconds))
            case ["late"]:
                self.transport.write(HEAD % b"application/json" + chunked(json.dumps(self._lives.late).encode()) + END)
            case _:
                self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _send(self, parts: Sequence[bytes], gap: float, index: int = 0) -> None:
        if index < len(parts) and not self.transport.is_closing():
            self.transport.write(parts[index])
            asyncio.get_running_loop().call_later(gap, self._send, parts, gap, index + 1)


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


class Lives:
    """The live streams, which begin when all are there."""

    def __init__(self) -> None:
        self.late: dict[str, float] = {}
        self._waiting: list[asyncio.Transport] = []
        self._task: asyncio.Task[None] | None = None
        frame = chunked(wires.chat_frame("0" * STAMP))
        self._before, self._after = frame.split(b"0" * STAMP)

    def join(self, connection: Connection, streams: int, rate: int, seconds: float) -> None:
        first, *_ = wires.answer("chat", "text", 1)
        connection.transport.write(HEAD % b"text/event-stream" + chunked(first))
        left = [transport for transport in self._waiting if not transport.is_closing()]  # of a run that failed
        self._waiting = [*left, connection.transport]
        if len(self._waiting) == streams:
            transports, self._waiting = self._waiting, []
            self._task = asyncio.ensure_future(self._drive(transports, rate, round(rate * seconds)))

    async def _drive(self, transports: list[asyncio.Transport], rate: int, rounds: int) -> None:
        await asyncio.sleep(0.5)  # the readers are all waiting
        lateness: list[float] = []
        start, busy = time.monotonic(), time.process_time()
        step = 1 / rate / len(transports)
        for n in range(rounds * len(transports)):
            now = time.monotonic()
            if (wait := start + n * step - now) > 0:
                await asyncio.sleep(wait)
                now = time.monotonic()
            elif n % 100 == 0:
                await asyncio.sleep(0)
            if n % 16 == 0:
                lateness.append(now - (start + n * step))
            transports[n % len(transports)].write(b"%b%019d%b" % (self._before, time.monotonic_ns(), self._after))
        lateness.sort()
        share = (time.process_time() - busy) / (time.monotonic() - start)
        self.late = {"p50": _at(lateness, 0.5), "p99": _at(lateness, 0.99), "cpu": share}
        end = b"".join(map(chunked, wires.answer("chat", "text", 1)[-3:])) + END
        for transport in transports:
            transport.write(end)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server in a process of its own: its address."""
    command = [sys.executable, "-m", "tests.benchmarks.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


async def main() -> None:
    allow_many_files()
    loop, lives, ended = asyncio.get_running_loop(), Lives(), asyncio.Event()
    server = await loop.create_server(lambda: Connection(lives), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=watch, daemon=True).start()
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
