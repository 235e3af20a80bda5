"""Images, image requests and image responses."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from rxllm.values.base import Value, value
from rxllm.values.codec import may_name_files, wrong
from rxllm.values.errors import ValidationError

ImageSource = Literal["binary", "base64", "url", "file"]
ImageOperation = Literal["generate", "edit", "variation"]
ImageForm = Literal["binary", "base64", "url"]

_SLICE = 1 << 16
"""The number of characters of a data URI that are unescaped at a time."""

_NATIVE = ("image/png", "image/jpeg", "image/gif")
"""The MIME types of images that every notebook can show without HTML."""


@value
class Image(Value):
    """An image, given as bytes, base64 text, a URL or a file.

    Make one with `from_file`, `from_binary`, `from_base64`, `from_url` or `from_data_uri`. A file is read when the
    image is used. A URL is never fetched. `width` and `height` are in pixels. `prompt` is the prompt that generated the
    image. `revised_prompt` is the provider's version of that prompt. Jupyter displays the image.

    >>> Image.from_data_uri("data:image/gif;base64,R0lGODlhAQABAAAAACw=").to_binary()[:6]
    b'GIF89a'
    """

    source: ImageSource
    data: bytes | str = field(repr=False)
    mime_type: str | None = None
    width: int | None = None
    height: int | None = None
    prompt: str | None = None
    revised_prompt: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_file(cls, path: str | Path) -> Image:
        """Return an image that refers to a file.

        The MIME type is guessed from the file name. It is None if the name has no image extension.
        """
        import mimetypes  # slow to import

        guessed = mimetypes.guess_type(str(path), strict=False)[0] or ""
        return cls("file", str(path), guessed if guessed.startswith("image/") else None)

    @classmethod
    def from_binary(cls, data: bytes, mime_type: str) -> Image:
        return cls("binary", data, mime_type)

    @classmethod
    def from_base64(cls, text: str, mime_type: str) -> Image:
        """Return an image from base64 text. The text is checked only when it is decoded."""
        return cls("base64", text, mime_type)

    @classmethod
    def from_url(cls, url: str) -> Image:
        return cls("url", url)

    @classmethod
    def from_data_uri(cls, uri: str) -> Image:
        """Return the image in a URI such as ``data:image/png;base64,...``.

        Raises ``ValidationError("invalid_image_request")`` if `uri` is not a data URI.
        """
        head, comma, text = uri.strip().partition(",")
        if not comma or head[:5].lower() != "data:":
            message = f"uri must be a data URI, such as 'data:image/png;base64,...', not {uri[:30]!r}"
            raise ValidationError("invalid_image_request", message, errors=[(("source",), "invalid_data_uri")])
        mime_type, data = head[5:].partition(";")[0].lower() or None, _unescaped(text)
        if head[-7:].lower() == ";base64":
            return cls("base64", data.decode("latin-1"), mime_type)
        return cls("binary", data, mime_type)

    def to_binary(self) -> bytes:
        """Return the image as bytes.

        Raises ``ValidationError("invalid_image_request")`` if the image is a URL or invalid base64. Raises ``OSError``
        if the file cannot be read.
        """
        match self.data:
            case bytes():
                return self.data
            case str() if self.source == "file":
                return Path(self.data).read_bytes()
            case str() if self.source == "base64":
                try:
                    return base64.b64decode(self.data, validate=True)
                except ValueError as error:  # the data is not ASCII, or not valid base64
                    raise self._invalid("invalid_base64") from error
            case _:
                raise self._invalid("remote_source")

    def to_base64(self) -> str:
        """Return the image as base64 text."""
        if self.source == "base64" and isinstance(self.data, str):
            return self.data
        return base64.b64encode(self.to_binary()).decode()

    def to_data_uri(self) -> str:
        """Return the image as ``data:image/png;base64,...``.

        Raises ``ValidationError("invalid_image_request")`` if the MIME type is unknown. Also raises the same errors as
        `to_binary`.
        """
        if self.mime_type is None and self.source != "url":
            raise self._invalid("missing_mime_type")
        return f"data:{self.mime_type};base64,{self.to_base64()}"

    @classmethod
    def _check_decoded(cls, arguments: Mapping[str, Any]) -> None:
        # Without this check, untrusted JSON could make the program send any local file.
        if arguments["source"] == "file" and not may_name_files.get():
            remedy = "if you trust this JSON, read it with serializer.from_json(text, local_files=True)"
            message = f"the image is a file on this machine, {arguments['data'][:80]!r}; {remedy}"
            raise wrong("local_file", message, "source")

    def __repr__(self) -> str:
        size = f"{self.width}x{self.height}" if self.width and self.height else None
        texts = (self.source, self.mime_type, size, self._place())
        return f"Image({', '.join(text for text in texts if text)})"

    def _place(self) -> str:
        # A URL's query can contain a secret signature.
        if isinstance(self.data, bytes):
            return f"{len(self.data)} bytes"
        if self.source == "base64":
            return f"{len(self.data) * 3 // 4} bytes"
        return repr(self.data[:100].partition("?")[0] if self.source == "url" else self.data)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        plain = {"text/plain": repr(self)}
        try:
            if self.mime_type in _NATIVE and self.source != "url":
                return {self.mime_type: base64.b64encode(self.to_binary()).decode(), **plain}
            address = str(self.data) if self.source == "url" else self.to_data_uri()
        except (ValidationError, OSError, binascii.Error):
            return plain  # even an image that cannot be read has a repr
        import html

        return {"text/html": f'<img src="{html.escape(address)}">', **plain}

    def _invalid(self, fault: str) -> ValidationError:
        return ValidationError("invalid_image_request", errors=[(("source",), fault)])


@value
class ImageRequest(Value):
    """A request to any provider's image model.

    * `size` is (width, height) in pixels, or a word such as ``"auto"`` or ``"2K"``.
    * `quality` is ``"low"``, ``"standard"``, ``"high"``, ``"hd"``, ``"auto"`` or the provider's own word.
    * `response_format` is the form of the returned images.
    * `mask` marks the area to edit in the first input image.
    * `options` is merged into the provider's request body.
    * `metadata` is copied to the response.
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
    """The token usage and cost of an image call.

    `images` is the number of images. Any other field is None if its value is not known. Costs are in the provider's
    currency.
    """

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
    """The response to an image request. Jupyter displays its images.

    The provider sets `id` and `model`. `request_id` is the call's id, unless the adapter sets a different one.
    """

    images: tuple[Image, ...] = ()
    id: str | None = None
    model: str | None = None
    usage: ImageUsage = field(default_factory=ImageUsage)
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    request_id: str | None = None

    def __repr__(self) -> str:
        return f"ImageResponse({list(self.images)}{f', {self.model}' if self.model else ''})"


def image_request(prompt: str, **fields: Any) -> ImageRequest:
    """Return an `ImageRequest` with this `prompt` and any other `fields`.

    >>> request = image_request("a kestrel", size=(1024, 1024), n=2)
    >>> request.operation, request.n, request.response_format
    ('generate', 2, 'binary')

    The fields are not checked. To check them, call ``validate.image_request``.
    """
    return ImageRequest(prompt=prompt, **fields)


def _unescaped(text: str) -> bytes:
    # `unquote_to_bytes` takes up to 180 bytes for each character.
    pieces: list[bytes] = []
    start = 0
    while start < len(text):
        end = start + _SLICE
        cut = text.find("%", end - 2, end)  # an escape has three characters
        end = end if cut < 0 else cut
        pieces.append(unquote_to_bytes(text[start:end]))
        start = end
    return b"".join(pieces)
