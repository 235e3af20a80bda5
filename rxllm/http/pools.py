"""Connection pools. Each event loop has several small ones.

The pools are small because httpcore 1.0.9 becomes slow if a pool has many connections. Each call uses the first pool
that has room for it.

==========================================  ========================================================================
event                                       pools that are closed
==========================================  ========================================================================
a pool has had no call for `IDLE_SECONDS`   this pool, unless it is the first one
the loop ends                               all pools of the loop; ``shutdown_asyncgens`` closes them by closing their
                                            asynchronous generator
the adapter is garbage-collected            all pools of the adapter; a finalizer closes them on their own loop
a loop was closed without a call to         all pools of that loop; `close_dead` closes them on another loop
``shutdown_asyncgens``
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
"""The maximum number of calls per client.

If it were smaller, the additional clients would cost more than they save.
"""
IDLE_SECONDS = 5.0
"""The number of idle seconds after which a pool is closed."""
KEEPALIVE_SECONDS = 4.0
"""The number of idle seconds after which a connection is closed.

Many servers close idle connections after 5 s. A call that began at that moment would fail.
"""


class Load:
    """The number of calls that are running on a client, and the time at which the client last became idle."""

    def __init__(self) -> None:
        self.calls = 0
        self.idle_since = 0.0


_loads: weakref.WeakKeyDictionary[Any, Load] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def in_use(client: httpx.AsyncClient) -> Generator[None]:
    """Count one more call on `client` while the ``with`` block is running."""
    # A user's own client is not in `_loads`. Its calls are counted in a new `Load`, which is never read.
    load = _loads.get(client) or Load()
    load.calls += 1
    try:
        yield
    finally:
        load.calls -= 1
        load.idle_since = asyncio.get_running_loop().time()


class Pools:
    """The clients of an adapter on one event loop.

    At most `calls` calls share a client; None means no limit. The pools can outlive their adapter: they stay in memory
    until they have been closed, because the garbage collector cannot close connections.
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
        """Arrange for the pools to be closed when the loop ends or `owner` is garbage-collected."""
        await anext(self._lifetime)
        self._finalizer = weakref.finalize(owner, self._close_soon)
        self._finalizer.atexit = False

    @property
    def first(self) -> httpx.AsyncClient:
        return self._clients[0]

    def pick(self) -> httpx.AsyncClient:
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
        self._finalizer.detach()
        # A uvloop event loop does not allow this assignment, but it closes all of its connections itself.
        with contextlib.suppress(AttributeError):
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
            for timer in self._timers.values():  # otherwise, each timer would keep its client in memory
                timer.cancel()
            self._timers.clear()
            async with contextlib.AsyncExitStack() as stack:  # closes every client, even if one fails to close
                for client in self._clients:
                    stack.push_async_callback(client.aclose)
                self._clients.clear()

    def _close_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: self._start(self.aclose()))

    def _start(self, closing: Any) -> None:
        task = self._loop.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _call_close(fn: Callable[..., object], *args: Any, **_: Any) -> None:
    # The loop is closed and will not run again, so let the transport close right now.
    if isinstance(getattr(fn, "__self__", None), asyncio.BaseTransport):
        fn(*args)
