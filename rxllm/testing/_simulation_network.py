"""In-memory connections that deliver bytes in virtual time and can inject faults."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import functools
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxllm.testing._simulation_loop import VirtualLoop

WINDOW = 65536
"""The number of bytes that may be unread before the sender must wait for the receiver."""

_END, _RESET = b"", None


of_world: contextvars.ContextVar[bool] = contextvars.ContextVar("rxllm_simulated_world", default=False)
"""Whether the code that is running belongs to the simulation rather than to the app."""


def world_context() -> contextvars.Context:
    context = contextvars.Context()
    context.run(of_world.set, True)
    return context


async def connect(loop: VirtualLoop, factory: Callable[[], Any], port: int) -> tuple[Any, Any]:
    """Connect to `port`. Return a transport and a protocol, as ``create_connection`` does."""
    number = loop.next_number()
    who = f"connection #{number}"
    faults = loop.faults
    await asyncio.sleep(faults.latency())
    listener = loop.listeners.get(port)
    fault = faults.on_connection()
    if fault is not None and fault.kind == "stall" and fault.at < 3:
        loop.inject(who, f"stall: connecting takes {fault.seconds:.3g} s")
        await asyncio.sleep(min(fault.seconds, 1e5))
    if listener is None:
        fault = f"no server in this simulation listens on port {port}"
        loop.note(who, fault)  # clients often omit this text from their errors
        raise ConnectionRefusedError(errno.ECONNREFUSED, fault)
    if faults.strikes("refuse"):
        loop.inject(who, "refuse: the connection is refused")
        raise ConnectionRefusedError(errno.ECONNREFUSED, "the connection was refused")
    loop.note(who, f"connects to port {port}")
    client = MemoryTransport(loop, f"{who}, client", contextvars.copy_context())
    server = MemoryTransport(loop, f"{who}, server", world_context())
    client.peer, server.peer, server.fault = server, client, fault
    protocol = factory()
    server.attach(listener())
    client.attach(protocol)
    return client, protocol


class MemoryTransport(asyncio.Transport):
    """One end of a connection. What is written arrives at `peer` after a delay, unless `fault` strikes."""

    def __init__(self, loop: VirtualLoop, who: str, context: contextvars.Context) -> None:
        super().__init__({"socket": _Socket(self), "peername": ("127.0.0.1", 0)})
        self.peer = self
        self.fault: Any = None
        self.resets = False
        self._loop = loop
        self._who = who
        self._context = context
        self._protocol: Any = None
        self._in_transit: deque[bytes | None] = deque()  # a queue, because asyncio may reorder simultaneous timers
        self._inbox: deque[bytes | None] = deque()
        self._reading = True
        self._closing = self._lost = self._slow = self._paused = False
        self._sent = self._pending = 0
        self._high, self._low = WINDOW, 0
        self._last_arrival = 0.0
        """The time at which the most recently sent bytes will arrive."""

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        self._context.run(protocol.connection_made, self)

    @property
    def readable(self) -> bool:
        return bool(self._inbox) or self._lost

    # Writing

    def write(self, data: Any) -> None:
        data = bytes(data)
        if self._closing or not data:
            return
        before = len(data) if self.fault is None else max(0, self.fault.at - self._sent)
        self._sent += len(data)
        self._pending += len(data)
        self._send(data[:before])
        if before < len(data):
            self._apply_fault()
            self._send(data[before:])
        if self.get_write_buffer_size() > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def _apply_fault(self) -> None:
        fault, self.fault = self.fault, None
        match fault.kind:
            case "cut":
                is_reset = self._loop.faults.random.random() < 0.5
                self._loop.inject(self._who, f"cut before byte {fault.at}, with a {'reset' if is_reset else 'FIN'}")
                self._schedule_arrival(_RESET if is_reset else _END)
                self._last_arrival = float("inf")
                self._loop.call_soon(self._drop, ConnectionResetError(errno.ECONNRESET, "cut"), context=world_context())
            case "stall":
                self._loop.inject(self._who, f"stall for {fault.seconds:.3g} s before byte {fault.at}")
                self._last_arrival = self._loop.time() + fault.seconds
            case _:
                self._loop.inject(self._who, f"slow from byte {fault.at} on")
                self._slow = True

    def _send(self, data: bytes) -> None:
        random = self._loop.faults.random
        while data:
            size = random.randint(1, 40) if self._slow else len(data)
            self._schedule_arrival(data[:size], random.uniform(0.001, 0.3) if self._slow else 0.0)
            data = data[size:]

    def _schedule_arrival(self, item: bytes | None, delay: float = 0.0) -> None:
        self._last_arrival = max(self._last_arrival, self._loop.time() + self._loop.faults.latency()) + delay
        if self._last_arrival != float("inf"):
            self.peer._in_transit.append(item)
            self._loop.call_at(self._last_arrival, self.peer._receive, context=world_context())

    def get_write_buffer_size(self) -> int:
        return max(0, self._pending - WINDOW)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WINDOW if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._schedule_arrival(_END)

    # Reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read, context=world_context())

    def _receive(self) -> None:
        item = self._in_transit.popleft()
        if item is _RESET:
            self._inbox.clear()
        self._inbox.append(item)
        self._read()

    def _read(self) -> None:
        while self._inbox and self._reading and not self._lost:
            item = self._inbox.popleft()
            if item is _RESET:
                self._drop(ConnectionResetError(errno.ECONNRESET, "the connection was reset"))
            elif not item:
                self._loop.note(self._who, "receives the end")
                if not self._context.run(self._protocol.eof_received):
                    self.close()
            else:
                self._loop.note(self._who, f"receives {len(item)} bytes")
                self.peer._release_window(len(item))
                self._context.run(self._protocol.data_received, item)

    def _release_window(self, size: int) -> None:
        self._pending -= size
        if self._paused and self.get_write_buffer_size() <= self._low and not self._lost:
            self._paused = False
            self._context.run(self._protocol.resume_writing)

    # The end

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.note(self._who, "closes")
            self._schedule_arrival(_RESET if self.resets else _END)
            self._loop.call_soon(self._drop, None, context=world_context())

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def _drop(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._context.run(self._protocol.connection_lost, error)


class _Socket:
    """A stand-in for a socket. It has only the few methods that clients call."""

    family = socket.AF_INET

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport

    def fileno(self) -> int:
        return -1 if self._transport.readable else _never_readable()

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 0)

    getpeername = getsockname

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if option == socket.SO_LINGER:
            self._transport.resets = True


@functools.cache
def _never_readable() -> int:
    return os.pipe()[0]  # the write end of the pipe stays open until the process ends
