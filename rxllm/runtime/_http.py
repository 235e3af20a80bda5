"""The HTTP source: one request, sent when subscribed, decoded as its bytes come.

::

    prepare ──> send ──> status >= 300? ──> read the body, close, on_error
                  │
                  └──> bytes ──> decoder.feed ──> events ──> ... ──> close ──> decoder.close ──> events ──> on_completed

An error before the first event goes to ``on_error``; after it, the decoder ends the stream with an ``ErrorEvent``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rxllm.events import ErrorEvent, Event, MessageCompleted
from rxllm.runtime._pools import in_use
from rxllm.runtime._pump import Pump, pumped
from rxllm.runtime._redirects import followed
from rxllm.runtime._secrets import hide_in_log, public_url
from rxllm.runtime._silence import Silence, is_content
from rxllm.runtime._stream import Stream
from rxllm.runtime._transport import AddressError, may_be_cancelled, transport_error
from rxllm.runtime._unpack import body_of, is_unpacked_here
from rxllm.values import AdapterError, LLMError, StreamError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
E = TypeVar("E", bound=LLMError)

log = logging.getLogger("rxllm")

for _name in ("httpx", "httpx2"):
    logging.getLogger(_name).addFilter(hide_in_log)

ERROR_BODY_BYTES = 1 << 20
ERROR_BODY_SECONDS = 5.0
DRAIN_SECONDS = 0.25
"""How long the end of a finished response is waited for, so that its connection can be used again."""

_CANCELLABLE = frozenset({"http11.send_request_headers.started", "http2.receive_response_headers.started"})
"""Where httpcore stands when a call may be cancelled: it is connected, and over HTTP/2 the request is sent."""

LEFT = (
    "%s was left over HTTP/2, where httpx cannot end one answer: the server may go on with it, and after many of them "
    "new calls stall or are refused; make the client without http2=True, and the call's own connection is closed"
)

_LAST = frozenset({ErrorEvent, MessageCompleted})


class Decoder(Protocol):
    """Bytes to events, without I/O: a recorded stream is replayed by feeding it."""

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> list[Event]: ...


class Exchange(Protocol):
    """What the source must be told of a call; `content_only` is whether bytes without content are silence, too."""

    provider: str
    content_only: bool

    async def open(self) -> tuple[httpx.AsyncClient, httpx.Request]: ...

    def decoder(self) -> Decoder: ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError: ...

    def discreet(self, error: E) -> E: ...


def http_stream(exchange: Callable[[], Exchange]) -> Stream[Event]:
    """A cold Stream of the events of one exchange; each subscription is its own request."""

    async def body(pump: Pump[Event]) -> None:
        made = exchange()
        await discreetly(made.discreet, _run(made, pump))

    return pumped(body)


async def discreetly(discreet: Callable[[LLMError], LLMError], work: Awaitable[T]) -> T:
    """What `work` gives; the error that it raises is passed through `discreet`."""
    try:
        return await work
    except LLMError as error:
        shown = discreet(error)
    raise shown  # here, where the first one is not its context


async def _run(exchange: Exchange, pump: Pump[Event]) -> None:
    client, request = await exchange.open()
    url = address(request)
    decoder = exchange.decoder()
    began = time.monotonic()
    streaming = False
    broken: AdapterError | None = None
    try:
        async with answered(client, request, pump) as response:
            if response.status_code >= 300:
                raise exchange.error(response.status_code, response.headers, await read_error(response, pump))
            streaming = True
            since = began if exchange.content_only else None
            await _deliver(response, decoder, pump, lambda: page_error(response.headers, exchange.provider, url), since)
    except Exception as error:
        broken = None if pump.refused else transport_error(error, exchange.provider, url, begun=streaming)
        if broken is None:
            raise
        if not streaming:
            raise broken from error
        broken = exchange.discreet(broken)
    pump.emit(decoder.close() if broken is None else _explained(decoder.close(), broken))


def address(request: httpx.Request) -> str:
    """The URL without its query, which may hold a secret."""
    return public_url(str(request.url))


@contextlib.asynccontextmanager
async def answered(
    client: httpx.AsyncClient, request: httpx.Request, pump: Pump[Any], **sending: Any
) -> AsyncGenerator[httpx.Response, None]:
    """The answer to `request`, its body unread; closed in the end. A dispose waits while it closes, and while httpcore
    connects.

    `sending` is for the client's ``send``.
    """
    extensions = request.extensions
    with in_use(client):
        try:
            response = await _send(client, request, pump, sending)
            try:
                yield response
            finally:
                with pump.held():
                    await response.aclose()
                    await asyncio.sleep(0)  # a loop closes a socket in its next turn, and aiohttp does not wait for it
        finally:
            request.extensions = extensions  # as they were, for whoever sends it again


async def _send(
    client: httpx.AsyncClient, request: httpx.Request, pump: Pump[Any], sending: Mapping[str, Any]
) -> httpx.Response:
    # Cancelled while it connects, httpcore 1.0.9 never frees the connection's place in the pool; cancelled while it
    # sends over HTTP/2, it breaks the connection for all that share it.
    theirs: Callable[[str, Any], Awaitable[None]] | None = request.extensions.get("trace")

    whole = False

    async def trace(name: str, info: Any) -> None:
        nonlocal whole
        if name in _CANCELLABLE:  # again after a redirect
            whole = False
            pump.release()
        elif name.endswith("response_closed.started"):
            pump.hold()  # also on its own account, when a read has timed out; cancelled then, it never closes
            if pump.disposed and not whole and name.startswith("http2."):
                log.warning(LEFT, address(request))  # httpcore 1.0.9 and httpcore2 2.16 never reset a stream
        elif name == "http2.receive_response_body.complete":
            whole = True
        elif pump.disposed and name == "connection.connect_tcp.started":
            pump.release()  # it has waited for its place in the pool, and need not connect
        if theirs is not None:
            await theirs(name, info)

    async def send(request: httpx.Request, **sending: Any) -> httpx.Response:
        with contextlib.nullcontext() if may_be_cancelled(client) else pump.held():
            try:
                return await client.send(request, stream=True, follow_redirects=False, **sending)
            except (OverflowError, UnicodeError, ExceptionGroup) as error:  # a port or a host that cannot be
                raise AddressError(str(getattr(error, "exceptions", [error])[0])) from error

    request.extensions = {**request.extensions, "trace": trace}
    response = await send(request, **sending)
    return await followed(client, response, send) if client.follow_redirects else response


def may_be_page(headers: Mapping[str, str]) -> bool:
    """Whether an answer calls itself HTML, as those of login pages and of wrong addresses do."""
    return "html" in headers.get("content-type", "").lower()


def begins_page(data: bytes) -> bool:
    """Whether an answer that may be a page is one: neither an event stream nor JSON begins so."""
    return data.lstrip()[:1] == b"<"


def page_error(headers: Mapping[str, str], provider: str, url: str) -> AdapterError:
    """The error of a page that came with a good status."""
    message = f"{url} answered with a page ({headers.get('content-type')}), and no model: is the base_url right?"
    return AdapterError("malformed_response", message, provider=provider, status=200)


async def _deliver(
    response: httpx.Response,
    decoder: Decoder,
    pump: Pump[Event],
    page: Callable[[], AdapterError],
    since: float | None,
) -> None:
    """`since` is when the model's silence began; None where bytes end it."""
    if pump.disposed:
        return
    unsure = may_be_page(response.headers)
    reads = body_of(response)
    limit = _taken_over(response.request) if is_unpacked_here(response) else None
    async with contextlib.aclosing(reads), Silence(pump, limit, since) as silence:
        async for data in reads:
            if unsure and data.strip():
                if begins_page(data):
                    raise page()
                unsure = False
            events = decoder.feed(data) if data else []
            if not pump.emit(events):
                return
            if events and type(events[-1]) in _LAST:
                if type(events[-1]) is MessageCompleted:
                    await _drain(reads, pump)
                return
            if pump.behind:
                silence.ignore()
                await pump.ready()
                silence.listen()
            elif since is None or not data.endswith(b"\n") or any(map(is_content, events)):
                silence.listen()  # in the middle of a line more is on its way; pings are whole lines


def _taken_over(request: httpx.Request) -> float | None:
    """The longest silence in the answer to `request`, in seconds, of which the transport is now relieved."""
    # httpcore looks for it again when the body is read. aiohttp does not, and keeps its own watch besides.
    limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {**limits, "read": None}
    return limits.get("read")


async def _drain(reads: AsyncGenerator[bytes, None], pump: Pump[Any]) -> None:
    with contextlib.suppress(TimeoutError):
        async with Silence(pump, DRAIN_SECONDS):
            async for _ in reads:
                pass


async def read_error(response: httpx.Response, pump: Pump[Any]) -> bytes:
    """The body that explains a refusal, as far as it comes soon."""
    body = b""
    with contextlib.suppress(Exception):  # the status says more than why its body broke off
        async with Silence(pump, ERROR_BODY_SECONDS):
            async for data in body_of(response):
                body += data
                if len(body) > ERROR_BODY_BYTES:
                    break
    return body


def _explained(events: list[Event], broken: AdapterError) -> list[Event]:
    """The end of a cut stream, with what cut it instead of a mere ``truncated``."""
    match events:
        case [*rest, ErrorEvent(error=StreamError(reason="truncated"))]:
            reason = "timeout" if broken.reason == "timeout" else "truncated"
            error = StreamError(reason, f"the stream of {broken.message}", provider=broken.provider)
            error.__cause__ = broken.__cause__
            return [*rest, ErrorEvent(error)]
        case _:
            return events
