"""Create, choose and close HTTP clients.

A connection belongs to one event loop, so each loop has its own clients.

====================  ===============================================  =================================================
`client` argument     clients that calls use                           when they are closed
====================  ===============================================  =================================================
None                  several of rxllm's own clients for each loop;    with their loop or adapter, or by `aclose`
                      see ``pools``
a function            one client for each loop, which the function     with their loop or adapter, or by `aclose`
                      returns
a client              this client, only on the loop of its first call  when its owner closes it
====================  ===============================================  =================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import ssl
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rxllm.http.decompression import ENCODINGS
from rxllm.http.pools import CALLS, KEEPALIVE_SECONDS, Pools
from rxllm.http.proxies import proxies, proxy_mounts
from rxllm.http.timeouts import CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS
from rxllm.runtime.portal import running_loop
from rxllm.runtime.threads import daemon_threads
from rxllm.values import EngineError
from rxllm.values.argument_checks import invalid_option, must_be

if TYPE_CHECKING:
    import httpx


def httpx_client(library: str = "httpx") -> httpx.AsyncClient:
    """Return an httpx or httpx2 client that has rxllm's settings and no limit on the number of connections."""
    package = imported(library)
    return _new_client(
        package.AsyncClient, package.AsyncHTTPTransport, client_settings(max_connections=None, library=library)
    )


def imported(transport: str) -> Any:
    """Import the package that `transport` needs, and return it.

    Raises ``EngineError("missing_dependency")`` if the package is not installed.
    """
    package = {"aiohttp": "httpx_aiohttp"}.get(transport, transport)
    try:
        return import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        message = f"the transport {transport!r} needs {name}: pip install 'rxllm[{transport}]'"
        raise EngineError("missing_dependency", message) from error


def aiohttp_client() -> httpx.AsyncClient:
    """Return a client that uses aiohttp and has rxllm's settings.

    Raises ``EngineError("missing_dependency")`` if ``rxllm[aiohttp]`` is not installed.

    >>> from rxllm.adapters import OpenAIChat
    >>> OpenAIChat(client=aiohttp_client)
    OpenAIChat('https://api.openai.com/v1')
    """
    import httpx

    httpx_aiohttp = imported("aiohttp")
    if any(url.startswith("socks") for url in proxies().values()):  # aiohttp treats every proxy as an HTTP proxy
        message = "the environment sets a SOCKS proxy, which aiohttp cannot use; use the transport 'httpx' instead"
        raise EngineError("invalid_engine", message)

    def new_transport(proxy: str | None, **settings: Any) -> Any:
        transport = httpx_aiohttp.AiohttpTransport(proxy=proxy and httpx.Proxy(proxy), **settings)
        transport.client = functools.partial(_session_without_cookies, transport)
        return transport

    # In aiohttp, 0 means no limit and None means 100.
    return _new_client(httpx_aiohttp.HttpxAiohttpClient, new_transport, client_settings(max_connections=0))


def _session_without_cookies(transport: Any) -> Any:
    """Return a session for `transport` that does not store cookies.

    The session uses the connector that `transport` creates.
    """
    import aiohttp

    transport.client = None
    session: Any = transport.get_client()
    connector = session.connector
    session.detach()
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def _new_client(
    new_client: Callable[..., Any], new_transport: Callable[..., Any], settings: dict[str, Any]
) -> httpx.AsyncClient:
    """Return a client whose transports obey the proxies of the environment."""
    pool = {"verify": settings["verify"], "limits": settings["limits"]}
    try:
        mounts = proxy_mounts(lambda proxy: new_transport(proxy=proxy, **pool))
        return new_client(transport=new_transport(proxy=None, **pool), mounts=mounts, **settings)
    except Exception as error:
        is_import = isinstance(error, ImportError)
        if not is_import and not isinstance(error, ValueError) and type(error).__name__ != "InvalidURL":
            raise
        # Only a proxy from the environment can cause this. Do not show its URL, which may contain a password.
        message = f"a proxy set in the environment cannot be used ({type(error).__name__}); check {_PROXIES}"
        raise EngineError("missing_dependency" if is_import else "invalid_engine", message) from error


_PROXIES = "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; for a SOCKS proxy, run pip install 'httpx[socks]'"


def client_settings(max_connections: int | None, library: str = "httpx") -> dict[str, Any]:
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    httpx = import_module(library)
    return {
        "verify": _certificates(),
        "timeout": httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=WRITE_SECONDS, pool=None),
        "limits": httpx.Limits(
            max_connections=max_connections, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_SECONDS
        ),
        "headers": {"accept-encoding": ENCODINGS},
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # cookies must not be shared between calls
    }


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Loading certificates is slow, so all clients share them.
    import httpx

    name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "")
    try:
        if name == "SSL_CERT_DIR" and not any(map(os.path.isdir, os.environ[name].split(os.pathsep))):
            raise FileNotFoundError(errno.ENOENT, "no such folder")  # httpx would trust no server
        return httpx.create_ssl_context()
    except OSError as error:  # including SSLError
        if not name:
            raise
        fault = "has no certificates" if isinstance(error, ssl.SSLError) else f"cannot be read ({error.strerror})"
        form = "file of PEM certificates" if name == "SSL_CERT_FILE" else "folder of PEM certificates"
        message = f"{name} {fault}: got {os.environ[name][:80]!r}; set it to a {form}, or unset it"
        raise EngineError("invalid_engine", message) from error


_prepared: set[str] = set()


async def prepare(modules: tuple[str, ...]) -> None:
    """Import `modules` and load the certificates in a background thread."""
    if not _prepared.issuperset(modules):
        # The future is shielded, because other calls may be waiting for it too.
        await asyncio.shield(asyncio.wrap_future(_preparing(modules)))


@functools.cache
def _preparing(modules: tuple[str, ...]) -> Future[None]:
    return daemon_threads().submit(_prepare, modules)


def _prepare(modules: tuple[str, ...]) -> None:
    # If an import fails, it is tried again when a client connects.
    with contextlib.suppress(Exception):
        for name in modules:
            import_module(name)
        _certificates()
    _prepared.update(modules)
    _preparing.cache_clear()  # otherwise, the future would keep the loops of its waiters alive


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_preparing.cache_clear)  # a forked child does not have its parent's threads


VARIABLE = "RXLLM_TRANSPORT"


class Transport(NamedTuple):
    """A client factory, plus the maximum number of calls per client and the modules that the factory needs."""

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
    """Use the transport `name` from now on. None restores the default.

    ::

        rxllm.http.use_transport("aiohttp")      # or, without a line of code: RXLLM_TRANSPORT=aiohttp

    The default is the value of ``RXLLM_TRANSPORT`` or, if that is not set, httpx.

    The choice applies to rxllm's own clients, except for those of ``"local"``. Engines that are given by the name of
    one of rxllm's own providers, such as ``"openai:gpt-5"``, switch to the new transport at once. If an existing
    adapter has already been called on a loop, it keeps the previous transport on that loop until its `aclose` is called
    there. On every other loop, it uses the new transport. Adapters that were given a `client` are not affected.

    =============  ========================  ===========================================================================
    transport      needs                     differences
    =============  ========================  ===========================================================================
    ``"httpx"``    nothing                   If a call is disposed while it is connecting, it ends once it is connected.
    ``"httpx2"``   ``rxllm[httpx2]``         If a call is disposed while it is connecting, it ends once it is connected.
    ``"aiohttp"``  ``rxllm[aiohttp]``        A good choice for services: it uses about half as much CPU time as httpx if
                                             events arrive one by one, and concurrent streams delay each other less.
                                             Disposed calls end at once. A SOCKS proxy raises
                                             ``EngineError("invalid_engine")``. Errors have the same classes and
                                             reasons, but their messages are aiohttp's. Mocks of httpx's transport do
                                             not see the requests.
    =============  ========================  ===========================================================================

    Raises ``ValidationError("invalid_option")`` if `name` is anything else, and ``EngineError("missing_dependency")``
    if the transport's package is not installed.
    """
    global _chosen
    if name is not None:
        _find("name", name)
        imported(name)
    _chosen = name


def chosen_transport() -> Transport:
    if _chosen is not None:
        return _TRANSPORTS[_chosen]
    return _find(VARIABLE, os.environ.get(VARIABLE, "").strip().lower() or "httpx")


def _find(argument: str, name: Any) -> Transport:
    if not isinstance(name, str) or name not in _TRANSPORTS:
        raise invalid_option(argument, must_be("'httpx', 'httpx2' or 'aiohttp'", name))
    return _TRANSPORTS[name]


class Clients:
    """The HTTP clients of an adapter.

    `client` is a client, a client factory, or None. A client belongs to the loop of its first call. If it is used on
    another loop, the call raises ``EngineError("wrong_loop")``. The first call on a new loop closes the clients whose
    loops have been closed.
    """

    def __init__(self, client: Any = None) -> None:
        self._client: httpx.AsyncClient | None = None if callable(client) else client
        # If `_client` and `_transport` are both None, the transport from ``chosen_transport()`` creates the clients.
        self._transport = Transport(cast("Callable[[], httpx.AsyncClient]", client)) if callable(client) else None
        self._by_loop: dict[asyncio.AbstractEventLoop, Pools] = {}
        self._owner: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._builder: httpx.AsyncClient | None = None

    async def get(self) -> httpx.AsyncClient:
        """Return a client that can be used for one call on the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is not None:
            self._claim(loop)
            return self._client
        if loop not in self._by_loop:
            await self._close_dead()
            await prepare((self._transport or chosen_transport()).modules)
        if loop not in self._by_loop:  # another call may have created the pools by now
            transport = self._transport or chosen_transport()
            pools = self._by_loop[loop] = Pools(transport.make, transport.calls, self._by_loop)
            await pools.open(self)
        return self._by_loop[loop].pick()

    def any(self) -> httpx.AsyncClient:
        """Return a client that can build requests. The requests can be sent by any other client."""
        loop = running_loop()
        if self._client is not None:
            return self._client
        if loop is not None and loop in self._by_loop:
            return self._by_loop[loop].first
        if self._builder is None:
            self._builder = (self._transport or chosen_transport()).make()
        return self._builder

    async def aclose(self) -> None:
        """Close the clients of the running loop. The next call creates new ones."""
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
        # Even if the owner's loop no longer exists, the client still holds connections that belong to it.
        elif self._owner() is not loop:
            message = "this client belongs to another event loop; pass a factory instead, such as client=lambda: ..."
            raise EngineError("wrong_loop", message)
