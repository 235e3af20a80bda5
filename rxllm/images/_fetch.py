"""Requests that are answered as a whole: to the provider, and to the hosts of images that are given as URLs.

They connect, cancel and close as in ``rxllm.http.stream``: a response is closed before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import msgspec

from rxllm.http import transport_error
from rxllm.http.decompression import body_of
from rxllm.http.secrets import public_url
from rxllm.http.stream import address, opened, read_error
from rxllm.http.timeouts import IdleTimeout
from rxllm.runtime import Pump
from rxllm.values import AdapterError, Image, ImageAdapterError, LLMError

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES = 1 << 28
"""The largest answer of a provider: four images of 4096 x 4096 pixels, in base64, need less."""
FETCH_BYTES = 25 * 1024 * 1024
FETCH_SECONDS = 30.0
FETCH_REDIRECTS = 5


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP response, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Sends the requests of one subscription, whose dispose ends the one under way."""

    def __init__(self, client: httpx.AsyncClient, pump: Pump[Any], provider: str) -> None:
        self._client = client
        self._pump = pump
        self._provider = provider

    async def ask(self, request: httpx.Request) -> Answer:
        """Return the provider's answer to `request`.

        Raises ``AdapterError``: ``network_error``, ``timeout``, and ``malformed_response`` for a body that is too long.
        """
        return await self._send(request, ANSWER_BYTES)

    async def fetch(self, image: Image) -> Image:
        """Return `image`, which is a URL, with its data and their type instead.

        Raises ``ImageAdapterError``: ``invalid_request`` for a URL that does not lead to an image, and what `ask` does.
        """
        url = str(image.data)
        if url[:5].lower() == "data:":
            decoded = Image.from_data_uri(url)
            return replace(image, source=decoded.source, data=decoded.data, mime_type=decoded.mime_type)
        try:
            answer = await self._get(url)
        except LLMError:
            raise
        except Exception as error:
            raise self._not_fetched(url, f"it is not a URL: {error}") from error
        mime_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status >= 300:
            raise self._not_fetched(url, f"the answer is HTTP {answer.status}")
        if not mime_type.startswith("image/"):
            raise self._not_fetched(url, f"the answer has {mime_type or 'no type'} instead of image/...")
        return replace(image, source="binary", data=answer.body, mime_type=mime_type)

    async def _get(self, url: str) -> Answer:
        target = url
        for _ in range(FETCH_REDIRECTS + 1):
            if urlsplit(target).scheme not in ("http", "https"):
                raise self._not_fetched(url, "only http and https are fetched")
            try:
                answer = await self._send(self._anonymous(target), FETCH_BYTES, FETCH_SECONDS, auth=None)
            except AdapterError as error:
                reason = "invalid_request" if error.reason == "malformed_response" else error.reason
                raise self._not_fetched(url, error.message, reason) from error
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            target = urljoin(target, answer.headers.get("location", ""))
        raise self._not_fetched(url, f"it redirects more than {FETCH_REDIRECTS} times")

    def _anonymous(self, url: str) -> httpx.Request:
        # The client may add headers to every request, such as a key, that are not meant for the image's host.
        timing: dict[str, Any] = {"timeout": FETCH_SECONDS}
        request = self._client.build_request("GET", url, **timing)
        for name in [name for name in request.headers if name != "host"]:
            del request.headers[name]
        request.headers["accept"] = "image/*"
        return request

    def _not_fetched(self, url: str, why: str, reason: str = "invalid_request") -> ImageAdapterError:
        url = public_url(url)
        message = f"the image {url} could not be fetched: {why}"
        return ImageAdapterError(reason, message, provider=self._provider, metadata={"url": url})

    async def _send(self, request: httpx.Request, limit: int, seconds: float | None = None, **sending: Any) -> Answer:
        """Return the answer of at most `limit` bytes, read within `seconds`; `sending` is for the client's ``send``."""
        url = address(request)
        try:
            watch = IdleTimeout(self._pump, seconds)
            async with opened(self._client, request, self._pump, **sending) as response, watch:
                if response.status_code >= 300:
                    body = await read_error(response, self._pump)
                else:
                    body = await self._read(response, limit)
                return Answer(response.status_code, response.headers, body)
        except TimeoutError:
            raise AdapterError("timeout", f"{url} took longer than {seconds} s", provider=self._provider) from None
        except Exception as error:
            failure = transport_error(error, self._provider, url)
            if failure is None:
                raise
            raise failure from None

    async def _read(self, response: httpx.Response, limit: int) -> bytes:
        body = bytearray()
        async for data in body_of(response):
            body += data
            if len(body) > limit:
                message = f"{address(response.request)} sent more than {limit} bytes"
                raise AdapterError("malformed_response", message, provider=self._provider)
            if self._pump.disposed:  # while it connected, so nothing was cancelled
                break
        return bytes(body)
