"""The adapter for OpenAI's image API and compatible servers.

See https://platform.openai.com/docs/api-reference/images. Which fields a model accepts depends on its `Family`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from rxllm.adapters.http_base import File
from rxllm.adapters.images import Answer, HTTPImageAdapter, refuse_operation
from rxllm.adapters.openai_chat import OpenAIChat, bearer
from rxllm.values import Call, Image, ImageAdapterError, ImageRequest, ImageResponse, ImageUsage, ValidationError
from rxllm.values.json_text import json_text
from rxllm.values.usage import whole

if TYPE_CHECKING:
    import httpx


_PATHS = {"generate": "/images/generations", "edit": "/images/edits", "variation": "/images/variations"}
_RESPONSE_FORMATS = {"binary": "b64_json", "base64": "b64_json", "url": "url"}
_MIME_TYPES = {"svg": "image/svg+xml"}


@dataclass(frozen=True)
class Family:
    """The operations and optional fields that a family of models supports."""

    operations: tuple[str, ...] = tuple(_PATHS)
    fields: tuple[str, ...] = ("quality", "style", "background", "response_format")


_FAMILIES = {
    r"dall-e-2\b": Family(fields=("response_format",)),
    r"dall-e-3\b": Family(("generate",), ("quality", "style", "response_format")),
    r"(gpt|chatgpt)-image\b": Family(("generate", "edit"), ("quality", "background")),
    "": Family(),
}


class OpenAIImages(HTTPImageAdapter):
    """An adapter for OpenAI's image API or a compatible server.

    It sends ``POST {base_url}/images/...`` requests. The key is looked up in the call, then in `api_key`, then in
    ``OPENAI_API_KEY``. Fields that the model's family does not accept are left out. ``ImageRequest.options`` is merged
    into the body, so you can set fields such as ``output_format``, ``moderation`` and ``user``. An option that is None
    removes the field. If an input image is given as a URL, it is fetched and sent as a file.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OpenAIChat.default_base_url
    base_url_variable = OpenAIChat.base_url_variable
    operations = tuple(_PATHS)

    def refuse(self, request: ImageRequest) -> None:
        """Raise ``ImageAdapterError`` if the model does not support the operation or the format."""
        family = _family(request.model)
        refuse_operation(request, self.provider, family.operations)
        super().refuse(request)
        if request.response_format == "url" and "response_format" not in family.fields:
            message = f"{request.model} does not return URLs; use response_format='binary' or 'base64'"
            raise ImageAdapterError("invalid_request", message, provider=self.provider)

    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """Return the HTTP request.

        Input images that were given as URLs must already have been fetched. Raises ``ValidationError`` if one has not.
        """
        self.refuse(request)
        headers = bearer(self, call)
        path, body = _PATHS[request.operation], image_body(request)
        if request.operation == "generate":
            return self.post(path, body, call, headers=headers)
        fields = {name: value if isinstance(value, str) else json_text(value) for name, value in body.items()}
        return self.post_form(path, fields, list(_files(request)), call, headers=headers)

    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        request_id = answer.headers.get("x-request-id")
        decoded = msgspec.json.decode(answer.body, type=_Answer)
        if not decoded.data:
            message = "the answer contains no image"
            raise ImageAdapterError("content_filter", message, provider=self.provider, request_id=request_id)
        counters = decoded.usage or {}
        usage = ImageUsage(
            images=len(decoded.data),
            size=decoded.size or image_size(request.size),
            quality=decoded.quality or request.quality,
            input_tokens=whole(counters.get("input_tokens")),
            output_tokens=whole(counters.get("output_tokens")),
        )
        metadata = {"request_id": request_id, "usage_details": counters}
        return ImageResponse(
            tuple(_image(item, request, decoded) for item in decoded.data),
            model=request.model,
            usage=usage,
            metadata={**{name: value for name, value in metadata.items() if value}, **request.metadata},
        )


def image_body(request: ImageRequest) -> dict[str, Any]:
    optional = {
        "quality": request.quality,
        "style": request.style,
        "background": request.background,
        "response_format": _RESPONSE_FORMATS[request.response_format],
    }
    body = {
        "model": request.model,
        "prompt": request.prompt,
        "n": request.n if request.n != 1 else None,
        "size": image_size(request.size),
        **{name: optional[name] for name in _family(request.model).fields},
        **request.options,
    }
    return {name: value for name, value in body.items() if value is not None}


def image_size(size: tuple[int, int] | str | None) -> str | None:
    """Return `size` in the form that OpenAI expects.

    >>> image_size((1024, 1536))
    '1024x1536'
    """
    return f"{size[0]}x{size[1]}" if isinstance(size, tuple) else size


class _Item(msgspec.Struct):
    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None


class _Answer(msgspec.Struct):
    data: list[_Item] | None
    usage: dict[str, Any] | None = None
    size: str | None = None
    quality: str | None = None
    output_format: str | None = None


def _family(model: str | None) -> Family:
    return next(family for pattern, family in _FAMILIES.items() if re.match(pattern, model or ""))


def _image(item: _Item, request: ImageRequest, answer: _Answer) -> Image:
    details: dict[str, Any] = {"prompt": request.prompt, "revised_prompt": item.revised_prompt}
    if size := re.fullmatch(r"(\d+)x(\d+)", answer.size or image_size(request.size) or ""):
        details |= {"width": int(size[1]), "height": int(size[2])}
    if item.b64_json:
        kind = answer.output_format or request.options.get("output_format") or "png"
        return Image("base64", item.b64_json, _MIME_TYPES.get(kind, f"image/{kind}"), **details)
    if not item.url:
        raise ValueError("an image has neither b64_json nor url")
    return Image("url", item.url, **details)


def _files(request: ImageRequest) -> Iterator[File]:
    # Like OpenAI's SDK, name the field `image` for one image and `image[]` for several.
    name = "image" if len(request.input_images) == 1 else "image[]"
    for i, image in enumerate(request.input_images):
        yield name, _file(image, ("input_images", i))
    if request.mask is not None:
        yield "mask", _file(request.mask, ("mask",))


def _file(image: Image, path: tuple[str | int, ...]) -> tuple[str, bytes, str]:
    if image.mime_type is None:
        raise ValidationError("invalid_image_request", errors=[(path, "missing_mime_type")])
    extension = image.mime_type.partition("/")[2].partition("+")[0]
    return f"{'_'.join(map(str, path))}.{extension}", image.to_binary(), image.mime_type
