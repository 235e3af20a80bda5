"""How rxllm makes an HTTP client: its timeouts, certificates, proxies and cookies, without a limit of connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm.runtime._thread_pool import daemon_threads
from rxllm.runtime._timeouts import CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx


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
