"""What is asked of an image model, and what comes back."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from rxllm.values._image import Image
from rxllm.values._value import Value, value

ImageOperation = Literal["generate", "edit", "variation"]
ImageForm = Literal["binary", "base64", "url"]


@value
class ImageRequest(Value):
    """One question to an image model, in no provider's terms.

    `size` is a width and a height in pixels, or a provider's own word (``"auto"``, ``"2K"``); `quality` is ``"low"``,
    ``"standard"``, ``"high"``, ``"hd"``, ``"auto"`` or the provider's own. `response_format` is the source of the
    images that come back. `mask` says where an edit may change its first image. `options` is merged into the
    provider's own request body as it is; `metadata` comes back in the response's.
    """

    operation: ImageOperation = "generate"
    model: str | None = None
    prompt: str | None = None
    n: int = 1
    size: tuple[int, int] | str | None = None
    quality: str | None = None
    style: Literal["natural", "vivid"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    response_format: ImageForm = "binary"
    input_images: tuple[Image, ...] = ()
    mask: Image | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ImageUsage(Value):
    """What images cost. Tokens and costs, in the provider's currency, are None where nobody said."""

    images: int = 0
    size: str | None = None
    quality: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_cost: float | None = None
    output_cost: float | None = None
    total_cost: float | None = None


@value
class ImageResponse(Value):
    """The images of one call; `id` and `model` are the provider's. Jupyter shows them.

    `request_id` is the call's, unless the adapter has set another.
    """

    images: tuple[Image, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: ImageUsage = field(default_factory=ImageUsage)
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    request_id: str | None = None

    def __repr__(self) -> str:
        return f"ImageResponse({list(self.images)}{f', {self.model}' if self.model else ''})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundles = [image._repr_mimebundle_() for image in self.images]  # pyright: ignore[reportPrivateUsage]
        shown = "".join(_as_html(bundle) for bundle in bundles)
        return {"text/plain": repr(self), **({"text/html": shown} if shown else {})}


def image_request(prompt: str, **fields: Any) -> ImageRequest:
    """A request for images of `prompt`, with the fields of `ImageRequest` by keyword; nothing is checked yet.

    >>> asked = image_request("a kestrel", size=(1024, 1024), n=2)
    >>> asked.operation, asked.n, asked.response_format
    ('generate', 2, 'binary')

    ``validate.image_request`` checks it.
    """
    return ImageRequest(prompt=prompt, **fields)


def _as_html(bundle: dict[str, str]) -> str:
    if "text/html" in bundle:
        return bundle["text/html"]
    return "".join(f'<img src="data:{kind};base64,{data}">' for kind, data in bundle.items() if kind != "text/plain")
