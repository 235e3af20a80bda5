"""How rxllm makes an HTTP client: its certificates, proxies and cookies, with the seconds of ``_timeouts``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm.runtime._thread_pool import daemon_threads
from rxllm.runtime._timeouts import CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx


def httpx_client() -> httpx.AsyncClient:
    """Return a client such as an adapter makes for itself.

    It has no limit on connections: a bounded pool loses places to calls that are cancelled in its queue (httpcore
    1.0.9).
    """
    import httpx

    return _new_client(lambda: httpx.AsyncClient(**client_settings(max_connections=None)))


def imported(transport: str) -> Any:
    """Return the package of `transport`. Raise ``EngineError("missing_dependency")`` if it is not installed."""
    package = {"aiohttp": "httpx_aiohttp"}.get(transport, transport)
    try:
        return import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        message = f"the transport {transport!r} needs {name}: pip install 'rxllm[{transport}]'"
        raise EngineError("missing_dependency", message) from error


def httpx2_client() -> httpx.AsyncClient:
    """Return the same client, of httpx2."""
    httpx2 = imported("httpx2")
    return _new_client(lambda: httpx2.AsyncClient(**client_settings(max_connections=None, library="httpx2")))


def aiohttp_client() -> httpx.AsyncClient:
    """Return a client like those that adapters make for themselves, over aiohttp.

    ``rxllm.runtime.use_transport`` says what differs. Needs ``rxllm[aiohttp]``; without it, raise
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
        # The environment's proxy is the only setting that is not ours. Its URL is not shown: it may hold a password.
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
        "headers": {"accept-encoding": "gzip, deflate"},  # what ``_http_decompress`` can read
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # nothing passes from one call to another
    }


@functools.cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates costs more than everything else in a client, and they are the same for all.
    import httpx

    return httpx.create_ssl_context()


_prepared: set[str] = set()


async def prepare(modules: tuple[str, ...]) -> None:
    """Import `modules` in a thread, and do what else takes long the first time; then clients are made without delay."""
    if not _prepared.issuperset(modules):
        await asyncio.shield(asyncio.wrap_future(_preparing(modules)))  # shielded, because others wait for it too


@functools.cache
def _preparing(modules: tuple[str, ...]) -> Future[None]:
    return daemon_threads().submit(_prepare, modules)


def _prepare(modules: tuple[str, ...]) -> None:
    # Imports that a client leaves to the first connection, and the certificates. What fails here fails again where it
    # is needed, and is raised there.
    with contextlib.suppress(Exception):
        for name in modules:
            import_module(name)
        _certificates()
    _prepared.update(modules)
    _preparing.cache_clear()  # the future refers to the loops of all who have waited for it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_preparing.cache_clear)  # a forked child has none of its parent's threads
