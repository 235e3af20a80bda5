"""The HTTP source, which sends one request per subscription and decodes the response as its bytes arrive.

::

    open ──> send ──> status >= 300? ──> read the body, close, on_error
               │
               └──> bytes ──> decoder.feed ──> events ──> ... ──> close ──> decoder.close ──> events ──> on_completed

An error that occurs before the status arrives is passed to ``on_error``. After a later error, the decoder ends the
stream with an ``ErrorEvent``.

With httpcore 1.0.9, a call cannot always be cancelled safely, so `_send` delays cancellation by holding the pump:

============================  =================================  ===================================================
state of the call             effect of dispose                  reason
============================  =================================  ===================================================
waiting for a pool slot       The call is cancelled once it has  Otherwise, the pool would lose the slot.
                              the slot.
connecting                    The call is cancelled once it is   Otherwise, the pool would lose the slot.
                              connected.
sending, over HTTP/2          The call is cancelled once the     Otherwise, the connection would break for all calls
                              request has been sent.             that share it.
waiting for headers, reading  The call is cancelled at once.     Cancelling is safe in this state.
closing the response          The call is not cancelled; it is   Otherwise, the connection would never be closed.
                              already ending.
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
from rxllm.http.secrets import address, hide_in_log
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

ERROR_BODY_BYTES = 1 << 20

_CANCELLABLE = frozenset({"http11.send_request_headers.started", "http2.receive_response_headers.started"})
"""The httpcore trace events after which it is safe to cancel a call.

By then, the call is connected and, over HTTP/2, its request has been sent.
"""

_LEFT_OPEN = (
    "the call to %s ended early over HTTP/2, where httpx cannot cancel a single response: the server might keep "
    "sending it, and after many such calls, new ones stall or are refused; create the client without http2=True, so "
    "that each call has its own connection"
)

_LAST = frozenset({ErrorEvent, MessageCompleted})


class Decoder(Protocol):
    """Turns bytes into events without any I/O. To replay a call, feed the recorded bytes to its decoder.

    For an answer that the provider keeps, empty `data` means that a connection has ended normally.
    """

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> list[Event]: ...


class Exchange(Protocol):
    """An adapter's description of a call.

    If `content_only` is True, only content restarts the idle timer; a ping does not. `retry` is the call's retry
    policy. `discreet` removes the call's secrets from an error. If the provider keeps the answer that the last decoder
    reads, `kept_answer` returns it; ``rebuild(build)`` builds another request about it. `saved_id` returns its id if an
    earlier process has asked for it, and `hands_over` returns whether a later process will read it.
    `note_drop` is called before each wait for the rest, and `note_loss` before the request is sent again because an
    earlier answer cannot be read. If `is_cancelled` returns True, that answer is only stopped. `client`
    returns another client if the first one is closed.
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
    """Return a cold Stream of the events of ``exchange()``; each subscription sends its own request."""

    async def body(pump: Pump[Event]) -> None:
        call = exchange()
        await discreetly(call.discreet, _run(call, pump))

    return pumped(body)


async def discreetly(discreet: Callable[[LLMError], LLMError], work: Awaitable[T]) -> T:
    """Return the result of `work`, or raise its error with the secrets removed by `discreet`."""
    try:
        return await work
    except LLMError as error:
        redacted = discreet(error)
    raise redacted  # outside ``except``: the original error might contain a key, so it must not become the context


async def _run(exchange: Exchange, pump: Pump[Event]) -> None:
    client, request = await exchange.open()
    logged = request_log(exchange.request_id, request, exchange.provider, exchange.model)
    with in_use(client), logged as note:  # in use even while a kept answer waits for its next connection
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
    """Send `request`, and emit the events of its response. Return the failure that cuts the response off, if any.

    A failure before the response begins is raised.
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
        # A subscriber's own error passes through unchanged, even if it is one of the transport's exception classes.
        failure = None if pump.refused else transport_error(error, exchange.provider, address(request), begun=streaming)
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
    """Send `request`, yield the response, and close it at the end of the block.

    The body is not read. The caller counts the call with `in_use`. `options` are passed to the client's ``send``.
    """
    extensions = request.extensions
    try:
        response = await _send(client, request, pump, options)
        try:
            yield response
        finally:
            with pump.holding():
                await response.aclose()
                await asyncio.sleep(0)  # aiohttp's socket is closed on the loop's next turn
    finally:
        request.extensions = extensions  # in case the request is sent again


async def _send(
    client: httpx.AsyncClient, request: httpx.Request, pump: Pump[Any], options: Mapping[str, Any]
) -> httpx.Response:
    # httpcore reports its progress through the "trace" extension. The table at the top lists the rules.
    user_trace: Callable[[str, Any], Awaitable[None]] | None = request.extensions.get("trace")
    is_whole = False

    async def trace(name: str, info: Any) -> None:
        nonlocal is_whole
        if name in _CANCELLABLE:  # occurs again after a redirect
            is_whole = False
            pump.grace = 0.0 if pump.disposed else pump.grace  # nothing has been sent yet, so nothing must be stopped
            pump.release()
        elif name.endswith("response_closed.started"):
            pump.hold()  # httpcore closes the response itself when a read has timed out
            if pump.disposed and not is_whole and name.startswith("http2."):
                log.warning(_LEFT_OPEN, address(request))  # httpcore 1.0.9 and httpcore2 2.16 never reset a stream
        elif name == "http2.receive_response_body.complete":
            is_whole = True
        elif pump.disposed and name == "connection.connect_tcp.started":
            pump.release()  # the call has its pool slot, and does not need to connect
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
    """Return whether a response has an HTML content type, as login pages and error pages do."""
    return "html" in headers.get("content-type", "").lower()


def begins_page(data: bytes) -> bool:
    """Return whether `data` is the start of an HTML page; event streams and JSON never start with ``<``."""
    return data.lstrip()[:1] == b"<"


def page_error(headers: Mapping[str, str], provider: str, request: httpx.Request) -> AdapterError:
    """Return the error for an HTML page that arrived with a success status."""
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
    """Emit the events of `response`. If the pump has a `grace`, read on after a dispose until the id of `answer`.

    If `since` is None, any bytes restart the idle timer. Otherwise, it starts at `since`, and only content restarts it.
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
            if answer is not None and answer.id is not None:
                pump.grace = 0.0
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
                watch.restart()  # a ping is a whole line, so an incomplete line is not a ping


def _take_read_timeout(request: httpx.Request) -> float | None:
    """Remove the read timeout from `request`, and return it (in seconds)."""
    # httpcore reads the extension again for the body. aiohttp does not, so its own timeout stays in force.
    limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {**limits, "read": None}
    return limits.get("read")


async def _drain(reads: AsyncGenerator[bytes, None], pump: Pump[Any]) -> None:
    with contextlib.suppress(TimeoutError):
        async with IdleTimeout(pump, DRAIN_SECONDS):
            async for _ in reads:
                pass


async def read_error(response: httpx.Response, pump: Pump[Any]) -> bytes:
    """Return the part of an error response's body that arrives within `ERROR_BODY_SECONDS`."""
    body = b""
    with contextlib.suppress(Exception):  # the status matters more than a complete body
        async with IdleTimeout(pump, ERROR_BODY_SECONDS):
            async for data in body_of(response):
                body += data
                if len(body) > ERROR_BODY_BYTES:
                    break
    return body


def _explained(events: list[Event], failure: AdapterError) -> list[Event]:
    """Return `events`, the end of a broken stream. Replace a ``truncated`` error with one that describes `failure`."""
    match events:
        case [*rest, ErrorEvent(error=StreamError(reason="truncated"))]:
            reason = "timeout" if failure.reason == "timeout" else "truncated"
            error = StreamError(reason, f"the stream from {failure.message}", provider=failure.provider)
            return [*rest, ErrorEvent(with_origin(error, failure))]
        case _:
            return events
