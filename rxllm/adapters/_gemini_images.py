"""Images of Google's Gemini models, which draw in the answer to a message.

https://ai.google.dev/gemini-api/docs/image-generation. All input images go into the message, after the prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rxllm.adapters._http_images import HTTPImageAdapter, image_error
from rxllm.adapters._request import merge
from rxllm.adapters.gemini.auth import GoogleKeys, model_path
from rxllm.adapters.gemini.decoder import FINISH_REASONS
from rxllm.adapters.gemini.errors import answer_error
from rxllm.adapters.gemini.frames import Candidate, FirstChunk, to_usage
from rxllm.adapters.gemini.request import gemini_body
from rxllm.runtime import Answer
from rxllm.values import (
    AdapterError,
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

_RATIOS = ("1:1", "16:9", "9:16", "4:3", "3:4", "3:2", "2:3", "5:4", "4:5", "21:9")
_TOLERANCE = 0.05
"""How far a size may be from an aspect ratio, relative to it."""


class GeminiImages(GoogleKeys, HTTPImageAdapter):
    """``POST {base_url}/models/{model}:generateContent`` of the Gemini API, or of Vertex AI, see `Gemini`.

    A size in pixels asks for the nearest aspect ratio; ``"16:9"`` and ``"2K"`` are understood too. Quality, style and
    background have no field here and are left to the prompt. ``ImageRequest.options`` is merged over the body, objects
    into objects.
    """

    operations = ("generate", "edit")

    def needs_bytes(self, image: Image) -> bool:
        return False  # Google fetches them itself

    def refuse(self, request: ImageRequest) -> None:
        """Raises ``ImageAdapterError``: ``unsupported_operation`` for variations, ``unsupported_feature`` for a mask,
        ``invalid_request`` for URLs as an answer and for a size of no known shape.
        """
        super().refuse(request)
        if request.mask is not None:
            message = "Gemini takes no mask; say in the prompt what may change"
            raise ImageAdapterError("unsupported_feature", message, provider=self.provider)
        if request.response_format == "url":
            message = "Gemini gives no URLs; ask for response_format='binary' or 'base64'"
            raise ImageAdapterError("invalid_request", message, provider=self.provider)
        image_config(request.size)

    def build(self, request: ImageRequest, call: Call) -> httpx.Request:
        """The request as it will be sent."""
        self.refuse(request)
        key = self.key(call)
        model = str(request.model)
        path = f"/{model_path(model)}:generateContent"
        return self.post(path, image_body(request), call, headers=self._auth(key) if key else {})

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return image_error(answer_error(status, headers, body))

    def read(self, request: ImageRequest, answer: Answer) -> ImageResponse:
        try:
            said = msgspec.json.decode(answer.body, type=FirstChunk)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"the answer is not what was agreed: {error}"
            raise ImageAdapterError("malformed_response", message, provider=self.provider) from error
        images = tuple(image for each in said.candidates or () for image in _images(each, request))
        if not images:
            raise _nothing(said)
        counted = said.usage_metadata or {}
        usage = to_usage(counted)
        text = "".join(_texts(said))
        about = {"text": text, "usage_details": counted}
        return ImageResponse(
            images,
            id=said.response_id,
            model=said.model_version or request.model,
            usage=ImageUsage(len(images), input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
            metadata={**{name: held for name, held in about.items() if held}, **request.metadata},
        )


def image_body(request: ImageRequest) -> dict[str, Any]:
    """The JSON body of `request`: a chat's, with what draws."""
    message = user([TextPart(request.prompt or ""), *(ImagePart(image) for image in request.input_images)])
    config = {
        "responseModalities": ["TEXT", "IMAGE"],
        "imageConfig": image_config(request.size) or None,
        "candidateCount": request.n if request.n > 1 else None,
    }
    options = {"generationConfig": {name: held for name, held in config.items() if held is not None}}
    return gemini_body(Request((message,), request.model, options=merge(options, request.options)))


def image_config(size: tuple[int, int] | str | None) -> dict[str, str]:
    """A size in Gemini's words. Raises ``ImageAdapterError("invalid_request")`` for one of no known shape.

    >>> image_config((1024, 1024)), image_config("16:9"), image_config("2K")
    ({'aspectRatio': '1:1'}, {'aspectRatio': '16:9'}, {'imageSize': '2K'})
    """
    pixels = re.fullmatch(r"(\d+)x(\d+)", size) if isinstance(size, str) else None
    if pixels is not None:
        size = (int(pixels[1]), int(pixels[2]))
    match size:
        case None | "auto":
            return {}
        case str() if re.fullmatch(r"\d+:\d+", size):
            return {"aspectRatio": size}
        case str() if re.fullmatch(r"\d+(\.\d+)?K", size):
            return {"imageSize": size}
        case (width, height) if width > 0 and height > 0:
            wanted = width / height
            nearest = min(_RATIOS, key=lambda ratio: abs(math.log(wanted / _number(ratio))))
            if abs(wanted / _number(nearest) - 1) <= _TOLERANCE:
                return {"aspectRatio": nearest}
        case _:
            pass
    message = f"size {size!r} has none of the shapes that Gemini draws: {', '.join(_RATIOS)}"
    raise ImageAdapterError("invalid_request", message, provider=GoogleKeys.provider)


def _number(ratio: str) -> float:
    width, _, height = ratio.partition(":")
    return int(width) / int(height)


def _images(candidate: Candidate, request: ImageRequest) -> Iterator[Image]:
    for part in (candidate.content.parts or ()) if candidate.content else ():
        held = part.inline_data or {}
        kind, data = str(held.get("mimeType")), held.get("data")
        # A picture that was merely thought of is a draft, and is not charged for.
        if kind.startswith("image/") and isinstance(data, str) and not part.thought:
            yield Image("base64", data, kind, prompt=request.prompt)


def _texts(said: FirstChunk) -> Iterator[str]:
    for candidate in said.candidates or ():
        for part in (candidate.content.parts or ()) if candidate.content else ():
            if part.text and not part.thought:
                yield part.text


def _nothing(said: FirstChunk) -> ImageAdapterError:
    """Why there is no image: the prompt was blocked, or what the candidates say of themselves."""
    blocked = (said.prompt_feedback or {}).get("blockReason")
    reasons = [str(each.finish_reason) for each in said.candidates or () if each.finish_reason is not None]
    filtered = any(FINISH_REASONS.get(reason.upper()) == "content_filter" for reason in reasons)
    why = str(blocked) if blocked else ", ".join(reasons) or "no reason is given"
    text = "".join(_texts(said))
    return ImageAdapterError(
        "content_filter" if blocked or filtered else "unknown",
        f"the answer holds no image ({why}){f': {text}' if text else ''}",
        provider=GoogleKeys.provider,
        code=why,
    )
