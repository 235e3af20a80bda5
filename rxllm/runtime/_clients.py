"""HTTP clients, one per event loop, because a connection belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, cast

from rxllm.runtime._portal import running_loop
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""The longest silence of a provider: a model may think for minutes before its first word."""


class Clients:
    """The clients of one adapter: its own, one per loop, or the one that was given, or what a given factory makes.

    Own clients, and those of a factory, are closed at their loop's end, when the adapter is dropped, or by `aclose`. A
    given one is its owner's to close; it belongs to the loop of its first call, and ``EngineError("wrong_loop")`` is
    raised on another.
    """

    def __init__(self, given: Any = None) -> None:
        self._given: httpx.AsyncClient | None = None if callable(given) else given
        self._factory = cast("Callable[[], httpx.AsyncClient]", given if callable(given) else own_client)
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = weakref.WeakKeyDictionary()
        self._owner: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._builder: httpx.AsyncClient | None = None

    async def get(self) -> httpx.AsyncClient:
        """The client for the running loop."""
        loop = asyncio.get_running_loop()
        if self._given is not None:
            self._claim(loop)
            return self._given
        if loop not in self._by_loop:
            kept = self._by_loop[loop] = _Kept(self._factory(), loop)
            await kept.open(self)
        return self._by_loop[loop].client

    def any(self) -> httpx.AsyncClient:
        """A client to build requests with; nothing is sent by it unless it is the loop's own."""
        loop = running_loop()
        if self._given is not None:
            return self._given
        if loop is not None and loop in self._by_loop:
            return self._by_loop[loop].client
        if self._builder is None:
            self._builder = self._factory()
        return self._builder

    async def aclose(self) -> None:
        """Close the running loop's client; the next call makes a new one."""
        kept = self._by_loop.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.aclose()

    def _claim(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._owner is None:
            self._owner = weakref.ref(loop)
        elif self._owner() is not loop:  # an owner that is gone left its connections in the client
            message = (
                "this client belongs to another event loop; give the adapter a factory, client=lambda: ..., instead"
            )
            raise EngineError("wrong_loop", message)


class _Kept:
    """A client and the end of its loop: loops close their asynchronous generators last, and so this one.

    It outlives its `Clients`, because the garbage collector cannot close a connection.
    """

    def __init__(self, client: httpx.AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self._loop = loop
        self._guard = self._until_closed()
        self._closing: asyncio.Task[None] | None = None

    async def open(self, owner: Clients) -> None:
        await anext(self._guard)
        self._dropped = weakref.finalize(owner, self._close_soon)
        self._dropped.atexit = False

    async def aclose(self) -> None:
        await self._guard.aclose()

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._dropped.detach()
            await self.client.aclose()

    def _close_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin_close)

    def _begin_close(self) -> None:
        self._closing = self._loop.create_task(self.aclose())


def own_client() -> httpx.AsyncClient:
    """The client that an adapter makes for itself.

    No limit on connections: a bounded pool loses its places when calls are cancelled while they queue (httpcore 1.0.9).
    """
    import httpx

    return httpx.AsyncClient(**client_settings(max_connections=None))


def client_settings(max_connections: int | None) -> dict[str, Any]:
    """How rxllm makes an ``httpx.AsyncClient``, of whatever transport."""
    import httpx

    return {
        "verify": _certificates(),
        "timeout": httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=60.0, pool=None),
        "limits": httpx.Limits(max_connections=max_connections, max_keepalive_connections=100),
    }


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates costs more than everything else in a client; they are the same for all.
    import httpx

    return httpx.create_ssl_context()
