"""HTTP clients: certificates, proxies, cookies and transport, which client a call uses, and who closes it.

A connection belongs to the event loop that opened it, so an adapter has clients for each loop.

=========================  ===============================================  ============================================
``client=``                clients                                          closed by
=========================  ===============================================  ============================================
None                       rxllm's own: some per loop, see ``pools``       their loop's end, the adapter's, `aclose`
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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rxllm.http.pools import CALLS, Pools
from rxllm.http.timeouts import CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS
from rxllm.runtime.portal import running_loop
from rxllm.runtime.threads import daemon_threads
from rxllm.values import EngineError
from rxllm.values.argument_checks import invalid_option, must_be

if TYPE_CHECKING:
    import httpx


def httpx_client(library: str = "httpx") -> httpx.AsyncClient:
    """Return a client such as an adapter makes for itself, of httpx or httpx2.

    It has no limit on connections: a bounded pool loses places to calls that are cancelled in its queue (httpcore
    1.0.9).
    """
    package = imported(library)
    return _new_client(lambda: package.AsyncClient(**client_settings(max_connections=None, library=library)))


def imported(transport: str) -> Any:
    """Return the package of `transport`. Raise ``EngineError("missing_dependency")`` if it is not installed."""
    package = {"aiohttp": "httpx_aiohttp"}.get(transport, transport)
    try:
        return import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        message = f"the transport {transport!r} needs {name}: pip install 'rxllm[{transport}]'"
        raise EngineError("missing_dependency", message) from error


def aiohttp_client() -> httpx.AsyncClient:
    """Return a client like those that adapters make for themselves, over aiohttp.

    ``rxllm.http.use_transport`` says what differs. Needs ``rxllm[aiohttp]``; without it, raise
    ``EngineError("missing_dependency")``.

    >>> from rxllm.adapters import OpenAIChat
    >>> OpenAIChat(client=aiohttp_client)
    OpenAIChat('https://api.openai.com/v1')
    """
    from urllib.request import getproxies

    httpx_aiohttp = imported("aiohttp")
    if any(url.startswith("socks") for url in getproxies().values()):  # it would speak HTTP to the proxy
        message = "aiohttp cannot use the SOCKS proxy that the environment names; use the transport 'httpx' instead"
        raise EngineError("invalid_engine", message)
    # To aiohttp 0 is no limit, and None is 100.
    client: Any = _new_client(lambda: httpx_aiohttp.HttpxAiohttpClient(**client_settings(max_connections=0)))
    for transport in {client._transport, *client._mounts.values()} - {None}:  # those of proxies too
        transport.client = functools.partial(_session_without_cookies, transport)
    return client


def _session_without_cookies(transport: Any) -> Any:
    """Return the session that `transport` makes, but without aiohttp's own cookies beside those of httpx."""
    import aiohttp

    transport.client = None
    session: Any = transport.get_client()
    connector = session.connector
    session.detach()
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def _new_client(make: Callable[[], httpx.AsyncClient]) -> httpx.AsyncClient:
    try:
        return make()
    except Exception as error:
        is_import = isinstance(error, ImportError)
        if not is_import and not isinstance(error, ValueError) and type(error).__name__ != "InvalidURL":
            raise
        # The environment's proxy is the only setting that is not rxllm's. Its URL is not shown: it may hold a password.
        message = f"a proxy that the environment names cannot be used ({type(error).__name__}): check {_PROXIES}"
        raise EngineError("missing_dependency" if is_import else "invalid_engine", message) from error


_PROXIES = "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; a SOCKS proxy needs pip install 'httpx[socks]'"


def client_settings(max_connections: int | None, library: str = "httpx") -> dict[str, Any]:
    """Return the arguments with which rxllm makes an ``AsyncClient`` of httpx or httpx2, whatever its transport."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    httpx = import_module(library)
    return {
        "verify": _certificates(),
        "timeout": httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=WRITE_SECONDS, pool=None),
        # uvicorn, Node and llama.cpp close a connection that has been idle for 5 s, which is httpx's default as well: a
        # call that is sent in that instant fails.
        "limits": httpx.Limits(max_connections=max_connections, max_keepalive_connections=100, keepalive_expiry=4.0),
        "headers": {"accept-encoding": "gzip, deflate"},  # what ``decompression`` can read
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # nothing passes from one call to another
    }


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates costs more than everything else in a client, and they are the same for all.
    import httpx

    return httpx.create_ssl_context()


_prepared: set[str] = set()


async def prepare(modules: tuple[str, ...]) -> None:
    """Import `modules` and load the certificates in a thread, so that clients are made without delay."""
    if not _prepared.issuperset(modules):
        await asyncio.shield(asyncio.wrap_future(_preparing(modules)))  # shielded, because others wait for it too


@functools.cache
def _preparing(modules: tuple[str, ...]) -> Future[None]:
    return daemon_threads().submit(_prepare, modules)


def _prepare(modules: tuple[str, ...]) -> None:
    # A client leaves some imports to its first connection. A failure here is raised again where the module is needed.
    with contextlib.suppress(Exception):
        for name in modules:
            import_module(name)
        _certificates()
    _prepared.update(modules)
    _preparing.cache_clear()  # the future refers to the loops of all its waiters


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_preparing.cache_clear)  # a forked child has none of its parent's threads


VARIABLE = "RXLLM_TRANSPORT"


class Transport(NamedTuple):
    """How clients are made, how many calls share one (None is any number), and the modules that a call needs."""

    make: Callable[[], httpx.AsyncClient]
    calls: int | None = None
    modules: tuple[str, ...] = ()


_ALL = ("httpx", "encodings.idna")
_TRANSPORTS = {
    "httpx": Transport(httpx_client, CALLS, (*_ALL, "httpcore", "anyio._backends._asyncio")),
    "httpx2": Transport(
        functools.partial(httpx_client, "httpx2"), CALLS, (*_ALL, "httpx2", "httpcore2", "anyio._backends._asyncio")
    ),
    "aiohttp": Transport(aiohttp_client, None, (*_ALL, "httpx_aiohttp")),
}

_chosen: str | None = None


def use_transport(name: Literal["httpx", "httpx2", "aiohttp"] | None) -> None:
    """Send requests over `name` from now on, also those of ``"provider:model"``. None undoes it.

    ::

        rxllm.http.use_transport("aiohttp")      # or, without a line of code: RXLLM_TRANSPORT=aiohttp

    The default is ``RXLLM_TRANSPORT``, or else httpx, whatever is installed. The choice applies to the clients that
    rxllm makes itself: at once where the model is named, and to an adapter on loops where it has made no call so far.
    It does not apply to adapters with a `client`, nor to ``"local"``.

    =============  ========================  ===========================================================================
    transport      needs                     what differs
    =============  ========================  ===========================================================================
    ``"httpx"``    nothing                   a call that is disposed while it connects ends once it is connected
    ``"httpx2"``   ``rxllm[httpx2]``         the same
    ``"aiohttp"``  ``rxllm[aiohttp]``        about half the CPU time where events arrive one by one, and many streams at
                                             once delay each other less: for services. A dispose ends at once. No SOCKS
                                             proxy: ``EngineError("invalid_engine")``. Errors have the same classes and
                                             reasons, and aiohttp's words. Mocks of httpx's transport do not see it
    =============  ========================  ===========================================================================

    Raise ``ValidationError("invalid_option")`` for another name, ``EngineError("missing_dependency")`` if its package
    is not installed.
    """
    global _chosen
    if name is not None:
        _find("name", name)
        imported(name)
    _chosen = name


def chosen_transport() -> Transport:
    """Return the transport of new clients."""
    if _chosen is not None:
        return _TRANSPORTS[_chosen]
    return _find(VARIABLE, os.environ.get(VARIABLE, "").strip().lower() or "httpx")


def _find(argument: str, name: Any) -> Transport:
    if not isinstance(name, str) or name not in _TRANSPORTS:
        raise invalid_option(argument, must_be("'httpx', 'httpx2' or 'aiohttp'", name))
    return _TRANSPORTS[name]


class Clients:
    """The clients of one adapter. `client` is what the user has passed: a client, a function that makes one, or None.

    A client that the user has passed belongs to the loop of its first call: ``EngineError("wrong_loop")`` is raised on
    another. Clients of a loop that was closed without ``shutdown_asyncgens`` are closed by the first call on another.
    """

    def __init__(self, client: Any = None) -> None:
        self._client: httpx.AsyncClient | None = None if callable(client) else client
        # None for rxllm's own clients: their transport is the one that is chosen when a loop has its first call.
        self._transport = Transport(cast("Callable[[], httpx.AsyncClient]", client)) if callable(client) else None
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
            await prepare((self._transport or chosen_transport()).modules)
        if loop not in self._by_loop:  # checked again: calls that begin together wait together
            transport = self._transport or chosen_transport()
            pools = self._by_loop[loop] = Pools(transport.make, transport.calls, self._by_loop)
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
            self._builder = (self._transport or chosen_transport()).make()
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
