"""The connection pools of an event loop, and the errors of the transports below them.

A client of httpx is a pool of connections. For each call that begins or ends, httpcore 1.0.9 looks at every connection
of the pool, and compares idle connections with each other: a hundred calls over a hundred idle connections wait for
seconds. So the calls of a loop are spread over several small pools. Each call takes the first pool with room, so that
successive calls use the same connection.

==========================================  ========================================================================
the pools                                   are closed
==========================================  ========================================================================
all but the first, each                     after `IDLE_SECONDS` without a call
all, when their loop ends                   by their asynchronous generator, which ``shutdown_asyncgens`` closes
all, when their adapter is dropped          by a finalizer, soon, on their loop
all, if the loop was closed without that    by `close_dead`, on another loop
==========================================  ========================================================================

Errors and clients are recognised by the names of their classes: the same code handles httpx and httpx2, over httpcore
and over aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, MutableMapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from rxllm.http.decompression import DecompressionError
from rxllm.http.timeouts import IdleTimeoutError
from rxllm.values import AdapterError

if TYPE_CHECKING:
    import httpx


CALLS = 4
"""Maximum calls that share one of rxllm's own clients. With fewer, clients cost more than small pools save."""
IDLE_SECONDS = 5.0
"""Seconds for which idle pools of a burst are kept for the next burst; httpx keeps an idle connection as long."""


class Load:
    """The number of calls that use a client, and the time since which it is idle."""

    def __init__(self) -> None:
        self.calls = 0
        self.idle_since = 0.0


_loads: weakref.WeakKeyDictionary[Any, Load] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def in_use(client: httpx.AsyncClient) -> Generator[None]:
    """Count a call as a user of `client` while inside."""
    load = _loads.get(client) or Load()  # the load of a user's client is not read
    load.calls += 1
    try:
        yield
    finally:
        load.calls -= 1
        load.idle_since = asyncio.get_running_loop().time()


class Pools:
    """An adapter's clients on a loop, which `make` makes for `calls` calls each (None: any number).

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
    # Transports schedule their close for the next turn of their loop. A closed loop has none, so it is run now.
    # Other callbacks, such as the callbacks of tasks, are not run.
    if isinstance(getattr(fn, "__self__", None), asyncio.BaseTransport):
        fn(*args)


_REASONS = {
    "TimeoutException": "timeout",
    "TransportError": "network_error",
    "DecodingError": "malformed_response",
    "TooManyRedirects": "invalid_request",
    "InvalidURL": "invalid_request",
    "RequestError": "network_error",
    "StreamError": "network_error",
    # errors of aiohttp
    "ServerTimeoutError": "timeout",
    "ClientError": "network_error",
    "HttpProcessingError": "network_error",
    # errors of rxllm
    "IdleTimeoutError": "timeout",
    "DecompressionError": "malformed_response",
    "AddressError": "invalid_request",
}


class AddressError(ValueError):
    """The system does not accept the host or the port."""


def transport_error(error: Exception, provider: str | None, url: str, *, begun: bool = False) -> AdapterError | None:
    """Return `error` as an `AdapterError`, or None if no transport raised it. `begun`: whether a response had begun."""
    ours = isinstance(error, IdleTimeoutError | DecompressionError | AddressError)
    names = [type(error).__name__] if ours else _class_names(error, "httpx", "httpx2", "aiohttp")
    if names:  # httpx-aiohttp calls every refused or lost connection a ConnectTimeout; its cause has the right class
        names = _class_names(error.__cause__, "aiohttp") + names
    reason = next((_REASONS[name] for name in names if name in _REASONS), None)
    if reason is None:
        return None
    text = str(error) or names[0]
    is_silence = reason == "timeout" and "Connect" not in names[0]
    limit = f" of {text}" if isinstance(error, IdleTimeoutError) else ""
    failed = "broke off" if begun else "could not be reached"
    fault = f"sent nothing for longer than the timeout{limit}" if is_silence else f"{failed}: {text}"
    remedy = _remedy(url) if "Connect" in names[0] and not begun else ""
    result = AdapterError(reason, f"{url} {fault} ({names[0]}){remedy}", provider=provider)
    result.__context__, result.__suppress_context__ = error, True  # the message repeats all that a user needs
    return result


def _remedy(url: str) -> str:
    host = urlsplit(url).hostname or ""
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    return "; is the server running?" if is_local else "; check the base_url and the network"


def may_be_cancelled(client: Any) -> bool:
    """Whether a request of `client` may be cancelled while it connects: true over aiohttp, not over httpcore."""
    return any(_class_names(part, "httpx_aiohttp") for part in (client, getattr(client, "_transport", None)))


def _class_names(value: object, *libraries: str) -> list[str]:
    return [cls.__name__ for cls in type(value).__mro__ if cls.__module__.partition(".")[0] in libraries]
