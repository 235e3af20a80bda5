"""HTTP clients: how they are made, and which one a call uses.

A connection belongs to the event loop that opened it, so an adapter has clients for each loop.

=========================  ===============================================  ============================================
``client=``                clients                                          closed by
=========================  ===============================================  ============================================
None                       rxllm's own: some per loop, see ``_http_pools``  their loop's end, the adapter's, `aclose`
a function                 what it makes: one per loop                      the same
a client                   that one, on the loop of its first call only     its owner
=========================  ===============================================  ============================================
"""

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

from rxllm.runtime._http_pools import CALLS, Pools
from rxllm.runtime._portal import running_loop
from rxllm.runtime._thread_pool import daemon_threads
from rxllm.runtime._timeouts import CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx


class Clients:
    """The clients of one adapter. `client` is what the user has passed: a client, a function that makes one, or None.

    A client that the user has passed belongs to the loop of its first call: ``EngineError("wrong_loop")`` is raised on
    another. Clients of a loop that was closed without ``shutdown_asyncgens`` are closed by the first call on another.
    """

    def __init__(self, client: Any = None) -> None:
        self._client: httpx.AsyncClient | None = None if callable(client) else client
        self._is_own = client is None
        self._factory = cast("Callable[[], httpx.AsyncClient]", client if callable(client) else own_client)
        self._by_loop: dict[asyncio.AbstractEventLoop, Pools] = {}
        self._owner: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._builder: httpx.AsyncClient | None = None

    async def get(self) -> httpx.AsyncClient:
        """Return the client for a call on the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is not None:
            self._claim(loop)
            return self._client
        if loop not in self._by_loop:
            await self._close_dead()
            if self._is_own:
                await prepare()
        if loop not in self._by_loop:  # checked again: calls that begin together wait together
            pools = self._by_loop[loop] = Pools(self._factory, CALLS if self._is_own else None, self._by_loop)
            await pools.open(self)
        return self._by_loop[loop].pick()

    def any(self) -> httpx.AsyncClient:
        """Return a client to build requests with; nothing is sent with it unless it is the loop's own."""
        loop = running_loop()
        if self._client is not None:
            return self._client
        if loop is not None and loop in self._by_loop:
            return self._by_loop[loop].first
        if self._builder is None:
            self._builder = self._factory()
        return self._builder

    async def aclose(self) -> None:
        """Close the running loop's clients. The next call makes a new one."""
        pools = self._by_loop.get(asyncio.get_running_loop())
        if pools is not None:
            await pools.aclose()

    async def _close_dead(self) -> None:
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            if (pools := self._by_loop.pop(loop, None)) is not None:
                await pools.close_dead()

    def _claim(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._owner is None:
            self._owner = weakref.ref(loop)
        elif self._owner() is not loop:  # a loop that is gone has left its connections in the client
            message = "this client belongs to another event loop; pass a factory instead, client=lambda: ..."
            raise EngineError("wrong_loop", message)


_is_prepared = False


async def prepare() -> None:
    """Do what takes long the first time, in a thread; once this returns, clients are made without delay."""
    if not _is_prepared:
        await asyncio.shield(asyncio.wrap_future(_preparing()))  # shielded, because others wait for it too


@functools.cache
def _preparing() -> Future[None]:
    return daemon_threads().submit(_prepare)


def _prepare() -> None:
    # Imports that httpx leaves to the first client or the first connection, and the certificates. What fails here fails
    # again where it is needed, and is raised there.
    global _is_prepared
    with contextlib.suppress(Exception):
        for name in ("httpx", "httpcore", "anyio._backends._asyncio", "encodings.idna"):
            import_module(name)
        _certificates()
    _is_prepared = True
    _preparing.cache_clear()  # the future refers to the loops of all who have waited for it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_preparing.cache_clear)  # a forked child has none of its parent's threads


def own_client() -> httpx.AsyncClient:
    """Return a client such as an adapter makes for itself.

    It has no limit on connections: a bounded pool loses places to calls that are cancelled in its queue (httpcore
    1.0.9).
    """
    import httpx

    settings = client_settings(max_connections=None)
    try:
        return httpx.AsyncClient(**settings)
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        # The environment's proxy is the only setting that is not ours. Its URL is not shown: it may hold a password.
        reason = "missing_dependency" if isinstance(error, ImportError) else "invalid_engine"
        message = f"a proxy that the environment names cannot be used ({type(error).__name__}): check {_PROXIES}"
        raise EngineError(reason, message) from error


_PROXIES = "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; a SOCKS proxy needs pip install 'httpx[socks]'"


def client_settings(max_connections: int | None) -> dict[str, Any]:
    """Return the arguments with which rxllm makes an ``httpx.AsyncClient``, whatever its transport."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx

    return {
        "verify": _certificates(),
        "timeout": httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=WRITE_SECONDS, pool=None),
        "limits": httpx.Limits(max_connections=max_connections, max_keepalive_connections=100),
        "headers": {"accept-encoding": "gzip, deflate"},  # what ``_http_decompress`` can read
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # nothing passes from one call to another
    }


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates costs more than everything else in a client, and they are the same for all.
    import httpx

    return httpx.create_ssl_context()
