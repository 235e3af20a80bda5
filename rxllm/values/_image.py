"""Images, wherever they are."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from rxllm.values._value import Value, value
from rxllm.values.errors import ValidationError

ImageSource = Literal["binary", "base64", "url", "file"]


@value
class Image(Value):
    """An image held as bytes, as base64 text, as a URL or as a file's path; nothing is read or fetched before use.

    Make one with `from_file`, `from_binary`, `from_base64` or `from_url`. Sizes are in pixels.
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
        """An image file; its type follows from its name."""
        return cls("file", str(path), mimetypes.guess_type(str(path))[0])

    @classmethod
    def from_binary(cls, data: bytes, mime_type: str) -> Image:
        return cls("binary", data, mime_type)

    @classmethod
    def from_base64(cls, text: str, mime_type: str) -> Image:
        return cls("base64", text, mime_type)

    @classmethod
    def from_url(cls, url: str) -> Image:
        return cls("url", url)

    def to_binary(self) -> bytes:
        """The bytes.

        Raises ``ValidationError("invalid_image_request")`` for a URL (it is not fetched) and for text that is not
        base64, and ``OSError`` for a file that cannot be read.
        """
        match self.data:
            case bytes():
                return self.data
            case str() if self.source == "file":
                return Path(self.data).read_bytes()
            case str() if self.source == "base64":
                try:
                    return base64.b64decode(self.data, validate=True)
                except binascii.Error as error:
                    raise self._invalid("invalid_base64") from error
            case _:
                raise self._invalid("remote_source")

    def to_base64(self) -> str:
        """The bytes as base64 text; base64 text that was given is passed on as it is."""
        if self.source == "base64" and isinstance(self.data, str):
            return self.data
        return base64.b64encode(self.to_binary()).decode()

    def to_data_uri(self) -> str:
        """``data:image/png;base64,...``. Raises as `to_binary` does, and when the type is unknown."""
        if self.mime_type is None and self.source != "url":
            raise self._invalid("missing_mime_type")
        return f"data:{self.mime_type};base64,{self.to_base64()}"

    def _invalid(self, what: str) -> ValidationError:
        return ValidationError("invalid_image_request", errors=[(("source",), what)])
