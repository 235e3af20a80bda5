"""The adapter for images from Google's Gemini models.

The images arrive as parts of a chat answer: https://ai.google.dev/gemini-api/docs/image-generation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from rxllm.adapters._requests import merge
from rxllm.adapters.gemini import GoogleKeys, model_path
from rxllm.adapters.gemini.decoder import FINISH_REASONS
from rxllm.adapters.gemini.frames import FirstChunk, Part, to_usage
from rxllm.adapters.gemini.request import gemini_body
from rxllm.adapters.images import Answer, HTTPImageAdapter
from rxllm.values import (
    Call,
    Image,
    ImageAdapterError,
    ImagePart,
    ImageRequest,
    ImageResponse,
    ImageUsage,
    Request,
    TextPart,
    user,
)

if TYPE_CHECKING:
    import httpx


_SHAPES = ((1, 1), (16, 9), (9, 16), (4, 3), (3, 4), (3, 2), (2, 3), (5, 4), (4, 5), (21, 9))
_RATIOS = {f"{width}:{height}": width / height for width, height in _SHAPES}
_TOLERANCE = 0.05
"""The maximum relative difference between a requested aspect ratio and the nearest one in `_RATIOS`."""


class GeminiImages(GoogleKeys, HTTPImageAdapter):
    """An adapter for images from the Gemini API or Vertex AI.

    It sends ``POST {base_url}/models/{model}:generateContent`` requests. For the key, see `Gemini`. For Vertex AI, pass
    an access token and the `base_url`
    ``https://aiplatform.googleapis.com/v1/projects/P/locations/L/publishers/google``.

    If you pass a size in pixels, the nearest aspect ratio that Gemini supports is requested. If the nearest ratio
    differs from the ratio of your size by more than 5%, an error is raised. You can also pass a ratio such as
    ``"16:9"`` or a resolution such as ``"2K"``. There are no fields for quality, style or background, so describe them
    in the prompt. ``ImageRequest.options`` is merged into the body, including nested objects.
    """

    operations = ("generate", "edit")

    def needs_bytes(self, image: Image) -> bool:
        return False  # Google fetches URLs itself

    def refuse(self, request: ImageRequest) -> None:
        """Raise ``ImageAdapterError`` if the request uses anything that Gemini does not support."""
        super().refuse(request)
        if request.mask is not None:
            message = "Gemini does not accept a mask; describe the change in the prompt"
            raise ImageAdapterError("unsupported_feature", message, provider=self.provider)
        if request.response_format == "url":
            message = "Gemini does not return URLs; use response_format='binary' or 'base64'"
            raise ImageAdapterError("invalid_request", message, provider=self.provider)
        image_config(request.size)

    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """Return the HTTP request, without sending it."""
        self.refuse(request)
        key = self.key(call)
        path = f"/{model_path(str(request.model))}:generateContent"
        return self.post(path, image_body(request), call, headers=self.key_headers(key) if key else {})

    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        decoded = msgspec.json.decode(answer.body, type=FirstChunk)
        images = tuple(_images(decoded, request.prompt))
        if not images:
            raise _no_image(decoded)
        counters = decoded.usage_metadata or {}
        usage = to_usage(counters)
        metadata = {"text": _text(decoded), "usage_details": counters}
        return ImageResponse(
            images,
            id=decoded.response_id,
            model=decoded.model_version or request.model,
            usage=ImageUsage(len(images), input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
            metadata={**{name: value for name, value in metadata.items() if value}, **request.metadata},
        )


def image_body(request: ImageRequest) -> dict[str, Any]:
    message = user([TextPart(request.prompt or ""), *(ImagePart(image) for image in request.input_images)])
    config = {
        "responseModalities": ["TEXT", "IMAGE"],
        "imageConfig": image_config(request.size) or None,
        "candidateCount": request.n if request.n > 1 else None,
    }
    options = {"generationConfig": {name: value for name, value in config.items() if value is not None}}
    return gemini_body(Request((message,), request.model, options=merge(options, request.options)))


def image_config(size: tuple[int, int] | str | None) -> dict[str, str]:
    """Return the ``imageConfig`` fields for `size`.

    Raises ``ImageAdapterError("invalid_request")`` if Gemini does not support this size.

    >>> image_config((1024, 1024)), image_config("16:9"), image_config("2K")
    ({'aspectRatio': '1:1'}, {'aspectRatio': '16:9'}, {'imageSize': '2K'})
    """
    if isinstance(size, str) and (pixels := re.fullmatch(r"(\d+)x(\d+)", size)):
        size = (int(pixels[1]), int(pixels[2]))
    match size:
        case None | "auto":
            return {}
        case str() if re.fullmatch(r"\d+:\d+", size):
            return {"aspectRatio": size}
        case str() if re.fullmatch(r"\d+(\.\d+)?K", size):
            return {"imageSize": size}
        case (width, height) if width > 0 and height > 0:
            ratio = width / height
            nearest = min(_RATIOS, key=lambda name: abs(math.log(ratio / _RATIOS[name])))
            if abs(ratio / _RATIOS[nearest] - 1) <= _TOLERANCE:
                return {"aspectRatio": nearest}
        case _:
            pass
    message = f"Gemini cannot generate images of size {size!r}; use one of these ratios: {', '.join(_RATIOS)}"
    raise ImageAdapterError("invalid_request", message, provider=GoogleKeys.provider)


def _images(answer: FirstChunk, prompt: str | None) -> Iterator[Image]:
    for part in _parts(answer):
        data = part.inline_data or {}
        mime_type, text = str(data.get("mimeType")), data.get("data")
        if mime_type.startswith("image/") and isinstance(text, str):
            yield Image("base64", text, mime_type, prompt=prompt)


def _text(answer: FirstChunk) -> str:
    return "".join(part.text or "" for part in _parts(answer))


def _parts(answer: FirstChunk) -> Iterator[Part]:
    for candidate in answer.candidates or ():
        parts = candidate.content.parts if candidate.content else None
        # Skip images in thoughts: they are drafts, which are not billed.
        yield from (part for part in parts or () if not part.thought)


def _no_image(answer: FirstChunk) -> ImageAdapterError:
    blocked = (answer.prompt_feedback or {}).get("blockReason")
    reasons = [str(item.finish_reason) for item in answer.candidates or () if item.finish_reason is not None]
    filtered = any(FINISH_REASONS.get(reason.upper()) == "content_filter" for reason in reasons)
    code = str(blocked) if blocked else ", ".join(reasons) or "no reason is given"
    text = _text(answer)
    return ImageAdapterError(
        "content_filter" if blocked or filtered else "unknown",
        f"the answer contains no image ({code}){f': {text}' if text else ''}",
        provider=GoogleKeys.provider,
        code=code,
    )
