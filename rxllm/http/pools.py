"""The connection pools of an event loop.

An httpx client is a pool of connections. Whenever a call begins or ends, httpcore 1.0.9 looks at every connection in
the pool, and compares idle connections with each other: a hundred calls over a hundred idle connections wait for
seconds. So a loop's calls are spread over several small pools. Each call takes the first pool with room, so that
successive calls use the same connection.

==========================================  ========================================================================
the pools                                   are closed
==========================================  ========================================================================
all but the first, each                     after `IDLE_SECONDS` without a call
all, when their loop ends                   by their asynchronous generator, which ``shutdown_asyncgens`` closes
all, when their adapter is dropped          by a finalizer, soon, on their loop
all, if the loop was closed without that    by `close_dead`, on another loop
==========================================  ========================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, MutableMapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import httpx


CALLS = 4
"""Maximum calls that share one of rxllm's own clients. With fewer, clients cost more than small pools save."""
IDLE_SECONDS = 5.0
"""Seconds for which a burst's idle pools are kept for the next burst; httpx keeps idle connections as long."""
KEEPALIVE_SECONDS = 4.0
"""Seconds after which an idle connection is closed.

uvicorn, Node and llama.cpp close a connection that has been idle for 5 s, which is also httpx's default: a call sent at
that moment fails.
"""


class Load:
    """The number of calls that use a client, and when it became idle."""

    def __init__(self) -> None:
        self.calls = 0
        self.idle_since = 0.0


_loads: weakref.WeakKeyDictionary[Any, Load] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def in_use(client: httpx.AsyncClient) -> Generator[None]:
    """Count a call as using `client` inside the block."""
    load = _loads.get(client) or Load()  # the load of a user's client is not read
    load.calls += 1
    try:
        yield
    finally:
        load.calls -= 1
        load.idle_since = asyncio.get_running_loop().time()


class Pools:
    """An adapter's clients on a loop, made by `make` for `calls` calls each (None: any number).

    `by_loop` is the adapter's table of pools, from which closed pools remove themselves. Pools outlive their adapter
    until they are closed, because the garbage collector cannot close a connection.
    """

    def __init__(
        self, make: Callable[[], httpx.AsyncClient], calls: int | None, by_loop: MutableMapping[Any, Pools]
    ) -> None:
        self._make = make
        self._calls = calls
        self._by_loop = by_loop
        self._loop = asyncio.get_running_loop()
        self._clients = [self._new()]
        self._lifetime = self._until_closed()
        self._closing: set[asyncio.Task[None]] = set()
        self._timers: dict[httpx.AsyncClient, asyncio.TimerHandle] = {}

    async def open(self, owner: object) -> None:
        """Register with the loop and with `owner`: the end of either closes the pools."""
        await anext(self._lifetime)
        self._finalizer = weakref.finalize(owner, self._close_soon)
        self._finalizer.atexit = False

    @property
    def first(self) -> httpx.AsyncClient:
        return self._clients[0]

    def pick(self) -> httpx.AsyncClient:
        """Return the first client that has room for a call."""
        for client in self._clients:
            if self._calls is None or _loads[client].calls < self._calls:
                return client
        client = self._new()
        self._clients.append(client)
        self._look_later(client, IDLE_SECONDS)
        return client

    async def aclose(self) -> None:
        await self._lifetime.aclose()

    async def close_dead(self) -> None:
        """Close the clients of a loop that was closed without ``shutdown_asyncgens``."""
        self._finalizer.detach()
        with contextlib.suppress(AttributeError):  # uvloop allows no assignment, and closes all connections itself
            cast(Any, self._loop).call_soon = _call_close
        for client in self._clients:
            with contextlib.suppress(Exception):
                await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        client = self._make()
        _loads[client] = Load()
        return client

    def _look_later(self, client: httpx.AsyncClient, seconds: float) -> None:
        self._timers[client] = self._loop.call_later(seconds, self._close_if_idle, client)

    def _close_if_idle(self, client: httpx.AsyncClient) -> None:
        load = _loads[client]
        remaining = IDLE_SECONDS if load.calls else load.idle_since + IDLE_SECONDS - self._loop.time()
        if remaining > 0:
            self._look_later(client, remaining)
        else:
            del self._timers[client]
            self._clients.remove(client)
            self._start(client.aclose())

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._finalizer.detach()
            self._by_loop.pop(self._loop, None)
            for timer in self._timers.values():  # a timer would keep its client in memory
                timer.cancel()
            self._timers.clear()
            async with contextlib.AsyncExitStack() as stack:  # closes all clients, even if one fails
                for client in self._clients:
                    stack.push_async_callback(client.aclose)
                self._clients.clear()

    def _close_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._start(self.aclose()))

    def _start(self, closing: Any) -> None:
        task = self._loop.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _call_close(fn: Callable[..., object], *args: Any, **_: Any) -> None:
    # Transports schedule their close for the loop's next turn. A closed loop has none, so the close runs now.
    # Other callbacks, such as those of tasks, do not run.
    if isinstance(getattr(fn, "__self__", None), asyncio.BaseTransport):
        fn(*args)
