"""The one-shot HTTP source: whole responses, for calls that have nothing to stream.

Connecting, cancelling and closing are as in ``_http_stream``; the response is closed before the item is emitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rxllm.runtime._http_decompress import body_of
from rxllm.runtime._http_stream import address, opened, read_error
from rxllm.runtime._http_transports import transport_error
from rxllm.runtime._idle_timeout import IdleTimeout
from rxllm.runtime._pump import Pump, pumped
from rxllm.runtime._stream import Stream
from rxllm.values import AdapterError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

ANSWER_BYTES = 1 << 28
"""The largest response that is read: four images of 4096 x 4096 pixels, in base64, need less."""


class Answer(msgspec.Struct, frozen=True):
    """A whole response, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Asker:
    """Sends requests on behalf of one subscription; a dispose ends the one under way."""

    def __init__(self, pump: Pump[Any]) -> None:
        self._pump = pump

    async def ask(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        *,
        provider: str | None = None,
        limit: int | None = None,
        seconds: float | None = None,
        anonymous: bool = False,
    ) -> Answer:
        """Return the response to `request`.

        `seconds` limits how long its body may take, `limit` its size in bytes (256 MiB by default);
        `anonymous` leaves out the client's own ``auth``.

        Raises ``AdapterError``: ``network_error``, ``timeout``, and ``malformed_response`` for a body that is too long.
        """
        url = address(request)
        limit = ANSWER_BYTES if limit is None else limit
        options: dict[str, Any] = {"auth": None} if anonymous else {}
        try:
            async with opened(client, request, self._pump, **options) as response, IdleTimeout(self._pump, seconds):
                if response.status_code >= 300:
                    body = await read_error(response, self._pump)
                else:
                    body = await self._read(response, limit)
                return Answer(response.status_code, response.headers, body)
        except TimeoutError as error:
            raise AdapterError("timeout", f"{url} took longer than {seconds} s", provider=provider) from error
        except _TooLongError as error:
            message = f"{url} sent more than {limit} bytes"
            raise AdapterError("malformed_response", message, provider=provider) from error
        except Exception as error:
            failure = transport_error(error, provider, url)
            if failure is None:
                raise
            raise failure from error

    async def _read(self, response: httpx.Response, limit: int) -> bytes:
        body = bytearray()
        async for data in body_of(response):
            body += data
            if len(body) > limit:
                raise _TooLongError
            if self._pump.disposed:  # while it was connecting: nobody listens any more
                break
        return bytes(body)


class _TooLongError(Exception):
    pass


def fetched(work: Callable[[Asker], Awaitable[T]]) -> Stream[T]:
    """Return a cold Stream of the one item that ``work(asker)`` returns; each subscription does the work anew."""

    async def body(pump: Pump[T]) -> None:
        item = await work(Asker(pump))
        pump.emit((item,))

    return pumped(body)
