"""The base class for adapters that stream over HTTP."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace
from reactivex import Observable, just, throw

from rxllm import keys, models
from rxllm.adapters._protocol import failure_events
from rxllm.adapters.http_base import HTTPBase
from rxllm.collector import Unfinished
from rxllm.events import ErrorEvent, Event, MessageCompleted
from rxllm.http import Decoder, KeptAnswer, http_stream
from rxllm.http.secrets import without
from rxllm.runtime import Bookmark, Stream, current_scope
from rxllm.runtime.context_variables import current_reader
from rxllm.values import (
    AdapterError,
    Call,
    LLMError,
    Request,
    StreamError,
    TokenCount,
    ValidationError,
    estimated_tokens,
)
from rxllm.values.errors import with_origin
from rxllm.values.json_text import UNREADABLE, json_text, read_json
from rxllm.wire.frames import FrameDecoder, unreadable

if TYPE_CHECKING:
    import httpx


log = logging.getLogger("rxllm")

Build = Callable[[Request, Call], "httpx.Request"]

T = TypeVar("T")
E = TypeVar("E", bound=LLMError)


class HTTPAdapter(HTTPBase):
    """Base class for adapters that stream over HTTP.

    Subclasses define `build`, `decoder` and `error`. `HTTPBase` lists the arguments.
    """

    @abstractmethod
    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request, without sending it."""

    @abstractmethod
    def decoder(self, request: Request, *, raw: bool = False) -> Decoder:
        """Return a new decoder. If `raw` is true, the decoder also emits ``RawChunk`` events."""

    async def prepare(self, request: Request, call: Call) -> None:
        """Do asynchronous work before `build`. The default does nothing."""

    def answered(self, request: Request, headers: Mapping[str, str]) -> None:
        """Process the headers of a successful response. The default does nothing."""

    def kept_answer(self, sent: httpx.Request, decoder: Decoder) -> KeptAnswer | None:
        """Return the answer that the provider keeps, or None if it keeps none. The default returns None.

        If the connection is lost, the rest of such an answer can be read over a new connection.
        """
        return None

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return the answer's events. Each subscription sends a new request."""
        return http_stream(lambda: HTTPExchange(self, request, call))


class HTTPExchange:
    """A call to an adapter, with the interface that `http_stream` needs."""

    def __init__(self, adapter: HTTPAdapter, request: Request, call: Call, build: Build | None = None) -> None:
        self.provider, self.model, self.request_id = adapter.provider, request.model, call.request_id
        self.content_only = call.timeout is None and adapter.timeout is not None
        self.retry = call.retry
        self._adapter = adapter
        self._request = request
        self._call = self._first_call = call
        self._kept_answer: KeptAnswer | None = None
        self._bookmark = current_scope.get().bookmark
        self._build = build or adapter.build
        self._built: httpx.Request | None = None

    async def open(self) -> tuple[httpx.AsyncClient, httpx.Request]:
        self._adapter._check_model(self._request.model)  # pyright: ignore[reportPrivateUsage]
        self._call = await self._adapter.with_key(self._call)
        await self._adapter.prepare(self._request, self._call)
        client = await self._adapter._clients.get()  # pyright: ignore[reportPrivateUsage]
        self._built = self._convert_errors(lambda: self._build(self._request, self._call))
        self._report_secrets()
        return client, self._built

    async def client(self) -> httpx.AsyncClient:
        return await self._adapter._clients.get()  # pyright: ignore[reportPrivateUsage]

    def decoder(self) -> Decoder:
        decoder = self._convert_errors(lambda: self._adapter.decoder(self._request, raw=self._call.raw))
        if self._built is not None:
            self._kept_answer = self._adapter.kept_answer(self._built, decoder)
        guarded = decoder if isinstance(decoder, FrameDecoder) else _GuardedDecoder(decoder, self.provider)
        if self._kept_answer is not None and self._kept_answer.place is None:
            self._bookmark = None
        if self._kept_answer is not None:
            guarded = _KeptDecoder(guarded, self._kept_answer, self._bookmark, self._call)
            self._note_drop = guarded.note_drop
        return _RedactingDecoder(guarded, self.discreet)

    def kept_answer(self) -> KeptAnswer | None:
        return self._kept_answer

    def saved_id(self) -> str | None:
        note = None if self._bookmark is None or self._kept_answer is None else self._bookmark.take()
        if note is None or self._kept_answer is None:
            return None
        saved = cast(dict[str, str], read_json(note))
        if saved["place"] != self._kept_answer.place:
            fault = f"the answer is kept at {saved['place']}, but the base_url is now {self._kept_answer.place}"
            self.note_loss(saved["id"], AdapterError("invalid_request", fault, provider=self.provider))
            return None
        return saved["id"]

    def note_loss(self, id: str, error: LLMError) -> None:
        log.warning("request %s: asking again, because the answer %s was lost: %s", self.request_id, id, error)
        if self._call.on_lost is not None:
            self._call.on_lost(error)

    def note_drop(self, error: LLMError) -> None:
        self._note_drop(error)

    def hands_over(self, has_loop_ended: bool) -> bool:
        return self._bookmark is not None and (has_loop_ended or self._bookmark.is_handed_over())

    def is_cancelled(self) -> bool:
        return self._bookmark is not None and self._bookmark.is_cancelled()

    async def rebuild(self, build: Callable[[Call], httpx.Request]) -> httpx.Request:
        self._call = await self._adapter.with_key(self._first_call)  # the key may have changed
        self._built = build(self._call)
        self._report_secrets()
        return self._built

    def _report_secrets(self) -> None:
        if self._call.on_secrets is not None:
            self._call.on_secrets(self._secrets())

    def _convert_errors(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except LLMError:
            raise
        except Exception as error:
            message = f"the request cannot be built: {type(error).__name__}: {error}"
            raise self.discreet(ValidationError("invalid_request", message)) from error

    def answered(self, headers: Mapping[str, str]) -> None:
        self._adapter.answered(self._request, headers)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:
        assert self._built is not None
        refusal = self._adapter._refusal  # pyright: ignore[reportPrivateUsage]
        error = refusal(status, headers, without(body, self._secrets()), self._built, self.model)
        return self._with_remedy(error) if status in (400, 422) else error

    def _with_remedy(self, error: LLMError) -> LLMError:
        if error.reason != "invalid_request":
            return error
        refused = models.refused_settings(self.provider, self._request)
        named = {name: remedy for name, remedy in refused.items() if name in error.message} or refused
        if not named:
            return error
        remedies = " or ".join(f"this {name} ({remedy})" for name, remedy in named.items())
        message = f"{error.message}; as far as rxllm knows, {self.model or self.provider} does not accept {remedies}"
        return with_origin(type(error).from_fields({**error.fields(), "message": message}), error)

    def discreet(self, error: E) -> E:
        return keys.redacted(error, self._secrets())

    def _secrets(self) -> list[str]:
        return self._adapter._secrets(self._request, self._call, self._built)  # pyright: ignore[reportPrivateUsage]


class _GuardedDecoder:
    """Wraps a decoder. If the decoder raises an error, the stream ends with that error."""

    def __init__(self, decoder: Decoder, provider: str) -> None:
        self._decoder = decoder
        self._provider = provider
        self._unfinished = Unfinished()
        self._has_begun = False
        self._has_ended = False

    def feed(self, data: bytes) -> list[Event]:
        # Feed one line at a time, so that the events before a malformed line are not lost.
        return [event for line in data.splitlines(keepends=True) for event in self._events(self._decoder.feed, line)]

    def close(self) -> list[Event]:
        return self._events(self._decoder.close)

    def _events(self, read: Callable[..., list[Event]], *line: bytes) -> list[Event]:
        if self._has_ended:
            return []
        try:
            events = read(*line)
        except Exception as error:
            failure = error if isinstance(error, LLMError) else unreadable(error, self._provider)
            events = failure_events(failure, self._unfinished, self._has_begun)
        for event in events:
            self._unfinished.see(event)
        self._has_begun = self._has_begun or bool(events)
        self._has_ended = bool(events) and isinstance(events[-1], ErrorEvent | MessageCompleted)
        return events


class _KeptDecoder:
    """Wraps the decoder of an answer that the provider keeps.

    Saves the answer's id. Each time a connection is lost, reports the gap: the time it took for the answer to continue
    over a new connection.
    """

    def __init__(self, decoder: Decoder, answer: KeptAnswer, bookmark: Bookmark | None, call: Call) -> None:
        self._decoder = decoder
        self._answer = answer
        self._bookmark = bookmark
        self._on_reattached = call.on_reattached
        self._is_timed = current_reader.get().is_timed
        self._dropped: tuple[float, LLMError] | None = None
        self._gaps: list[tuple[float, float, str]] = []  # the start, end and error of each gap

    def note_drop(self, error: LLMError) -> None:
        self._dropped = self._dropped or (time.monotonic(), error)

    def feed(self, data: bytes) -> list[Event]:
        id, progress = self._answer.id, self._answer.progress
        events = self._decoder.feed(data)
        if self._bookmark is not None and id is None and self._answer.id is not None:
            self._bookmark.put(json_text({"id": self._answer.id, "place": self._answer.place}))
        if self._dropped is not None and self._answer.progress != progress:
            self._end_gap(*self._dropped)
        if self._gaps and self._is_timed and events and type(events[-1]) is MessageCompleted:
            events[-1] = self._with_gaps(events[-1])
        return events

    def close(self) -> list[Event]:
        return self._decoder.close()

    def _end_gap(self, began: float, error: LLMError) -> None:
        now, self._dropped = time.monotonic(), None
        self._gaps.append((began, now, str(error)))
        if self._on_reattached is not None:
            self._on_reattached(now - began, error)

    def _with_gaps(self, event: MessageCompleted) -> MessageCompleted:
        """Add the gaps to the event's metadata.

        ``before`` is the number of seconds from the start of a gap to this event.
        """
        now = time.monotonic()
        gaps = [
            {"before": round(now - began, 6), "seconds": round(ended - began, 6), "error": error}
            for began, ended, error in self._gaps
        ]
        return replace(event, metadata={**event.metadata, "reattached": gaps})


class _RedactingDecoder:
    """Wraps a decoder, and removes secrets from its errors."""

    def __init__(self, decoder: Decoder, redact: Callable[[LLMError], LLMError]) -> None:
        self._decoder = decoder
        self._redact = redact

    def feed(self, data: bytes) -> list[Event]:
        return self._redacted(self._decoder.feed(data))

    def close(self) -> list[Event]:
        return self._redacted(self._decoder.close())

    def _redacted(self, events: list[Event]) -> list[Event]:
        last = events[-1] if events else None  # an error is always a stream's last event
        return [*events[:-1], ErrorEvent(self._redact(last.error))] if type(last) is ErrorEvent else events


LONGEST_COUNT = 1 << 20
"""The maximum size, in bytes, of the response to a token-count request."""

_NO_SUCH_PATH = (404, 405, 501)


def counted(adapter: HTTPAdapter, request: Request, call: Call, build: Build, field: str) -> Stream[TokenCount]:
    """Ask the server for a token count, and emit the count that is in the response's `field`.

    If the server is not the provider's own and cannot count tokens, emit an estimate.
    """
    counts: Any = http_stream(lambda: _Counting(adapter, request, call, build, field))

    def estimate(error: Exception, _: Any) -> Observable[TokenCount]:
        is_missing = isinstance(error, AdapterError) and error.status in _NO_SUCH_PATH
        if is_missing and adapter.base_url != adapter.default_base_url:
            return just(TokenCount(estimated_tokens(request), estimated=True))
        return throw(error)

    return Stream.of(counts.map(_count_or_raise).catch(estimate))


def _count_or_raise(item: Any) -> TokenCount:
    if isinstance(item, ErrorEvent):
        raise item.error
    return item


class _Counting(HTTPExchange):
    """Requests a token count. It decodes the response itself, because the adapter's decoder cannot read counts."""

    def __init__(self, adapter: HTTPAdapter, request: Request, call: Call, build: Build, field: str) -> None:
        super().__init__(adapter, request, call, build)
        self.content_only = False
        self._field = field
        self._body = bytearray()

    def decoder(self) -> Decoder:
        return cast(Decoder, self)

    def feed(self, data: bytes) -> list[Any]:
        self._body += data
        if len(self._body) > LONGEST_COUNT:
            raise self._malformed(f"the response is longer than {LONGEST_COUNT} bytes")
        return []

    def close(self) -> list[Any]:
        try:
            answer = read_json(bytes(self._body))
        except UNREADABLE:  # after a connection error, the HTTP source replaces the error below
            message = "the token-count response ended early"
            return [ErrorEvent(StreamError("truncated", message, provider=self.provider))]
        tokens = cast(dict[str, Any], answer).get(self._field) if isinstance(answer, dict) else None
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            return [ErrorEvent(self._malformed(f"the field {self._field!r} is missing or is not a token count"))]
        return [TokenCount(tokens)]

    def _malformed(self, fault: str) -> AdapterError:
        message = f"the token count cannot be read: {fault}"
        return AdapterError("malformed_response", message, provider=self.provider)
