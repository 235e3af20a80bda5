"""The base of the image adapters that speak HTTP: one request, one answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urljoin, urlsplit

from rxllm.adapters._http_base import HTTPBase, missing_model
from rxllm.adapters._http_errors import http_error
from rxllm.adapters._image_adapter import refuse
from rxllm.runtime import Answer, Asker, Stream, fetched, keys
from rxllm.runtime._http_pools import in_use
from rxllm.runtime._http_stream import address, begins_page, discreetly, may_be_page, page_error
from rxllm.runtime._redact_secrets import without
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

if TYPE_CHECKING:
    import httpx

FETCH_SECONDS = 30.0
FETCH_BYTES = 25 * 1024 * 1024
FETCH_REDIRECTS = 5


class HTTPImageAdapter(HTTPBase):
    """Gives ``generate`` to a class that has `operations`, `build` and `read`; `refuse` is asked before all I/O.

    For its arguments see `HTTPBase`.
    """

    operations: ClassVar[Collection[str]]

    @abstractmethod
    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """The request as it would be sent. Nothing is sent."""

    @abstractmethod
    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        """What an answer with a status below 300 says."""

    def refuse(self, request: ImageRequest) -> None:
        """Raises ``ImageAdapterError`` for what cannot be asked, as ``unsupported_operation``."""
        refuse(request, self.provider, self.operations)
        if not request.model:
            raise missing_model(self.provider)

    def needs_bytes(self, image: Image) -> bool:
        """Whether a URL given as an input must be fetched, because the provider does not."""
        return image.source == "url"

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return image_error(http_error(self.provider, status, headers, body))

    def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
        """The response. Each subscription sends the request anew."""

        def discreet(error: LLMError) -> LLMError:
            return keys.redacted(error, self._secrets(request, call, None))

        return fetched(lambda asker: discreetly(discreet, self._generate(request, call, asker)))

    async def _generate(self, request: ImageRequest, call: Call, asker: Asker) -> ImageResponse:
        try:
            self.refuse(request)
            self.key(call)  # before anything is fetched
            client = await self._clients.get()
            with in_use(client):
                return await self._asked(request, call, client, asker)
        except AdapterError as error:
            raise image_error(error) from error.__cause__  # the same error, by another name

    async def _asked(self, request: ImageRequest, call: Call, client: httpx.AsyncClient, asker: Asker) -> ImageResponse:
        asked = await self._with_bytes(request, client, asker)
        built = self.build(asked, call)
        answer = await asker.ask(client, built, provider=self.provider)
        if answer.status >= 300:
            secrets = self._secrets(request, call, built)
            error = self._refusal(answer.status, answer.headers, without(answer.body, secrets), built)
            raise keys.redacted(error, secrets)
        if may_be_page(answer.headers) and begins_page(answer.body):
            raise page_error(answer.headers, self.provider, address(built))
        response = self._read(asked, answer)
        images = [await self._in_form(image, asked, client, asker) for image in response.images]
        return replace(response, images=tuple(images))

    def _read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        try:
            return self.read(request, answer)
        except LLMError:
            raise
        except Exception as error:
            message = f"the answer cannot be read: {type(error).__name__}: {error}"
            raise ImageAdapterError("malformed_response", message, provider=self.provider) from error

    async def _with_bytes(self, request: ImageRequest, client: httpx.AsyncClient, asker: Asker) -> ImageRequest:
        async def held(image: Image) -> Image:
            return await self._fetch(image, client, asker) if self.needs_bytes(image) else image

        images = tuple([await held(image) for image in request.input_images])
        return replace(request, input_images=images, mask=await held(request.mask) if request.mask else None)

    async def _in_form(self, image: Image, request: ImageRequest, client: httpx.AsyncClient, asker: Asker) -> Image:
        wanted = request.response_format
        if image.source == wanted or wanted == "url":
            return image
        if image.source == "url":
            image = await self._fetch(image, client, asker)
        try:
            data = image.to_binary() if wanted == "binary" else image.to_base64()
        except ValidationError as error:
            message = "an image of the answer is not base64"
            raise ImageAdapterError("malformed_response", message, provider=self.provider) from error
        return replace(image, source=wanted, data=data)

    async def _fetch(self, image: Image, client: httpx.AsyncClient, asker: Asker) -> Image:
        url = str(image.data)
        if url[:5].lower() == "data:":
            held = Image.from_data_uri(url)
            return replace(image, source=held.source, data=held.data, mime_type=held.mime_type)
        try:
            answer = await self._get(url, client, asker)
        except LLMError:
            raise
        except Exception as error:
            raise self._unfetched(url, f"it is not a URL: {error}") from error
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status >= 300:
            raise self._unfetched(url, f"the answer was HTTP {answer.status}")
        if not kind.startswith("image/"):
            raise self._unfetched(url, f"it is {kind or 'of no type'}, and no image")
        return replace(image, source="binary", data=answer.body, mime_type=kind)

    async def _get(self, url: str, client: httpx.AsyncClient, asker: Asker) -> Answer:
        there = url
        for _ in range(FETCH_REDIRECTS + 1):
            if urlsplit(there).scheme not in ("http", "https"):
                raise self._unfetched(url, "only http and https are fetched")
            try:
                request = _anonymous(client, there)
                bounds: dict[str, Any] = {"limit": FETCH_BYTES, "seconds": FETCH_SECONDS}
                answer = await asker.ask(client, request, anonymous=True, **bounds)
            except AdapterError as error:
                reason = "invalid_request" if error.reason == "malformed_response" else error.reason
                raise self._unfetched(url, error.message, reason) from error
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            there = urljoin(there, answer.headers.get("location", ""))
        raise self._unfetched(url, f"it redirects more than {FETCH_REDIRECTS} times")

    def _unfetched(self, url: str, why: str, reason: str = "invalid_request") -> ImageAdapterError:
        shown = url.partition("?")[0]
        message = f"the image {shown} could not be fetched: {why}"
        return ImageAdapterError(reason, message, provider=self.provider, metadata={"url": shown})


def _anonymous(client: httpx.AsyncClient, url: str) -> httpx.Request:
    # Whatever the client sends by itself, a key perhaps, is not meant for the image's host.
    timing: dict[str, Any] = {"timeout": FETCH_SECONDS}
    made = client.build_request("GET", url, **timing)
    for name in [name for name in made.headers if name != "host"]:
        del made.headers[name]
    made.headers["accept"] = "image/*"
    return made


def image_error(error: AdapterError) -> ImageAdapterError:
    """`error`, as that of an image call."""
    if isinstance(error, ImageAdapterError):
        return error
    return ImageAdapterError.from_fields(error.fields())


def image_file(image: Image, path: tuple[str | int, ...]) -> tuple[str, bytes, str]:
    """The name, bytes and type of `image` as a form's file; `path` is where it stands in the request.

    Raises ``ValidationError("invalid_image_request")`` where it has no type or no bytes.
    """
    if image.mime_type is None:
        raise ValidationError("invalid_image_request", errors=[(path, "missing_mime_type")])
    name = "_".join(map(str, path))
    return (f"{name}.{image.mime_type.partition('/')[2].partition('+')[0]}", image.to_binary(), image.mime_type)
