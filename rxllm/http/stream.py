"""Send one request per subscription, and decode the response.

::

    open ──> send ──> status >= 300? ──> read the body, close, on_error
               │
               └──> bytes ──> decoder.feed ──> events ──> ... ──> close ──> decoder.close ──> events ──> on_completed

If the connection fails before a success status has arrived, the error goes to ``on_error``. If it fails later, the
error becomes an ``ErrorEvent``.

httpcore 1.0.9 cannot safely cancel a call in every state, so `_send` holds the pump:

============================  =================================  ===================================================
state of the call             effect of disposing of it          reason
============================  =================================  ===================================================
waiting for a pool slot       The call is cancelled once it has  Otherwise, the pool would lose the slot.
                              the slot.
connecting                    The call is cancelled once it is   Otherwise, the pool would lose the slot.
                              connected.
sending over HTTP/2           The call is cancelled once the     Otherwise, the connection would break for all calls
                              request has been sent.             that share it.
waiting for headers, reading  The call is cancelled at once.     Cancelling is safe in this state.
closing the response          The call is already ending, so it  Otherwise, the connection would never be closed.
                              is not cancelled.
============================  =================================  ===================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rxllm.events import ErrorEvent, Event, MessageCompleted, is_content
from rxllm.http.decompression import body_of, is_decompressed_here
from rxllm.http.pools import in_use
from rxllm.http.reattach import KeptAnswer, read_first, read_rest, stop_answer
from rxllm.http.redirects import followed
from rxllm.http.request_log import RequestLog, request_log
from rxllm.http.secrets import address, hide_in_log, print_in_log
from rxllm.http.timeouts import DRAIN_SECONDS, ERROR_BODY_SECONDS, IdleTimeout
from rxllm.http.transport_errors import AddressError, may_be_cancelled, transport_error
from rxllm.runtime import Pump, Stream, pumped
from rxllm.values import AdapterError, Call, LLMError, StreamError
from rxllm.values.errors import with_origin

if TYPE_CHECKING:
    import httpx


T = TypeVar("T")
E = TypeVar("E", bound=LLMError)

log = logging.getLogger("rxllm")

for _name in ("httpx", "httpx2"):
    logging.getLogger(_name).addFilter(hide_in_log)
log.addFilter(print_in_log)

ERROR_BODY_BYTES = 1 << 20

_CANCELLABLE = frozenset({"http11.send_request_headers.started", "http2.receive_response_headers.started"})
"""The httpcore events after which it is safe to cancel a call."""

_LEFT_OPEN = (
    "the call to %s ended early, but httpx cannot cancel a call over HTTP/2, so the server might keep sending data; "
    "create the client without http2=True"
)

_LAST = frozenset({ErrorEvent, MessageCompleted})


class Decoder(Protocol):
    """Turns bytes into events. It does no I/O, so it can also decode recorded bytes.

    If the provider keeps the answer, empty `data` means that a connection has ended normally.
    """

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> list[Event]: ...


class Exchange(Protocol):
    """A call to an adapter, as the HTTP source sees it.

    If `content_only` is True, pings do not restart the idle timer. `discreet` removes secrets from an error. `client`
    returns an open client, in case the first one has been closed.

    The following methods deal with an answer that the provider keeps. `kept_answer` returns the answer, and `saved_id`
    returns the id that an earlier process saved for the answer. ``rebuild(build)`` builds another request for the
    answer, such as a request to stop it. `hands_over` returns whether a later process will read the answer. If
    `is_cancelled` returns True, the answer must be stopped and not read. `note_drop` is called before each wait for the
    rest of the answer. `note_loss` is called before the original request is sent again.
    """

    provider: str
    model: str | None
    request_id: str
    content_only: bool
    retry: Any

    async def open(self) -> tuple[httpx.AsyncClient, httpx.Request]: ...

    async def client(self) -> httpx.AsyncClient: ...

    def decoder(self) -> Decoder: ...

    def kept_answer(self) -> KeptAnswer | None: ...

    def saved_id(self) -> str | None: ...

    def note_drop(self, error: LLMError) -> None: ...

    def note_loss(self, id: str, error: LLMError) -> None: ...

    def hands_over(self, has_loop_ended: bool) -> bool: ...

    def is_cancelled(self) -> bool: ...

    async def rebuild(self, build: Callable[[Call], httpx.Request]) -> httpx.Request: ...

    def answered(self, headers: Mapping[str, str]) -> None: ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError: ...

    def discreet(self, error: E) -> E: ...


def http_stream(exchange: Callable[[], Exchange]) -> Stream[Event]:
    """Return a cold Stream that sends a request each time it is subscribed to."""

    async def body(pump: Pump[Event]) -> None:
        call = exchange()
        await discreetly(call.discreet, _run(call, pump))

    return pumped(body)


async def discreetly(discreet: Callable[[LLMError], LLMError], work: Awaitable[T]) -> T:
    try:
        return await work
    except LLMError as error:
        redacted = discreet(error)
    raise redacted  # outside ``except``, so that its context is not the error that contains the key


async def _run(exchange: Exchange, pump: Pump[Event]) -> None:
    client, request = await exchange.open()
    logged = request_log(exchange.request_id, request, exchange.provider, exchange.model)
    # If the provider keeps the answer, the client is needed even when no connection is open.
    with in_use(client), logged as note:
        await _exchange(exchange, client, request, pump, note)


async def _exchange(
    exchange: Exchange, client: httpx.AsyncClient, request: httpx.Request, pump: Pump[Event], note: RequestLog
) -> None:
    decoder = note.watched(exchange.decoder())
    answer = exchange.kept_answer()
    read = partial(_read, exchange, client, decoder, pump, note)
    has_loop_ended = False
    try:
        failure = await (read(request) if answer is None else read_first(exchange, answer, request, read, client, pump))
        if answer is not None:
            failure = await read_rest(exchange, answer, failure, read, pump)
        events = decoder.close() if failure is None else _explained(decoder.close(), failure)
        note.see([] if pump.disposed else events)
        pump.emit(events)
    except asyncio.CancelledError:
        has_loop_ended = not pump.disposed
        raise
    finally:
        if answer is not None and answer.is_running and not exchange.hands_over(has_loop_ended):
            await stop_answer(exchange, answer, client, pump)
        elif answer is not None and pump.disposed and answer.id is None and answer.position is None:
            where = (exchange.request_id, exchange.provider)
            log.warning("request %s: disposed before %s sent the answer's id; the answer may still cost money", *where)


async def _read(
    exchange: Exchange,
    client: httpx.AsyncClient,
    decoder: Decoder,
    pump: Pump[Event],
    note: RequestLog,
    request: httpx.Request,
) -> AdapterError | None:
    """Send `request` and emit the events of the response.

    If the connection fails after the response has begun, or if the rest of the response cannot be read, return the
    error instead of raising it.
    """
    began = time.monotonic()
    streaming = False
    try:
        async with opened(client, request, pump) as response:
            note.answered(response.status_code)
            if response.status_code >= 300:
                raise exchange.error(response.status_code, response.headers, await read_error(response, pump))
            exchange.answered(response.headers)
            streaming = True
            since = began if exchange.content_only else None
            page = partial(page_error, response.headers, exchange.provider, request)
            answer = exchange.kept_answer()
            await _deliver(response, decoder, pump, page, since, answer)
            if answer is not None and not pump.disposed:
                pump.emit(decoder.feed(b""))
    except Exception as error:
        # If the subscriber raised the error, do not change it.
        call = (exchange.provider, address(request), client)
        failure = None if pump.refused else transport_error(error, *call, begun=streaming)
        if failure is None:
            raise
        if not streaming:
            raise failure from None
        return exchange.discreet(failure)
    return None


@contextlib.asynccontextmanager
async def opened(
    client: httpx.AsyncClient, request: httpx.Request, pump: Pump[Any], **options: Any
) -> AsyncGenerator[httpx.Response, None]:
    """Send `request` and yield the open response, which is closed after the ``with`` block.

    The caller must count the call with `in_use`.
    """
    extensions = request.extensions
    try:
        response = await _send(client, request, pump, options)
        try:
            yield response
        finally:
            with pump.holding():
                await response.aclose()
                await asyncio.sleep(0)  # aiohttp closes its socket in the loop's next iteration
    finally:
        request.extensions = extensions  # in case the request is sent again


async def _send(
    client: httpx.AsyncClient, request: httpx.Request, pump: Pump[Any], options: Mapping[str, Any]
) -> httpx.Response:
    # httpcore reports its progress by calling the "trace" extension.
    user_trace: Callable[[str, Any], Awaitable[None]] | None = request.extensions.get("trace")
    is_whole = False

    async def trace(name: str, info: Any) -> None:
        nonlocal is_whole
        if name in _CANCELLABLE:  # each of these steps happens again after a redirect
            is_whole = False
            pump.grace = 0.0 if pump.disposed else pump.grace  # nothing sent, nothing to stop
            pump.release()
        elif name.endswith("response_closed.started"):
            pump.hold()  # after a read timeout, httpcore closes the response itself
            if pump.disposed and not is_whole and name.startswith("http2."):
                log.warning(_LEFT_OPEN, address(request))  # httpcore 1.0.9 and httpcore2 2.16 never reset a stream
        elif name == "http2.receive_response_body.complete":
            is_whole = True
        elif pump.disposed and name == "connection.connect_tcp.started":
            pump.release()  # the pool has counted this connection, so the call can be cancelled
        if user_trace is not None:
            await user_trace(name, info)

    async def send(request: httpx.Request, **options: Any) -> httpx.Response:
        with contextlib.nullcontext() if may_be_cancelled(client) else pump.holding():
            try:
                return await client.send(request, stream=True, follow_redirects=False, **options)
            except (OverflowError, UnicodeError, ExceptionGroup) as error:  # an invalid port or host
                raise AddressError(str(getattr(error, "exceptions", [error])[0])) from error

    request.extensions = {**request.extensions, "trace": trace}
    response = await send(request, **options)
    return await followed(client, response, send) if client.follow_redirects else response


def may_be_page(headers: Mapping[str, str]) -> bool:
    return "html" in headers.get("content-type", "").lower()


def begins_page(data: bytes) -> bool:
    return data.lstrip()[:1] == b"<"


def page_error(headers: Mapping[str, str], provider: str, request: httpx.Request) -> AdapterError:
    """Return the error for a response that has a success status but is a web page."""
    kind = headers.get("content-type")
    message = f"{address(request)} returned a web page ({kind}), not a model's answer: is the base_url right?"
    return AdapterError("malformed_response", message, provider=provider, status=200)


async def _deliver(
    response: httpx.Response,
    decoder: Decoder,
    pump: Pump[Event],
    page: Callable[[], AdapterError],
    since: float | None,
    answer: KeptAnswer | None,
) -> None:
    """Emit the events of `response`.

    If the pump has a `grace` and the call is disposed of, reading continues until the first events or the id of
    `answer` have arrived. If `since` is given, only content restarts the idle timer.
    """
    if pump.disposed and not pump.grace:
        return
    is_suspect = may_be_page(response.headers)
    reads = body_of(response)
    limit = _take_read_timeout(response.request) if is_decompressed_here(response) else None
    async with contextlib.aclosing(reads), IdleTimeout(pump, limit, since) as watch:
        async for data in reads:
            if is_suspect and data.strip():
                if begins_page(data):
                    raise page()
                is_suspect = False
            events = decoder.feed(data) if data else []
            if answer is not None and (answer.id is not None or events):
                pump.grace = 0.0  # if the provider keeps the answer, the first events contain the answer's id
            if not pump.emit(events) and not pump.grace:
                return
            if events and type(events[-1]) in _LAST:
                if type(events[-1]) is MessageCompleted:
                    await _drain(reads, pump)
                return
            if pump.behind:
                watch.pause()
                await pump.ready()
                watch.restart()
            elif since is None or not data.endswith(b"\n") or any(map(is_content, events)):
                watch.restart()  # an incomplete line cannot be a ping


def _take_read_timeout(request: httpx.Request) -> float | None:
    # httpcore reads this timeout again before it reads the body. aiohttp does not.
    limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {**limits, "read": None}
    return limits.get("read")


async def _drain(reads: AsyncGenerator[bytes, None], pump: Pump[Any]) -> None:
    with contextlib.suppress(TimeoutError):
        async with IdleTimeout(pump, DRAIN_SECONDS):
            async for _ in reads:
                pass


async def read_error(response: httpx.Response, pump: Pump[Any]) -> bytes:
    """Return the part of the error body that arrives within `ERROR_BODY_SECONDS`.

    Reading stops as soon as more than `ERROR_BODY_BYTES` have arrived.
    """
    body = bytearray()
    with contextlib.suppress(Exception):  # the status matters more than a complete body
        async with IdleTimeout(pump, ERROR_BODY_SECONDS):
            async for data in body_of(response):
                body += data
                if len(body) > ERROR_BODY_BYTES:
                    break
    return bytes(body)


def _explained(events: list[Event], failure: AdapterError) -> list[Event]:
    match events:
        case [*rest, ErrorEvent(error=StreamError(reason="truncated"))]:
            reason = "timeout" if failure.reason == "timeout" else "truncated"
            error = StreamError(reason, f"the stream from {failure.message}", provider=failure.provider)
            return [*rest, ErrorEvent(with_origin(error, failure))]
        case _:
            return events
