"""HTTP clients, one per event loop, because a connection belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from rxllm.runtime._pools import CALLS, Pools
from rxllm.runtime._portal import running_loop
from rxllm.runtime._threads import daemon_threads
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""The longest silence of a provider: a model may think for minutes before its first word."""


class Clients:
    """The clients of one adapter: its own, some per loop, or the one that was given, or what a given factory makes.

    Own clients, and those of a factory, are closed at their loop's end, when the adapter is dropped, or by `aclose`;
    those of a loop that was closed without ``shutdown_asyncgens`` when another loop has its first call. A given one is
    its owner's to close; it belongs to the loop of its first call, and ``EngineError("wrong_loop")`` is raised on
    another.
    """

    def __init__(self, given: Any = None) -> None:
        self._given: httpx.AsyncClient | None = None if callable(given) else given
        self._own = given is None
        self._factory = cast("Callable[[], httpx.AsyncClient]", given if callable(given) else own_client)
        self._by_loop: dict[asyncio.AbstractEventLoop, Pools] = {}
        self._owner: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._builder: httpx.AsyncClient | None = None

    async def get(self) -> httpx.AsyncClient:
        """The client for a call on the running loop."""
        loop = asyncio.get_running_loop()
        if self._given is not None:
            self._claim(loop)
            return self._given
        if loop not in self._by_loop:
            await self._bury_the_dead()
            if self._own:
                await prepared()
        if loop not in self._by_loop:  # still: calls that begin together wait together
            pools = self._by_loop[loop] = Pools(self._factory, CALLS if self._own else None, self._by_loop)
            await pools.open(self)
        return self._by_loop[loop].pick()

    def any(self) -> httpx.AsyncClient:
        """A client to build requests with; nothing is sent by it unless it is the loop's own."""
        loop = running_loop()
        if self._given is not None:
            return self._given
        if loop is not None and loop in self._by_loop:
            return self._by_loop[loop].first
        if self._builder is None:
            self._builder = self._factory()
        return self._builder

    async def aclose(self) -> None:
        """Close the running loop's clients; the next call makes a new one."""
        pools = self._by_loop.get(asyncio.get_running_loop())
        if pools is not None:
            await pools.aclose()

    async def _bury_the_dead(self) -> None:
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            if (pools := self._by_loop.pop(loop, None)) is not None:
                await pools.bury()

    def _claim(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._owner is None:
            self._owner = weakref.ref(loop)
        elif self._owner() is not loop:  # an owner that is gone left its connections in the client
            message = (
                "this client belongs to another event loop; give the adapter a factory, client=lambda: ..., instead"
            )
            raise EngineError("wrong_loop", message)


_is_prepared = False


async def prepared() -> None:
    """Return once clients can be made at once: what takes long the first time has been done, in a thread."""
    if not _is_prepared:
        await asyncio.shield(asyncio.wrap_future(_preparing()))  # shielded, for others wait for it too


@functools.cache
def _preparing() -> Future[None]:
    return daemon_threads().submit(_prepare)


def _prepare() -> None:
    # Imports that httpx leaves to the first client or the first connection, and the certificates. What fails here
    # fails again, and is told, where it is needed.
    global _is_prepared
    with contextlib.suppress(Exception):
        for name in ("httpx", "httpcore", "anyio._backends._asyncio", "encodings.idna"):
            import_module(name)
        _certificates()
    _is_prepared = True
    _preparing.cache_clear()  # the future knows the loops of all who have waited for it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_preparing.cache_clear)  # a forked child has none of its parent's threads


def own_client() -> httpx.AsyncClient:
    """The client that an adapter makes for itself.

    No limit on connections: a bounded pool loses its places when calls are cancelled while they queue (httpcore 1.0.9).
    """
    import httpx

    settings = client_settings(max_connections=None)
    try:
        return httpx.AsyncClient(**settings)
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        # The environment's proxy is the only setting that is not ours. Its URL may hold a password.
        reason = "missing_dependency" if isinstance(error, ImportError) else "invalid_engine"
        message = f"a proxy that the environment names cannot be used ({type(error).__name__}): check {_PROXIES}"
        raise EngineError(reason, message) from error


_PROXIES = "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; a SOCKS proxy needs pip install 'httpx[socks]'"


def client_settings(max_connections: int | None) -> dict[str, Any]:
    """How rxllm makes an ``httpx.AsyncClient``, of whatever transport."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx

    return {
        "verify": _certificates(),
        "timeout": httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=60.0, pool=None),
        "limits": httpx.Limits(max_connections=max_connections, max_keepalive_connections=100),
        "headers": {"accept-encoding": "gzip, deflate"},  # what can be unpacked piece by piece
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # a call is told nothing of another
    }


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates costs more than everything else in a client; they are the same for all.
    import httpx

    return httpx.create_ssl_context()
