"""Images, wherever they are."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from rxllm.values._value import Value, value
from rxllm.values.errors import ValidationError

ImageSource = Literal["binary", "base64", "url", "file"]

_DATA_URI = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(;[^;,]*)*),(?P<data>.*)", re.DOTALL | re.IGNORECASE)

_NATIVE = ("image/png", "image/jpeg", "image/gif")
"""What every notebook shows as it is; other types go into an HTML ``img``, which the browser reads."""


@value
class Image(Value):
    """An image held as bytes, as base64 text, as a URL or as a file's path; nothing is read or fetched before use.

    Make one with `from_file`, `from_binary`, `from_base64`, `from_url` or `from_data_uri`. Sizes are in pixels;
    `prompt` is what a made image was asked for with, `revised_prompt` what the provider made of that. Jupyter shows it.

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
        """An image file; its type follows from its name, and is None for a name that is no image's."""
        import mimetypes  # which nothing else needs before a call is made

        guessed = mimetypes.guess_type(str(path), strict=False)[0] or ""
        return cls("file", str(path), guessed if guessed.startswith("image/") else None)

    @classmethod
    def from_binary(cls, data: bytes, mime_type: str) -> Image:
        return cls("binary", data, mime_type)

    @classmethod
    def from_base64(cls, text: str, mime_type: str) -> Image:
        """An image in base64; whether `text` is that is seen when it is used."""
        return cls("base64", text, mime_type)

    @classmethod
    def from_url(cls, url: str) -> Image:
        return cls("url", url)

    @classmethod
    def from_data_uri(cls, uri: str) -> Image:
        """What ``data:image/png;base64,...`` holds (RFC 2397). Raises ``ValidationError("invalid_image_request")``."""
        found = _DATA_URI.fullmatch(uri.strip())
        if found is None:
            message = f"a data URI begins with data:, its type and a comma, unlike {uri[:30]!r}"
            raise ValidationError("invalid_image_request", message, errors=[(("source",), "invalid_data_uri")])
        kind, data = found["type"].lower() or None, unquote_to_bytes(found["data"])
        if found["parameters"].lower().endswith(";base64"):
            return cls("base64", data.decode("latin-1"), kind)
        return cls("binary", data, kind)

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
                except ValueError as error:  # binascii's, or text that is not ASCII
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

    def __repr__(self) -> str:
        size = f"{self.width}x{self.height}" if self.width and self.height else None
        shown = (self.source, self.mime_type, size, self._where())
        return f"Image({', '.join(each for each in shown if each)})"

    def _where(self) -> str:
        # The query of a URL often is a signature, which is as good as a key.
        if isinstance(self.data, bytes):
            return f"{len(self.data)} bytes"
        if self.source == "base64":
            return f"{len(self.data) * 3 // 4} bytes"
        return repr(self.data[:100].partition("?")[0] if self.source == "url" else self.data)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        try:
            if self.mime_type in _NATIVE and self.source != "url":
                return {self.mime_type: base64.b64encode(self.to_binary()).decode(), **shown}
            address = str(self.data) if self.source == "url" else self.to_data_uri()
        except (ValidationError, OSError, binascii.Error):
            return shown  # what cannot be read is still a value that can be looked at
        import html  # a large table of names: not before something is shown

        return {"text/html": f'<img src="{html.escape(address)}">', **shown}

    def _invalid(self, what: str) -> ValidationError:
        return ValidationError("invalid_image_request", errors=[(("source",), what)])
