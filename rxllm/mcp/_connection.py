"""The base class of connections, for both eras of MCP.

====================  ========================  ======================================================================
era                   protocol versions         how a client begins
====================  ========================  ======================================================================
modern, stateless     2026-07-28                It sends ``server/discover``. Each request names its protocol version.
handshake             2024-11-05 to 2025-11-25  It sends ``initialize``. Over HTTP, this begins a session.
====================  ========================  ======================================================================

A connection can be used from any loop or thread. Its first request finds out which era the server belongs to, and all
other requests wait until that is known. If a request is disposed, it is also cancelled on the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, cast

import rxllm
from rxllm import AdapterError, LLMError, Stream, StreamError, from_async_iter, keys, run, to_async_iter
from rxllm.values.argument_checks import check, is_positive

MODERN = "2026-07-28"
HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

UNSUPPORTED_VERSION = "-32022"
METHOD_NOT_FOUND = -32601

PROVIDER = "mcp"
DEPTH = 100
"""The maximum nesting depth of a server's JSON."""

DATA_SHOWN = 4_000
"""The maximum length of an error's data, in characters. Longer data is left out."""

GOODBYE_SECONDS = 2.0
"""The timeout for sending a last message, such as a cancellation."""

_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
_META = "io.modelcontextprotocol/"
_REASONS = {METHOD_NOT_FOUND: "unsupported_feature", -32602: "invalid_request", -32600: "invalid_request"}

_PROBE = 1 / 3
"""The share of the timeout that may be spent on ``server/discover``, which some older servers never answer."""

_OLD_TRANSPORT = (
    "the MCP server does not accept POST at this URL; it may use the 2024 HTTP+SSE transport, which rxllm does not "
    "support; use its streamable HTTP URL, often /mcp instead of /sse"
)

Json = dict[str, Any]

OnMessage = Callable[[Json], Json | None]
"""A function that receives each notification or request that the server sends during a tool call."""


class Connection(ABC):
    """A connection to a server.

    `timeout` is in seconds, and does not apply to tool calls. If `version` is given, rxllm does not ask whether the
    server supports a later one. ``with`` and ``async with`` close the connection. A closed connection reconnects when
    it is used again.
    """

    session: str | None = None
    secrets: Sequence[str] = ()
    """Additional secrets that errors must not reveal."""

    def __init__(self, timeout: float, version: str | None) -> None:
        check("timeout", timeout, is_positive(timeout), "a positive number of seconds")
        check("version", version, version in (None, MODERN, *HANDSHAKES), f"None or one of {MODERN}, {HANDSHAKES}")
        self._timeout, self._wanted = timeout, version
        self._ids = itertools.count(1)
        self._guard = threading.Lock()
        self._version: Future[str] | None = None
        self.definitions: dict[str, str] = {}
        """The digests of the accepted tools. The keys are the tools' names in rxllm."""

    @abstractmethod
    def send(self, version: str, message: Json, headers: Mapping[str, str]) -> Stream[Json]:
        """Send `message`, and return the replies. The last reply is the response."""

    @abstractmethod
    def listen(self, version: str) -> Stream[Json]:
        """Return the messages that a handshake-era server sends without being asked."""

    @abstractmethod
    def needs_cancel(self, version: str) -> bool:
        """Return whether the server must be notified when a request is disposed."""

    async def aclose(self) -> None:
        """Close the connection. The next request reopens it."""
        with self._guard:
            self._version = self.session = None

    def close(self) -> None:
        """Close the connection. In a coroutine, use ``await aclose()``."""

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
        self, method: str, params: Json, headers: Mapping[str, str] = {}, on_message: OnMessage | None = None
    ) -> Json:
        """Send a request and return its result.

        If `on_message` is given, the request is a tool call, which has no timeout of its own.

        Raises ``AdapterError``, ``StreamError`` and any error that `on_message` raises.
        """
        seconds = self._timeout if on_message is None else None
        version = await self.version()
        session = self.session
        try:
            return await self._ask(version, method, params, seconds, headers, on_message)
        except AdapterError as error:
            if error.status != 404 or session is None:
                raise
        with self._guard:  # start a single new session in place of the lost session
            if self.session == session:
                self._version = self.session = None
        return await self._ask(await self.version(), method, params, seconds, headers, on_message)

    def changes(self, version: str) -> Stream[Json]:
        """Return the server's change notifications."""
        if version != MODERN:
            return self.listen(version)
        id, params = f"listen-{next(self._ids)}", {"notifications": {"toolsListChanged": True}}
        return self.send(version, request(version, id, "subscriptions/listen", params), {})

    async def version(self) -> str:
        """Return the protocol version to use with the server."""
        while True:
            with self._guard:
                future, is_first = self._version, self._version is None
                if future is None:
                    future = self._version = Future[str]()
            if is_first:
                return await self._settle(future)
            try:
                return await asyncio.shield(asyncio.wrap_future(future))
            except asyncio.CancelledError:
                if not future.cancelled():
                    raise

    async def _settle(self, future: Future[str]) -> str:
        try:
            version = await self._negotiate()
        except BaseException as error:
            with self._guard:
                if self._version is future:
                    self._version = None
            if isinstance(error, LLMError):
                future.set_exception(error)
            else:
                future.cancel()  # callers that are waiting for this future then negotiate for themselves
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
            if is_modern(error):  # the server was too slow to answer `server/discover`
                return MODERN
            raise

    async def _shake_hands(self, wanted: str) -> str:
        params = {"protocolVersion": wanted, "capabilities": _CAPABILITIES, "clientInfo": _client_info()}
        try:
            found = await self._ask(wanted, "initialize", params, self._timeout)
        except AdapterError as error:
            if error.status != 405:
                raise
            raise AdapterError("unsupported_feature", _OLD_TRANSPORT, provider=PROVIDER, status=405) from error
        version = found.get("protocolVersion")
        if version not in HANDSHAKES:
            message = f"the MCP server needs version {str(version)[:40]!r}; rxllm supports {MODERN}, {HANDSHAKES}"
            raise AdapterError("unsupported_feature", message, provider=PROVIDER)
        await self._notify(version, request(version, None, "notifications/initialized", {}), self._timeout)
        return version

    async def _ask(
        self,
        version: str,
        method: str,
        params: Json,
        seconds: float | None,
        headers: Mapping[str, str] = {},
        on_message: OnMessage | None = None,
    ) -> Json:
        id = next(self._ids)
        sent = self.send(version, request(version, id, method, params), headers)
        try:
            async with asyncio.timeout(seconds), to_async_iter(sent) as received:
                async for message in received:
                    if is_response_to(message, id):
                        return self._result_of(message)
                    if not is_about_another(message, id):
                        await self._receive(version, message, on_message)
            raise StreamError("truncated", f"the MCP server ended its answer to {method} early", provider=PROVIDER)
        except AdapterError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if method != "initialize":  # the handshake must not be cancelled
                await self._cancel(version, id)
            if not isinstance(error, TimeoutError):
                raise
        fault = f"the MCP server did not answer {method} within {seconds or self._timeout:g} s"
        raise AdapterError("timeout", f"{fault}; pass a longer timeout=...", provider=PROVIDER)

    def _result_of(self, response: Json) -> Json:
        if not has_result(response):
            raise keys.redacted(error_of(response), self.secrets)
        return response["result"]

    async def _receive(self, version: str, message: Json, on_message: OnMessage | None) -> None:
        result = None if on_message is None else on_message(message)
        if "id" in message:
            await self._notify(version, response(message, result), self._timeout)

    async def _notify(self, version: str, message: Json, seconds: float) -> None:
        async with asyncio.timeout(seconds), to_async_iter(self.send(version, message, {})) as received:
            async for _ in received:
                pass

    async def _cancel(self, version: str, id: int) -> None:
        if self.needs_cancel(version):
            message = request(version, None, "notifications/cancelled", {"requestId": id})
            with contextlib.suppress(LLMError, TimeoutError):
                await self._notify(version, message, GOODBYE_SECONDS)


def _may_be_older(error: LLMError) -> bool:
    """Return whether the server may be from the handshake era."""
    if not isinstance(error, AdapterError):
        return True
    if error.code is not None or error.reason in ("timeout", "malformed_response"):
        return True
    return error.status is not None and 400 <= error.status < 500 and error.status not in (401, 403, 429)


# JSON-RPC 2.0 messages for the modern and the older protocol versions


def request(version: str, id: int | str | None, method: str, params: Json) -> Json:
    """Return a JSON-RPC request, or a notification if `id` is None."""
    meta: Json = {"progressToken": id} if method == "tools/call" else {}
    if version == MODERN:
        own: Json = {"protocolVersion": MODERN, "clientCapabilities": _CAPABILITIES, "clientInfo": _client_info()}
        meta |= {f"{_META}{name}": value for name, value in own.items()}
    params = {**params, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", **({} if id is None else {"id": id}), "method": method, "params": params}


def _client_info() -> Json:
    return {"name": "rxllm", "version": rxllm.__version__}


def response(message: Json, result: Json | None) -> Json:
    """Return the response to `message`. If `result` is None, every request except a ping is answered with an error."""
    if result is None and message.get("method") != "ping":
        error = {"code": METHOD_NOT_FOUND, "message": "this client does not support the method"}
        return {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
    return {"jsonrpc": "2.0", "id": message.get("id"), "result": result or {}}


def messages_in(data: Any) -> Iterator[Json]:
    """Yield the messages in `data`, which is one message or a list of messages.

    Raises ``StreamError("malformed_event")`` for anything else.
    """
    for message in cast(list[Any], data) if isinstance(data, list) else [data]:
        if not isinstance(message, dict) or _is_too_deep(message):
            fault = (
                f"is nested more than {DEPTH} levels deep" if isinstance(message, dict) else f"is {str(message)[:80]!r}"
            )
            raise StreamError("malformed_event", f"a message from the MCP server {fault}", provider=PROVIDER)
        yield cast(Json, message)


def _is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    depth = 0
    while level and depth < DEPTH:
        lists = [[*cast(Json, item).values()] if isinstance(item, dict) else item for item in level]
        level = [inner for items in lists if isinstance(items, list) for inner in cast(list[Any], items)]
        depth += 1
    return bool(level)


def object_of(data: Any) -> Json:
    return cast(Json, data) if isinstance(data, dict) else {}


def is_response_to(message: Json, id: int | str) -> bool:
    return "method" not in message and own_id(message.get("id")) == id


def is_about_another(message: Json, id: int | str) -> bool:
    token = own_id(object_of(message.get("params")).get("progressToken"))
    return "method" not in message or (message["method"] == "notifications/progress" and token != id)


def own_id(echo: Any) -> Any:
    """Return the id that a server has echoed. Some servers turn the numbers of requests into text.

    >>> own_id("7"), own_id("listen-7")
    (7, 'listen-7')
    """
    return int(echo) if isinstance(echo, str) and re.fullmatch(r"[1-9][0-9]{0,17}", echo) else echo


def has_result(response: Json) -> bool:
    return isinstance(response.get("result"), dict)


def error_of(message: Any, status: int | None = None) -> AdapterError:
    match message:
        case {"error": {"code": int(code), **fields}}:
            text, data = str(fields.get("message", ""))[:500], fields.get("data")
            metadata = {} if data is None or len(str(data)) > DATA_SHOWN else {"data": data}
            reason = _REASONS.get(code, "unknown")
            return AdapterError(reason, text, provider=PROVIDER, status=status, code=str(code), metadata=metadata)
        case _:
            return AdapterError("malformed_response", "the answer has no result", provider=PROVIDER, status=status)


def malformed(text: str) -> AdapterError:
    return AdapterError("malformed_response", text, provider=PROVIDER)


def has_modern(versions: Any) -> bool:
    return isinstance(versions, list) and MODERN in versions


def is_modern(error: LLMError) -> bool:
    """Return whether `error` asks for the version `MODERN`."""
    if not isinstance(error, AdapterError) or error.code != UNSUPPORTED_VERSION:
        return False
    return has_modern(object_of(error.metadata.get("data")).get("supported"))
