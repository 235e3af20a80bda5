"""The base of the image adapters that speak HTTP: one request, one answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from rxllm import keys
from rxllm.adapters import http_error
from rxllm.adapters._http_base import HTTPBase, missing_model
from rxllm.http._pools import in_use
from rxllm.http.request_log import request_log
from rxllm.http.secrets import without
from rxllm.http.stream import address, begins_page, discreetly, may_be_page, page_error
from rxllm.images._adapter import refuse_operation
from rxllm.images._fetch import Answer, Fetcher
from rxllm.runtime import Pump, Stream, pumped
from rxllm.values import (
    AdapterError,
    Call,
    Image,
    ImageAdapterError,
    ImageRequest,
    ImageResponse,
    LLMError,
    ValidationError,
)
from rxllm.values.errors import with_origin

if TYPE_CHECKING:
    import httpx


def _as_image_error(error: LLMError) -> LLMError:
    if not isinstance(error, AdapterError) or isinstance(error, ImageAdapterError):
        return error
    return with_origin(ImageAdapterError.from_fields(error.fields()), error)


class HTTPImageAdapter(HTTPBase):
    """Adds ``generate`` to a class that has `operations`, `build` and `read`; `refuse` runs before any I/O.

    For its arguments see `HTTPBase`.
    """

    operations: ClassVar[Collection[str]]

    @abstractmethod
    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """Return the HTTP request, and send nothing."""

    @abstractmethod
    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        """Return the response in an answer with a status below 300.

        An exception that is not an `LLMError` becomes ``ImageAdapterError("malformed_response")``.
        """

    def refuse(self, request: ImageRequest) -> None:
        """Raise ``ImageAdapterError`` for a request that cannot be sent, such as ``unsupported_operation``."""
        refuse_operation(request, self.provider, self.operations)
        if not request.model:
            raise missing_model(self.provider, self)

    def needs_bytes(self, image: Image) -> bool:
        """Whether an input image must be fetched, because the provider does not take its URL."""
        return image.source == "url"

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)

    def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
        """Return a stream of the one response; each subscription sends the request anew."""

        async def body(pump: Pump[ImageResponse]) -> None:
            keyed = call

            def redact(error: LLMError) -> LLMError:
                return _as_image_error(keys.redacted(error, self._secrets(request, keyed, None)))

            async def generate() -> ImageResponse:
                nonlocal keyed
                self.refuse(request)
                self._check_model(request.model)
                keyed = await self.with_key(call)
                self.key(keyed)  # a missing key is an error before anything is fetched
                client = await self._clients.get()
                with in_use(client):
                    return await self._exchange(request, keyed, Fetcher(client, pump, self.provider))

            pump.emit((await discreetly(redact, generate()),))

        return pumped(body)

    async def _exchange(self, request: ImageRequest, call: Call, fetcher: Fetcher) -> ImageResponse:
        request = await self._with_bytes(request, fetcher)
        built = self.build(request, call)
        with request_log(call.request_id, built.method, address(built), self.provider, request.model) as note:
            answer = await fetcher.ask(built)
            note.answered(answer.status)
            response = self._response(request, call, built, answer)
            note.see([response])
        images = [await self._converted(image, request.response_format, fetcher) for image in response.images]
        return replace(response, images=tuple(images))

    def _response(self, request: ImageRequest, call: Call, built: httpx.Request, answer: Answer) -> ImageResponse:
        if answer.status >= 300:
            secrets = self._secrets(request, call, built)
            error = self._refusal(answer.status, answer.headers, without(answer.body, secrets), built, request.model)
            raise keys.redacted(error, secrets)
        if may_be_page(answer.headers) and begins_page(answer.body):
            raise page_error(answer.headers, self.provider, address(built))
        return self._read(request, answer)

    async def _with_bytes(self, request: ImageRequest, fetcher: Fetcher) -> ImageRequest:
        async def loaded(image: Image) -> Image:
            return await fetcher.fetch(image) if self.needs_bytes(image) else image

        images = [await loaded(image) for image in request.input_images]
        return replace(request, input_images=tuple(images), mask=await loaded(request.mask) if request.mask else None)

    def _read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        try:
            return self.read(request, answer)
        except LLMError:
            raise
        except Exception as error:
            message = f"the answer cannot be read: {type(error).__name__}: {error}"
            request_id = answer.headers.get("x-request-id")
            raise ImageAdapterError(
                "malformed_response", message, provider=self.provider, request_id=request_id
            ) from error

    async def _converted(self, image: Image, source: Literal["binary", "base64", "url"], fetcher: Fetcher) -> Image:
        if source in (image.source, "url"):  # an answer with bytes instead of a URL stays as it is
            return image
        if image.source == "url":
            image = await fetcher.fetch(image)
        try:
            data = image.to_binary() if source == "binary" else image.to_base64()
        except ValidationError as error:
            message = "an image of the answer is not base64"
            raise ImageAdapterError("malformed_response", message, provider=self.provider) from error
        return replace(image, source=source, data=data)
