"""The image adapter protocol and its HTTP base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeGuard, runtime_checkable
from urllib.parse import urljoin, urlsplit

import msgspec
from reactivex import Observable

from rxllm import keys
from rxllm.adapters import http_error
from rxllm.adapters.http_base import HTTPBase, missing_model
from rxllm.http import transport_error
from rxllm.http.decompression import body_of
from rxllm.http.pools import in_use
from rxllm.http.request_log import request_log
from rxllm.http.secrets import address, public_url, without
from rxllm.http.stream import begins_page, discreetly, may_be_page, opened, page_error, read_error
from rxllm.http.timeouts import IdleTimeout
from rxllm.runtime import Pump, Stream, pumped
from rxllm.values import (
    AdapterError,
    Call,
    EngineError,
    Image,
    ImageAdapterError,
    ImageRequest,
    ImageResponse,
    LLMError,
    ValidationError,
)
from rxllm.values.argument_checks import shown
from rxllm.values.errors import with_origin

if TYPE_CHECKING:
    import httpx


@runtime_checkable
class ImageAdapter(Protocol):
    """Turns a request into a stream of one response.

    Failures go to ``on_error``. `operations` lists the supported operations: any of ``"generate"``, ``"edit"`` and
    ``"variation"``. Any other operation fails with ``ImageAdapterError("unsupported_operation")`` before any I/O.
    """

    @property
    def operations(self) -> Collection[str]: ...

    def generate(self, request: ImageRequest, call: Call) -> Observable[ImageResponse]: ...


def is_image_adapter(value: Any) -> TypeGuard[ImageAdapter]:
    """Return whether `value` is an image adapter. An adapter's class is not an adapter itself."""
    return isinstance(value, ImageAdapter) and not isinstance(value, type)


def as_image_adapter(value: Any) -> ImageAdapter:
    """Return `value` if it is an image adapter; otherwise raise ``EngineError("no_image_adapter")``."""
    if is_image_adapter(value):
        return value
    message = (
        "the engine has no image adapter; pass one, as in Engine(image_adapter=OpenAIImages())"
        if value is None
        else f"{shown(value)} is not an image adapter; pass an object with an 'operations' attribute "
        "and a generate(request, call) method"
    )
    raise EngineError("no_image_adapter", message)


def refuse_operation(request: ImageRequest, provider: str, operations: Collection[str]) -> None:
    """Raise ``ImageAdapterError("unsupported_operation")`` unless the operation is supported."""
    if request.operation in operations:
        return
    supported = ", ".join(sorted(operations)) or "no operation"
    message = f"{request.model or provider} does not support {request.operation!r}; it supports {supported}"
    metadata = {"operation": request.operation, "model": request.model}
    raise ImageAdapterError("unsupported_operation", message, provider=provider, metadata=metadata)


ANSWER_BYTES = 1 << 27
"""The maximum size of a response, in bytes. It is enough for four large images."""
FETCH_BYTES = 25 * 1024 * 1024
FETCH_SECONDS = 30.0
FETCH_REDIRECTS = 5


class Answer(msgspec.Struct, frozen=True):
    """A complete HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HTTPImageAdapter(HTTPBase):
    """Base class for image adapters over HTTP.

    Subclasses define `operations`, `build` and `read`. They can override `refuse`, which is called before any I/O.
    `HTTPBase` lists the arguments.
    """

    operations: ClassVar[Collection[str]]

    @abstractmethod
    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """Return the HTTP request, without sending it."""

    @abstractmethod
    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        """Return the image response in `answer`, which is a successful HTTP response.

        If this method raises an exception that is not an `LLMError`, the call fails with
        ``ImageAdapterError("malformed_response")``.
        """

    def refuse(self, request: ImageRequest) -> None:
        """Raise an error if the request cannot be sent."""
        refuse_operation(request, self.provider, self.operations)
        if not request.model:
            raise missing_model(self.provider, self)

    def needs_bytes(self, image: Image) -> bool:
        """Return whether the image must be sent as bytes because the provider does not accept its URL."""
        return image.source == "url"

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)

    def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
        """Return a stream of one response. Each subscription sends a request."""

        async def body(pump: Pump[ImageResponse]) -> None:
            call_with_key = call

            def redact(error: LLMError) -> LLMError:
                return _as_image_error(keys.redacted(error, self._secrets(request, call_with_key, None)))

            async def generate() -> ImageResponse:
                nonlocal call_with_key
                self.refuse(request)
                self._check_model(request.model)
                call_with_key = await self.with_key(call)
                self.key(call_with_key)  # raises if there is no key, before any image is fetched
                client = await self._clients.get()
                with in_use(client):
                    return await self._exchange(request, call_with_key, Fetcher(client, pump, self.provider))

            pump.emit((await discreetly(redact, generate()),))

        return pumped(body)

    async def _exchange(self, request: ImageRequest, call: Call, fetcher: Fetcher) -> ImageResponse:
        request = await self._load_inputs(request, fetcher)
        built = self.build(request, call)
        with request_log(call.request_id, built, self.provider, request.model) as note:
            answer = await fetcher.send(built, ANSWER_BYTES)
            note.answered(answer.status)
            response = self._response(request, call, built, answer)
            note.see([response])
        images = [await self._convert(image, request.response_format, fetcher) for image in response.images]
        return replace(response, images=tuple(images))

    def _response(self, request: ImageRequest, call: Call, built: httpx.Request, answer: Answer) -> ImageResponse:
        if answer.status >= 300:
            secrets = self._secrets(request, call, built)
            error = self._refusal(answer.status, answer.headers, without(answer.body, secrets), built, request.model)
            raise keys.redacted(error, secrets)
        if may_be_page(answer.headers) and begins_page(answer.body):
            raise page_error(answer.headers, self.provider, built)
        try:
            return self.read(request, answer)
        except LLMError:
            raise
        except Exception as error:
            message = f"the answer cannot be read: {type(error).__name__}: {error}"
            fields: dict[str, Any] = {"provider": self.provider, "request_id": answer.headers.get("x-request-id")}
            raise ImageAdapterError("malformed_response", message, **fields) from error

    async def _load_inputs(self, request: ImageRequest, fetcher: Fetcher) -> ImageRequest:
        async def load(image: Image) -> Image:
            return await fetcher.fetch(image) if self.needs_bytes(image) else image

        images = [await load(image) for image in request.input_images]
        return replace(request, input_images=tuple(images), mask=await load(request.mask) if request.mask else None)

    async def _convert(self, image: Image, source: Literal["binary", "base64", "url"], fetcher: Fetcher) -> Image:
        if source in (image.source, "url"):  # a URL was requested but bytes were sent: keep the bytes
            return image
        if image.source == "url":
            image = await fetcher.fetch(image)
        try:
            data = image.to_binary() if source == "binary" else image.to_base64()
        except ValidationError as error:
            message = "an image in the answer is not valid base64"
            raise ImageAdapterError("malformed_response", message, provider=self.provider) from error
        return replace(image, source=source, data=data)


def _as_image_error(error: LLMError) -> LLMError:
    if not isinstance(error, AdapterError) or isinstance(error, ImageAdapterError):
        return error
    return with_origin(ImageAdapterError.from_fields(error.fields()), error)


class Fetcher:
    """Sends one subscription's requests."""

    def __init__(self, client: httpx.AsyncClient, pump: Pump[Any], provider: str) -> None:
        self._client = client
        self._pump = pump
        self._provider = provider

    async def send(self, request: httpx.Request, limit: int, seconds: float | None = None, **options: Any) -> Answer:
        """Send `request` and return the answer. `options` are passed to the client.

        Raises ``AdapterError`` if the request fails or takes longer than `seconds`, or if the answer is larger than
        `limit` bytes.
        """
        url = address(request)
        try:
            watch = IdleTimeout(self._pump, seconds)
            async with opened(self._client, request, self._pump, **options) as response, watch:
                if response.status_code >= 300:
                    body = await read_error(response, self._pump)
                else:
                    body = await self._read(response, limit)
                return Answer(response.status_code, response.headers, body)
        except TimeoutError:
            raise AdapterError("timeout", f"{url} took longer than {seconds} s", provider=self._provider) from None
        except Exception as error:
            failure = transport_error(error, self._provider, url, self._client)
            if failure is None:
                raise
            raise failure from None

    async def fetch(self, image: Image) -> Image:
        """Return `image` with the data and MIME type found at its URL.

        Raises ``ImageAdapterError("invalid_request")`` if the URL does not lead to an image, or if the image is too
        large. If the request fails, the ``ImageAdapterError`` has the same reason as the error from `send`.
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
            raise self._fetch_error(url, f"it is not a valid URL: {error}") from error
        mime_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status >= 300:
            raise self._fetch_error(url, f"the server answered with HTTP {answer.status}")
        if not mime_type.startswith("image/"):
            raise self._fetch_error(url, f"expected type image/..., got {mime_type or 'no type'}")
        return replace(image, source="binary", data=answer.body, mime_type=mime_type)

    async def _get(self, url: str) -> Answer:
        target = url
        for _ in range(FETCH_REDIRECTS + 1):
            if urlsplit(target).scheme not in ("http", "https"):
                raise self._fetch_error(url, "only http and https URLs can be fetched")
            try:
                answer = await self.send(self._build_fetch(target), FETCH_BYTES, FETCH_SECONDS, auth=None)
            except AdapterError as error:
                reason = "invalid_request" if error.reason == "malformed_response" else error.reason
                raise self._fetch_error(url, error.message, reason) from error
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            target = urljoin(target, answer.headers.get("location", ""))
        raise self._fetch_error(url, f"it redirects more than {FETCH_REDIRECTS} times")

    def _build_fetch(self, url: str) -> httpx.Request:
        # Do not send the client's headers to the image's host.
        timing: dict[str, Any] = {"timeout": FETCH_SECONDS}
        request = self._client.build_request("GET", url, **timing)
        for name in [name for name in request.headers if name != "host"]:
            del request.headers[name]
        request.headers["accept"] = "image/*"
        return request

    def _fetch_error(self, url: str, fault: str, reason: str = "invalid_request") -> ImageAdapterError:
        url = public_url(url)
        message = f"the image {url} could not be fetched: {fault}"
        return ImageAdapterError(reason, message, provider=self._provider, metadata={"url": url})

    async def _read(self, response: httpx.Response, limit: int) -> bytes:
        body = bytearray()
        async for data in body_of(response):
            body += data
            if len(body) > limit:
                message = f"{address(response.request)} sent more than {limit} bytes"
                raise AdapterError("malformed_response", message, provider=self._provider)
            if self._pump.disposed:  # a call that was still connecting could not be cancelled, so check here
                break
        return bytes(body)
