"""Log HTTP requests at DEBUG level.

Four lines are logged for each request. They contain no content, keys or headers:

::

    request 4f2: POST https://api.openai.com/v1/responses (openai, model gpt-5)
    request 4f2: status 200 after 0.41 s
    request 4f2: first event after 0.44 s
    request 4f2: completed after 2.10 s

The last line reads ``completed``, ``cancelled`` or, for example, ``failed (AdapterError rate_limited)``. All retries of
a call have the same id, and so do all steps of a chat.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rxllm.events import ErrorEvent, MessageCompleted
from rxllm.http.secrets import address
from rxllm.values import ImageResponse, LLMError, TokenCount

if TYPE_CHECKING:
    import httpx

    from rxllm.http.stream import Decoder


log = logging.getLogger("rxllm")


def request_log(request_id: str, request: httpx.Request, provider: str, model: str | None) -> RequestLog:
    """Write the first log line for a request, and return an object that writes the rest."""
    is_on = log.isEnabledFor(logging.DEBUG)
    if is_on:
        log.debug("request %s: %s %s (%s, model %s)", request_id, request.method, address(request), provider, model)
    return RequestLog(request_id, is_on)


class RequestLog:
    """Writes all log lines for a request except the first."""

    def __init__(self, request_id: str, is_on: bool) -> None:
        self._request_id = request_id
        self._is_on = is_on
        self._began = time.monotonic()
        self._last: Any = None

    def answered(self, status: int) -> None:
        self._after(f"status {status}")

    def watched(self, decoder: Decoder) -> Decoder:
        return _Watched(decoder, self) if self._is_on else decoder

    def see(self, items: list[Any]) -> None:
        self._last = items[-1] if items else self._last

    def see_events(self, events: list[Any]) -> None:
        if events and self._last is None:
            self._after("first event")
        self.see(events)

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        error = self._last.error if type(self._last) is ErrorEvent else error
        if isinstance(self._last, MessageCompleted | ImageResponse | TokenCount):
            self._after("completed")
        elif isinstance(error, Exception):
            self._after(f"failed ({_named(error)})")
        else:
            self._after("cancelled")

    def _after(self, milestone: str) -> None:
        if self._is_on:
            log.debug("request %s: %s after %.2f s", self._request_id, milestone, time.monotonic() - self._began)


class _Watched:
    def __init__(self, decoder: Decoder, request: RequestLog) -> None:
        self._decoder = decoder
        self._see = request.see_events

    def feed(self, data: bytes) -> list[Any]:
        events = self._decoder.feed(data)
        self._see(events)
        return events

    def close(self) -> list[Any]:
        return self._decoder.close()  # do not log these events, because the caller may still change them


def _named(error: Exception) -> str:
    # Leave out the message, which might contain a prompt or an API key.
    return f"{type(error).__name__} {error.reason}" if isinstance(error, LLMError) else type(error).__name__
