"""OpenAI's images, and every server that speaks their API.

https://platform.openai.com/docs/api-reference/images. What is made from a prompt is asked for in JSON, edits and
variations in a form with files. Each family of models knows other fields, see `Family`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from rxllm.adapters._http_base import File
from rxllm.adapters._http_images import HTTPImageAdapter, image_file
from rxllm.adapters._image_adapter import refuse
from rxllm.adapters.openai_chat.adapter import OPENAI
from rxllm.runtime import Answer
from rxllm.values import Call, Image, ImageAdapterError, ImageRequest, ImageResponse, ImageUsage
from rxllm.values._json import json_text
from rxllm.values._usage import whole

if TYPE_CHECKING:
    import httpx

_ALL = ("generate", "edit", "variation")


@dataclass(frozen=True)
class Family:
    """What the models of one family can do, and the fields that they know besides prompt, n and size."""

    operations: tuple[str, ...] = _ALL
    fields: tuple[str, ...] = ("quality", "style", "background", "response_format")


_FAMILIES = {
    r"dall-e-2\b": Family(fields=("response_format",)),
    r"dall-e-3\b": Family(("generate",), ("quality", "style", "response_format")),
    r"(gpt|chatgpt)-image\b": Family(("generate", "edit"), ("quality", "background")),
}
_ANY = Family()
_PATHS = {"generate": "/images/generations", "edit": "/images/edits", "variation": "/images/variations"}
_FORMS = {"binary": "b64_json", "base64": "b64_json", "url": "url"}


class OpenAIImages(HTTPImageAdapter):
    """``POST {base_url}/images/{generations,edits,variations}`` of OpenAI, or of a server that is compatible with it.

    The key is `api_key`, the call's, or ``OPENAI_API_KEY``. Fields that the model's family does not know are not sent;
    ``ImageRequest.options`` is merged over the body (``output_format``, ``moderation``, ``user``, ...), and None takes
    a field out. Inputs that are URLs are fetched and sent as files.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    operations = _ALL

    def refuse(self, request: ImageRequest) -> None:
        """Raises ``ImageAdapterError``: ``unsupported_operation`` for what the model cannot do, ``invalid_request`` for
        URLs from models that give none.
        """
        refuse(request, self.provider, _family(request.model).operations)
        super().refuse(request)
        if request.response_format == "url" and "response_format" not in _family(request.model).fields:
            message = f"{request.model} gives no URLs; ask for response_format='binary' or 'base64'"
            raise ImageAdapterError("invalid_request", message, provider=self.provider)

    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """The request as it will be sent. Raises ``ValidationError`` for inputs that are URLs: they are not fetched."""
        self.refuse(request)
        key = self.key(call)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        path, body = _PATHS[request.operation], image_body(request)
        if request.operation == "generate":
            return self.post(path, body, call, headers=headers)
        fields = {name: _form_value(held) for name, held in body.items()}
        return self.post_form(path, fields, list(_files(request)), call, headers=headers)

    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        request_id = answer.headers.get("x-request-id")
        try:
            said = msgspec.json.decode(answer.body, type=_Said)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._wrong("malformed_response", f"not what was agreed: {error}", request_id) from error
        if not said.data:
            raise self._wrong("content_filter", "the answer holds no image", request_id)
        images = tuple(image for made in said.data if (image := _image(made, request, said)) is not None)
        if len(images) < len(said.data):
            raise self._wrong("malformed_response", "an image has neither b64_json nor url", request_id)
        about = {"request_id": request_id, "usage_details": said.usage}
        return ImageResponse(
            images,
            model=request.model,
            usage=_usage(said, request),
            metadata={**{name: held for name, held in about.items() if held}, **request.metadata},
        )

    def _wrong(self, reason: str, message: str, request_id: str | None) -> ImageAdapterError:
        return ImageAdapterError(reason, message, provider=self.provider, request_id=request_id)


def image_body(request: ImageRequest) -> dict[str, Any]:
    """The JSON body of `request`, or the fields of its form; files apart."""
    own = {
        "quality": request.quality,
        "style": request.style,
        "background": request.background,
        "response_format": _FORMS[request.response_format],
    }
    body = {
        "model": request.model,
        "prompt": request.prompt,
        "n": request.n if request.n != 1 else None,
        "size": image_size(request.size),
        **{name: own[name] for name in _family(request.model).fields},
        **request.options,
    }
    return {name: held for name, held in body.items() if held is not None}


def image_size(size: tuple[int, int] | str | None) -> str | None:
    """A size in OpenAI's words.

    >>> image_size((1024, 1536))
    '1024x1536'
    """
    return f"{size[0]}x{size[1]}" if isinstance(size, tuple) else size


class _Made(msgspec.Struct):
    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None


class _Said(msgspec.Struct):
    data: list[_Made] | None
    usage: dict[str, Any] | None = None
    size: str | None = None
    quality: str | None = None
    output_format: str | None = None


def _family(model: str | None) -> Family:
    found = (family for pattern, family in _FAMILIES.items() if re.match(pattern, model or ""))
    return next(found, _ANY)


def _image(made: _Made, request: ImageRequest, said: _Said) -> Image | None:
    size = re.fullmatch(r"(\d+)x(\d+)", said.size or image_size(request.size) or "")
    about: dict[str, Any] = {"prompt": request.prompt, "revised_prompt": made.revised_prompt}
    if size is not None:
        about |= {"width": int(size[1]), "height": int(size[2])}
    if made.b64_json:
        kind = said.output_format or request.options.get("output_format") or "png"
        return Image("base64", made.b64_json, _TYPES.get(kind, f"image/{kind}"), **about)
    return Image("url", made.url, **about) if made.url else None


_TYPES = {"svg": "image/svg+xml"}


def _usage(said: _Said, request: ImageRequest) -> ImageUsage:
    counted = said.usage or {}
    return ImageUsage(
        images=len(said.data or ()),
        size=said.size or image_size(request.size),
        quality=said.quality or request.quality,
        input_tokens=whole(counted.get("input_tokens")),
        output_tokens=whole(counted.get("output_tokens")),
    )


def _files(request: ImageRequest) -> Iterator[File]:
    # One image is `image`, several are `image[]`, as OpenAI's own SDK says it.
    name = "image" if len(request.input_images) == 1 else "image[]"
    for i, image in enumerate(request.input_images):
        yield name, image_file(image, ("input_images", i))
    if request.mask is not None:
        yield "mask", image_file(request.mask, ("mask",))


def _form_value(held: Any) -> str:
    return held if isinstance(held, str) else json_text(held)
