"""What connections have in common: the era, requests with their bounds, and what leaving one means.

A connection may be used from any loop and thread. Its first request finds out which era the server speaks; others wait
for that. A request that is left is cancelled at the server: by closing its POST in the modern era over HTTP, otherwise
by ``notifications/cancelled``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from typing import Self

from rxllm import AdapterError, LLMError, Stream, StreamError, from_async_iter, run, to_async_iter
from rxllm.mcp._protocol import (
    HANDSHAKES,
    MODERN,
    PROVIDER,
    UNSUPPORTED_VERSION,
    Json,
    Peer,
    answers,
    initialize,
    refusal,
    request,
    result_of,
    supported,
)
from rxllm.values.argument_checks import check, is_positive

GOODBYE_SECONDS = 2.0
"""How long a last word to a server, such as that a request is cancelled, may take."""

_PROBE = 1 / 3
"""The part of the timeout that a server has to answer in the modern era; some of the older ones never do."""

OnMessage = Callable[[Json], Awaitable[None]]


class Connection(ABC):
    """A server. `timeout` is how long it may take to answer anything but a tool call, in seconds.

    ``async with`` and ``with`` close it at the end; it can be used again, and then it connects again.
    """

    def __init__(self, timeout: float) -> None:
        check("timeout", timeout, is_positive(timeout), "a number of seconds above 0")
        self._timeout = timeout
        self._ids = itertools.count(1)
        self._guard = threading.Lock()
        self._peer: Future[Peer] | None = None

    @abstractmethod
    def send(self, peer: Peer, message: Json, headers: dict[str, str]) -> Stream[Json]:
        """Return what the server sends because of `message`; the response to a request is the last."""

    @abstractmethod
    def listen(self, peer: Peer) -> Stream[Json]:
        """Return what the server sends of its own accord, in the handshake's era."""

    @abstractmethod
    def mirrors(self, peer: Peer) -> bool:
        """Whether arguments of tools are sent as headers too."""

    @abstractmethod
    def needs_cancel(self, peer: Peer) -> bool:
        """Whether the server must be told that a request was left."""

    @abstractmethod
    async def leave(self, peer: Peer | None) -> None:
        """End the session of `peer`, if there is one, and close what is open."""

    def session_of(self, id: int | str) -> str | None:
        """Return the id of the session that the answer to the request `id` has begun."""
        return None

    async def aclose(self) -> None:
        with self._guard:
            future, self._peer = self._peer, None
        known = future is not None and future.done() and not future.cancelled()
        await self.leave(future.result() if future is not None and known else None)

    def close(self) -> None:
        """Close the connection on a thread without an event loop."""

        async def closing() -> AsyncIterator[None]:
            await self.aclose()
            yield

        run(from_async_iter(closing))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def request(
        self,
        method: str,
        params: Json,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> Json:
        """Return the result of a request. A session that the server has forgotten is begun anew, once.

        Raises ``AdapterError`` and ``StreamError``.
        """
        peer = await self.peer()
        try:
            return await self._ask(peer, method, params, seconds, on_message, headers)
        except AdapterError as error:
            if error.status != 404 or peer.session is None:
                raise
        with self._guard:
            if self._peer is not None and self._peer.done() and self._peer.result() is peer:
                self._peer = None
        return await self._ask(await self.peer(), method, params, seconds, on_message, headers)

    async def quick(self, method: str, params: Json) -> Json:
        """Return the result of a request that is no tool call, within the connection's timeout."""
        return await self.request(method, params, seconds=self._timeout)

    def changes(self, peer: Peer) -> Stream[Json]:
        """Return the notices of changes; in the modern era the first is that the subscription has begun."""
        if not peer.is_modern:
            return self.listen(peer)
        id = f"listen-{next(self._ids)}"
        message = request(peer, id, "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        return self.send(peer, message, {})

    async def peer(self) -> Peer:
        """Return what is known of the server, after finding it out at the first use."""
        while True:
            with self._guard:
                future, is_first = self._peer, self._peer is None
                if future is None:
                    future = self._peer = Future[Peer]()
            if is_first:
                return await self._introduced(future)
            try:
                return await asyncio.shield(asyncio.wrap_future(future))
            except asyncio.CancelledError:
                if not future.cancelled():
                    raise

    async def _introduced(self, future: Future[Peer]) -> Peer:
        try:
            peer = await self._negotiate()
        except BaseException:
            with self._guard:
                if self._peer is future:
                    self._peer = None
            future.cancel()  # those who wait try for themselves
            raise
        future.set_result(peer)
        return peer

    async def _negotiate(self) -> Peer:
        modern = Peer(MODERN)
        try:
            found = await self._ask(modern, "server/discover", {}, self._timeout * _PROBE)
            if MODERN in found.get("supportedVersions", ()):
                return modern
        except LLMError as error:
            if isinstance(error, AdapterError) and MODERN in supported(error):
                return modern
            if not _may_be_older(error):
                raise
        try:
            return await self._shake_hands()
        except AdapterError as error:  # it was too slow to say that it is modern
            if error.code == str(UNSUPPORTED_VERSION) and MODERN in supported(error):
                return modern
            raise

    async def _shake_hands(self) -> Peer:
        id = next(self._ids)
        newest = Peer(HANDSHAKES[0])
        result = await self._ask(newest, "initialize", initialize(), self._timeout, id=id)
        version = result.get("protocolVersion")
        if version not in HANDSHAKES:
            message = f"the MCP server speaks version {str(version)[:40]!r} only; rxllm speaks {MODERN}, {HANDSHAKES}"
            raise AdapterError("unsupported_feature", message, provider=PROVIDER)
        peer = Peer(version, self.session_of(id))
        await self.tell(peer, request(peer, None, "notifications/initialized", {}))
        return peer

    async def _ask(
        self,
        peer: Peer,
        method: str,
        params: Json,
        seconds: float | None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
        *,
        id: int | None = None,
    ) -> Json:
        id = next(self._ids) if id is None else id
        message = request(peer, id, method, params)
        try:
            async with asyncio.timeout(seconds), to_async_iter(self.send(peer, message, headers or {})) as received:
                async for answer in received:
                    if answers(answer, id):
                        return result_of(answer)
                    if "id" in answer and (on_message is None or answer.get("method") != "elicitation/create"):
                        await self._refuse(peer, answer)
                    elif on_message is not None:
                        await on_message(answer)
        except TimeoutError:
            await self._cancel(peer, id)
            text = f"the MCP server did not answer {method} within {seconds} s; pass a longer timeout=..."
            raise AdapterError("timeout", text, provider=PROVIDER) from None
        except (asyncio.CancelledError, NeedsUserError, StreamError):
            await self._cancel(peer, id)
            raise
        raise StreamError("truncated", f"the MCP server ended its answer to {method} early", provider=PROVIDER)

    async def _refuse(self, peer: Peer, message: Json) -> None:
        if "method" in message:  # otherwise it is the response to nothing
            await self.tell(peer, refusal(message))

    async def tell(self, peer: Peer, message: Json, seconds: float | None = None) -> None:
        """Send a notification or a response."""
        async with asyncio.timeout(seconds or self._timeout):
            async with to_async_iter(self.send(peer, message, {})) as received:
                async for _ in received:
                    pass

    async def _cancel(self, peer: Peer, id: int) -> None:
        if self.needs_cancel(peer):
            message = request(peer, None, "notifications/cancelled", {"requestId": id})
            with contextlib.suppress(LLMError, TimeoutError):
                await self.tell(peer, message, GOODBYE_SECONDS)


class NeedsUserError(Exception):
    """Raised by an `OnMessage` to leave a request, which is cancelled at the server."""


def _may_be_older(error: LLMError) -> bool:
    """Whether a server that answers ``server/discover`` like this may speak the handshake."""
    if not isinstance(error, AdapterError):
        return True
    if error.code is not None or error.reason in ("timeout", "malformed_response"):
        return True
    return error.status is not None and 400 <= error.status < 500 and error.status not in (401, 403, 429)
