"""The clients of one event loop, from its first call to its end.

A client of httpx is a pool of connections, and for each call that begins or ends httpcore 1.0.9 looks at every one of
them, at the idle ones even once for each other: a hundred calls over a hundred idle connections wait for seconds. So
the calls of a loop are spread over several small pools, and the first that has room is taken: calls that come one
after another use one connection.
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
"""How many calls share a client of our own. With fewer, clients cost more than the looking; with more, less."""
IDLE_SECONDS = 5.0
"""How long the connections of a burst are kept for the next one, as httpx keeps each."""


class Load:
    """How many calls use a client, and since when none does."""

    def __init__(self) -> None:
        self.calls = 0
        self.idle_since = 0.0


_loads: weakref.WeakKeyDictionary[Any, Load] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def in_use(client: httpx.AsyncClient) -> Generator[None]:
    """Inside, a call uses `client`."""
    load = _loads.get(client) or Load()  # nobody counts the calls of a given client
    load.calls += 1
    try:
        yield
    finally:
        load.calls -= 1
        load.idle_since = asyncio.get_running_loop().time()


class Pools:
    """An adapter's clients on one loop; `make` makes them, for `calls` calls each, None for any number.

    Loops close their asynchronous generators last, and so these clients. They outlive the adapter until they are
    closed, because the garbage collector cannot close a connection.
    """

    def __init__(
        self, make: Callable[[], httpx.AsyncClient], calls: int | None, home: MutableMapping[Any, Pools]
    ) -> None:
        self._make = make
        self._calls = calls
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._clients = [self._new()]
        self._guard = self._until_closed()
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, owner: object) -> None:
        await anext(self._guard)
        self._dropped = weakref.finalize(owner, self._close_soon)
        self._dropped.atexit = False

    @property
    def first(self) -> httpx.AsyncClient:
        return self._clients[0]

    def pick(self) -> httpx.AsyncClient:
        """The first client that has room for a call."""
        for client in self._clients:
            if self._calls is None or _loads[client].calls < self._calls:
                return client
        client = self._new()
        self._clients.append(client)
        self._loop.call_later(IDLE_SECONDS, self._let_go, client)
        return client

    async def aclose(self) -> None:
        await self._guard.aclose()

    async def bury(self) -> None:
        """Close what a loop has left open that was closed without ``shutdown_asyncgens``."""
        self._dropped.detach()
        with contextlib.suppress(AttributeError):  # uvloop's, which closes all connections itself
            cast(Any, self._loop).call_soon = _at_once
        for client in self._clients:
            with contextlib.suppress(Exception):
                await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        client = self._make()
        _loads[client] = Load()
        return client

    def _let_go(self, client: httpx.AsyncClient) -> None:
        load = _loads[client]
        left = IDLE_SECONDS if load.calls else load.idle_since + IDLE_SECONDS - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._let_go, client)
        elif client in self._clients:
            self._clients.remove(client)
            self._begin(client.aclose())

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._dropped.detach()
            self._home.pop(self._loop, None)
            async with contextlib.AsyncExitStack() as closing:  # all, also when one fails
                for client in self._clients:
                    closing.push_async_callback(client.aclose)
                self._clients.clear()

    def _close_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._begin(self.aclose()))

    def _begin(self, closing: Any) -> None:
        task = self._loop.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _at_once(fn: Callable[..., object], *args: Any, **_: Any) -> None:
    # What the transports of a closed loop leave to its next turn, their close. Its tasks stay where they are.
    if isinstance(getattr(fn, "__self__", None), asyncio.BaseTransport):
        fn(*args)
