"""The base class of adapters that stream over HTTP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from rxllm import keys
from rxllm.adapters._http_base import HTTPBase
from rxllm.collector import Unfinished
from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted
from rxllm.http import Decoder, http_stream
from rxllm.http.secrets import without
from rxllm.runtime import Stream
from rxllm.values import Call, LLMError, Message, Request, ValidationError
from rxllm.wire.frames import FrameDecoder, unreadable

if TYPE_CHECKING:
    import httpx

Build = Callable[[Request, Call], "httpx.Request"]

T = TypeVar("T")
E = TypeVar("E", bound=LLMError)


class HTTPAdapter(HTTPBase):
    """Adds ``stream`` to a class that has `build`, `decoder` and `error`; for its arguments see `HTTPBase`."""

    @abstractmethod
    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the request as it would be sent. Nothing is sent."""

    @abstractmethod
    def decoder(self, request: Request, *, raw: bool = False) -> Decoder:
        """Return a new decoder for the answer to `request`; `raw` asks for ``RawChunk`` events too."""

    async def prepare(self, request: Request, call: Call) -> None:
        """Do what must happen before `build`; most adapters need nothing."""

    def answered(self, request: Request, headers: Mapping[str, str]) -> None:
        """Read the `headers` of a successful response, before its body; most adapters need nothing."""

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return the events of the answer. Each subscription sends the request again."""
        return http_stream(lambda: HTTPExchange(self, request, call))


class HTTPExchange:
    """One call, as the HTTP source needs it: how to send it, and how to read its answer."""

    def __init__(self, adapter: HTTPAdapter, request: Request, call: Call, build: Build | None = None) -> None:
        self.provider, self.model, self.request_id = adapter.provider, request.model, call.request_id
        self.content_only = call.timeout is None and adapter.timeout is not None
        self._adapter = adapter
        self._request = request
        self._call = call
        self._build = build or adapter.build
        self._built: httpx.Request | None = None

    async def open(self) -> tuple[httpx.AsyncClient, httpx.Request]:
        self._adapter._check_model(self._request.model)  # pyright: ignore[reportPrivateUsage]
        self._call = await self._adapter.with_key(self._call)
        await self._adapter.prepare(self._request, self._call)
        client = await self._adapter._clients.get()  # pyright: ignore[reportPrivateUsage]
        self._built = self._typed(lambda: self._build(self._request, self._call))
        return client, self._built

    def decoder(self) -> Decoder:
        decoder = self._typed(lambda: self._adapter.decoder(self._request, raw=self._call.raw))
        guarded = decoder if isinstance(decoder, FrameDecoder) else _Guarded(decoder, self.provider)
        return _Redacting(guarded, self.discreet)

    def _typed(self, make: Callable[[], T]) -> T:
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
        return refusal(status, headers, without(body, self._secrets()), self._built, self.model)

    def discreet(self, error: E) -> E:
        return keys.redacted(error, self._secrets())

    def _secrets(self) -> list[str]:
        return self._adapter._secrets(self._request, self._call, self._built)  # pyright: ignore[reportPrivateUsage]


class _Guarded:
    """A decoder that does not catch its own errors, as every `FrameDecoder` does: an error ends the stream."""

    def __init__(self, decoder: Decoder, provider: str) -> None:
        self._decoder = decoder
        self._provider = provider
        self._unfinished = Unfinished()
        self._has_begun = False
        self._has_ended = False

    def feed(self, data: bytes) -> list[Event]:
        # Line by line, so that what precedes a broken line is emitted however the bytes are cut into reads.
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
            start = [] if self._has_begun else [MessageStarted(Message("assistant"))]
            events = [*start, *self._unfinished.close(), ErrorEvent(failure)]
        for event in events:
            self._unfinished.see(event)
        self._has_begun = self._has_begun or bool(events)
        self._has_ended = bool(events) and isinstance(events[-1], ErrorEvent | MessageCompleted)
        return events


class _Redacting:
    """A decoder whose errors do not show the key."""

    def __init__(self, decoder: Decoder, redact: Callable[[LLMError], LLMError]) -> None:
        self._decoder = decoder
        self._redact = redact

    def feed(self, data: bytes) -> list[Event]:
        return self._redacted(self._decoder.feed(data))

    def close(self) -> list[Event]:
        return self._redacted(self._decoder.close())

    def _redacted(self, events: list[Event]) -> list[Event]:
        last = events[-1] if events else None  # an error is the last event of a stream
        return [*events[:-1], ErrorEvent(self._redact(last.error))] if type(last) is ErrorEvent else events
