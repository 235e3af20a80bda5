"""Ask a server how many tokens a request has: one request, answered as a whole."""

from __future__ import annotations

from typing import Any, cast

from reactivex import Observable, just, throw

from rxllm.adapters._http import Build, HTTPAdapter, HTTPExchange
from rxllm.events import ErrorEvent
from rxllm.http import Decoder, http_stream
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, StreamError, TokenCount, estimated_tokens
from rxllm.values.json_text import UNREADABLE, read_json

LONGEST = 1 << 20
"""The largest answer, in bytes: it is a number."""

_NOT_THERE = (404, 405, 501)


def counted(adapter: HTTPAdapter, request: Request, call: Call, build: Build, field: str) -> Stream[TokenCount]:
    """Return the count in the `field` of the server's answer to the request that `build` returns.

    A compatible server may lack the path: then it is an estimate. At the provider's own address that is an error.
    """
    counts: Any = http_stream(lambda: _Counting(adapter, request, call, build, field))

    def estimate(error: Exception, _: Any) -> Observable[TokenCount]:
        if isinstance(error, AdapterError) and error.status in _NOT_THERE and _is_elsewhere(adapter):
            return just(TokenCount(estimated_tokens(request), estimated=True))
        return throw(error)

    return Stream.of(counts.map(_count_or_raise).catch(estimate))


def _is_elsewhere(adapter: HTTPAdapter) -> bool:
    return adapter.base_url != adapter.default_base_url


def _count_or_raise(item: Any) -> TokenCount:
    if isinstance(item, ErrorEvent):
        raise item.error
    return item


class _Counting(HTTPExchange):
    """The exchange of a count: another request, and an answer that is read at its end."""

    def __init__(self, adapter: HTTPAdapter, request: Request, call: Call, build: Build, field: str) -> None:
        super().__init__(adapter, request, call, build)
        self.content_only = False
        self._field = field

    def decoder(self) -> Decoder:
        return cast(Decoder, _Body(self.provider, self._field))


class _Body:
    """Collects the body of an answer, and reads the count in it."""

    def __init__(self, provider: str, field: str) -> None:
        self._provider = provider
        self._field = field
        self._body = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._body += data
        if len(self._body) > LONGEST:
            raise self._malformed(f"it has more than {LONGEST} bytes")
        return []

    def close(self) -> list[Any]:
        try:
            answer = read_json(bytes(self._body))
        except UNREADABLE:  # the source knows better if the connection has failed
            message = "the count of tokens ended early"
            return [ErrorEvent(StreamError("truncated", message, provider=self._provider))]
        tokens = cast(dict[str, Any], answer).get(self._field) if isinstance(answer, dict) else None
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            return [ErrorEvent(self._malformed(f"it has no number of tokens in {self._field!r}"))]
        return [TokenCount(tokens)]

    def _malformed(self, why: str) -> AdapterError:
        message = f"the count of tokens cannot be read: {why}"
        return AdapterError("malformed_response", message, provider=self._provider)
