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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Self

from rxllm import AdapterError, LLMError, Stream, StreamError, from_async_iter, keys, run, to_async_iter
from rxllm.mcp._protocol import (
    HANDSHAKES,
    MODERN,
    PROVIDER,
    Json,
    answers,
    error_of,
    has_modern,
    has_result,
    initialize,
    is_modern,
    is_of_another,
    request,
    response,
)
from rxllm.values.argument_checks import check, is_positive

GOODBYE_SECONDS = 2.0
"""How long a last word to a server, such as that a request is cancelled, may take."""

_PROBE = 1 / 3
"""The part of the timeout that a server has to answer in the modern era; some of the older ones never do."""

_OLD_TRANSPORT = (
    "the MCP server takes no POST at this URL (405 Method Not Allowed); it may speak the HTTP+SSE transport of 2024, "
    "which rxllm does not; use its URL for streamable HTTP, often /mcp in place of /sse"
)

NOTHING: Mapping[str, str] = {}

OnMessage = Callable[[Json], Json | None]
"""Receives the notifications and requests inside a call, and returns the result of a request that it can answer."""


class Connection(ABC):
    """A server. `timeout` is how long it may take to answer anything but a tool call, in seconds.

    With a `version` of the protocol, it is not asked which ones it speaks.

    ``async with`` and ``with`` close it at the end; it can be used again, and then it connects again.
    """

    session: str | None = None
    secrets: Sequence[str] = ()
    """What no error may show, beside what the transport keeps out of its own."""

    def __init__(self, timeout: float, version: str | None) -> None:
        check("timeout", timeout, is_positive(timeout), "a number of seconds above 0")
        check("version", version, version in (None, MODERN, *HANDSHAKES), f"None or one of {MODERN}, {HANDSHAKES}")
        self._timeout, self._wanted = timeout, version
        self._ids = itertools.count(1)
        self._guard = threading.Lock()
        self._version: Future[str] | None = None
        self.definitions: dict[str, str] = {}
        """What each tool was when it was first listed, by its name here."""

    @abstractmethod
    def send(self, version: str, message: Json, headers: Mapping[str, str]) -> Stream[Json]:
        """Return what the server sends because of `message`; the response to a request is the last."""

    @abstractmethod
    def listen(self, version: str) -> Stream[Json]:
        """Return what the server sends of its own accord, in the handshake's era."""

    @abstractmethod
    def needs_cancel(self, version: str) -> bool:
        """Whether the server must be told that a request was left."""

    async def aclose(self) -> None:
        """Close what is open. The connection can be used again."""
        with self._guard:
            self._version = self.session = None

    def close(self) -> None:
        """Close the connection on a thread without an event loop; inside a coroutine write ``await aclose()``."""

        async def closing() -> AsyncIterator[None]:
            yield await self.aclose()

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
        self, method: str, params: Json, headers: Mapping[str, str] = NOTHING, on_message: OnMessage | None = None
    ) -> Json:
        """Return the result of a request. With `on_message` it is a tool call, whose time limit is the caller's.

        Raises ``AdapterError`` and ``StreamError``, and what `on_message` does.
        """
        seconds = self._timeout if on_message is None else None
        version = await self.version()
        session = self.session
        try:
            return await self._ask(version, method, params, seconds, headers, on_message)
        except AdapterError as error:
            if error.status != 404 or session is None:
                raise
        with self._guard:  # the server has forgotten the session: begin another, once
            if self.session == session:
                self._version = self.session = None
        return await self._ask(await self.version(), method, params, seconds, headers, on_message)

    def changes(self, version: str) -> Stream[Json]:
        """Return the notices of changes; in the modern era the first is that the subscription has begun."""
        if version != MODERN:
            return self.listen(version)
        id, params = f"listen-{next(self._ids)}", {"notifications": {"toolsListChanged": True}}
        return self.send(version, request(version, id, "subscriptions/listen", params), NOTHING)

    async def version(self) -> str:
        """Return the version that the server speaks, after finding it out at the first use."""
        while True:
            with self._guard:
                future, is_first = self._version, self._version is None
                if future is None:
                    future = self._version = Future[str]()
            if is_first:
                return await self._find_out(future)
            try:
                return await asyncio.shield(asyncio.wrap_future(future))
            except asyncio.CancelledError:
                if not future.cancelled():
                    raise

    async def _find_out(self, future: Future[str]) -> str:
        try:
            version = await self._negotiate()
        except BaseException as error:
            with self._guard:
                if self._version is future:
                    self._version = None
            if isinstance(error, LLMError):
                future.set_exception(error)
            else:
                future.cancel()  # this caller has left, and those who wait try for themselves
            raise
        future.set_result(version)
        return version

    async def _negotiate(self) -> str:
        if self._wanted is not None:
            return self._wanted if self._wanted == MODERN else await self._shake_hands(self._wanted)
        try:
            found = await self._ask(MODERN, "server/discover", {}, self._timeout * _PROBE)
            if has_modern(found.get("supportedVersions")):
                return MODERN
        except LLMError as error:
            if is_modern(error):
                return MODERN
            if not _may_be_older(error):
                raise
        try:
            return await self._shake_hands(HANDSHAKES[0])
        except AdapterError as error:
            if is_modern(error):  # it was too slow to say so
                return MODERN
            raise

    async def _shake_hands(self, wanted: str) -> str:
        try:
            found = await self._ask(wanted, "initialize", initialize(wanted), self._timeout)
        except AdapterError as error:
            if error.status != 405:
                raise
            raise AdapterError("unsupported_feature", _OLD_TRANSPORT, provider=PROVIDER, status=405) from error
        version = found.get("protocolVersion")
        if version not in HANDSHAKES:
            message = f"the MCP server speaks version {str(version)[:40]!r} only; rxllm speaks {MODERN}, {HANDSHAKES}"
            raise AdapterError("unsupported_feature", message, provider=PROVIDER)
        await self._tell(version, request(version, None, "notifications/initialized", {}), self._timeout)
        return version

    async def _ask(
        self,
        version: str,
        method: str,
        params: Json,
        seconds: float | None,
        headers: Mapping[str, str] = NOTHING,
        on_message: OnMessage | None = None,
    ) -> Json:
        id = next(self._ids)
        sent = self.send(version, request(version, id, method, params), headers)
        try:
            async with asyncio.timeout(seconds), to_async_iter(sent) as received:
                async for message in received:
                    if answers(message, id):
                        if has_result(message):
                            return message["result"]
                        raise keys.redacted(error_of(message), self.secrets)
                    if is_of_another(message, id):
                        continue
                    result = None if on_message is None else on_message(message)
                    if "id" in message:
                        await self._tell(version, response(message, result), self._timeout)
            raise StreamError("truncated", f"the MCP server ended its answer to {method} early", provider=PROVIDER)
        except AdapterError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if method != "initialize":  # which must not be cancelled
                await self._cancel(version, id)
            if not isinstance(error, TimeoutError):
                raise
        text = (
            f"the MCP server did not answer {method} within {seconds or self._timeout:g} s; pass a longer timeout=..."
        )
        raise AdapterError("timeout", text, provider=PROVIDER)

    async def _tell(self, version: str, message: Json, seconds: float) -> None:
        """Send a notification or a response."""
        async with asyncio.timeout(seconds), to_async_iter(self.send(version, message, NOTHING)) as received:
            async for _ in received:
                pass

    async def _cancel(self, version: str, id: int) -> None:
        if self.needs_cancel(version):
            message = request(version, None, "notifications/cancelled", {"requestId": id})
            with contextlib.suppress(LLMError, TimeoutError):
                await self._tell(version, message, GOODBYE_SECONDS)


def _may_be_older(error: LLMError) -> bool:
    """Whether a server that answers ``server/discover`` like this may speak the handshake."""
    if not isinstance(error, AdapterError):
        return True
    if error.code is not None or error.reason in ("timeout", "malformed_response"):
        return True
    return error.status is not None and 400 <= error.status < 500 and error.status not in (401, 403, 429)
