"""The builder of a user's message: a text, and the images and files that go with it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable
from urllib.parse import unquote

from rxllm.values._images import Image
from rxllm.values._message import FilePart, ImagePart, Message, Part, TextPart
from rxllm.values.argument_checks import must_be, shown
from rxllm.values.errors import ValidationError


@runtime_checkable
class Picture(Protocol):
    """An image of Pillow, which rxllm does not import."""

    format: str | None

    @property
    def mode(self) -> str: ...

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None: ...


Attachment = str | os.PathLike[str] | bytes | Image | Picture | Part
"""What may stand next to the text: a path, a URL, the bytes of a file, an image, Pillow's too, or a part."""

_FORMS = "a path, a URL (http:, https: or data:), bytes, an Image, an image of Pillow or a part such as FilePart(...)"

_URL = re.compile(r"(https?|data):", re.IGNORECASE)

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",  # MPEG frames without an ID3 tag before them
    b"\xff\xf3": "audio/mpeg",
    b"\xff\xf2": "audio/mpeg",
}
"""The first bytes of a file, and its type."""

_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
"""The bytes behind the length of a RIFF file, and its type."""


def user(content: Attachment | Sequence[Attachment], *attachments: Attachment) -> Message:
    """Return a user's message: a text, and the images and files that go with it.

    >>> user("Hi")
    Message('user', 'Hi')
    >>> user("What is this?", "https://example.com/photo.png")
    Message('user', 'What is this?', 1 image)

    The first string is the text, whatever it says: an end user's words never name a file. An attachment is

    * a further string: a URL (``http:``, ``https:``, ``data:``) or the path of a file that exists,
    * a ``Path``, or the bytes of a file,
    * an `Image`, or an image of Pillow,
    * a part such as ``FilePart({"mime_type": "text/csv", "data": b"a,b", "name": "a.csv"})``.

    A list holds the same, in the same order; further texts are written ``TextPart(...)``. Files are read now, URLs
    never. The type follows from the first bytes or the name: images become an `ImagePart`, all else a `FilePart`.

    Raises ``ValidationError("invalid_message")`` for anything else, and for a file that cannot be read, is empty or is
    of an unknown type.
    """
    if isinstance(content, str) and not attachments:
        return Message("user", content)
    # The type of a path says nothing of sequences, and a string is one.
    first = tuple(cast(Sequence[Any], content)) if isinstance(content, list | tuple) else (content,)
    parts: list[Part] = []
    has_text = False
    for index, item in enumerate((*first, *attachments)):
        if isinstance(item, str) and not has_text:
            parts += [TextPart(item)] if item else []
        else:
            parts.append(_at(("content", index), item))
        has_text = has_text or isinstance(item, str | TextPart)
    return Message("user", tuple(parts))


def _at(path: tuple[str | int, ...], item: Any) -> Part:
    try:
        return _part(item)
    except ValidationError as error:
        raise ValidationError(
            "invalid_message", errors=[(path, fault) for _, fault in error.errors]
        ) from error.__cause__


def _part(item: Any) -> Part:
    match item:
        case str() if _URL.match(item):
            return _url_part(item)
        case str() | os.PathLike():
            return _file_part(Path(cast(str, item)))
        case bytes() | bytearray():
            return data_part(bytes(item))
        case Image():
            return ImagePart(item)
        case _ if isinstance(item, Part):
            return item
        case Picture():
            return _picture_part(item)
        case _:
            raise _wrong(must_be(_FORMS, item))


def _picture_part(picture: Picture) -> Part:
    data = BytesIO()
    try:
        if picture.format == "JPEG":
            picture.save(data, "JPEG", quality="keep")  # as PNG a photo would be many times as large
        else:
            picture.save(data, "PNG")
    except (OSError, ValueError) as error:
        raise _wrong(f'is a picture that cannot be saved ({error}); write picture.convert("RGB")') from error
    return data_part(data.getvalue())


def _url_part(url: str) -> Part:
    if url[:5].lower() == "data:":
        return data_uri_part(url)
    path = re.split("[?#]", url)[0].partition("://")[2].partition("/")[2]
    name = unquote(path.rpartition("/")[2])
    mime_type = mime_type_of(b"", name)
    if mime_type is None:
        # The user and the query are left out: they hold passwords and signatures.
        place = shown(re.sub(r"(?<=//)[^/]*@", "", url.partition("?")[0]))
        remedy = 'write Image.from_url(url) or FilePart({"mime_type": "...", "url": url})'
        raise _wrong(f"must be a URL whose path ends like a file's, such as .png or .pdf, not {place}; {remedy}")
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    return FilePart({"mime_type": mime_type, "url": url, "name": name})


def _file_part(path: Path) -> Part:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
        remedy = f"an attachment is {_FORMS}; the text comes first"
        raise _wrong(f"must be a file that can be read, not {shown(str(path))} ({fault}); {remedy}") from error
    return data_part(data, path.name)


def data_uri_part(uri: str) -> Part:
    """Return the image or the file in a ``data:`` URI as a part."""
    try:
        image = Image.from_data_uri(uri)
        data = image.to_binary()
    except ValidationError as error:
        raise _wrong(must_be("data:, a type, ;base64, a comma and base64 text", uri)) from error
    if data and (image.mime_type or "").startswith("image/"):
        return ImagePart(image)
    return data_part(data, mime_type=image.mime_type)


def data_part(data: bytes, name: str | None = None, mime_type: str | None = None) -> Part:
    """Return the contents of a file as a part: an image or, if it is anything else, a file."""
    mime_type = mime_type or mime_type_of(data, name or "")
    if not data:
        raise _wrong(f"must not be empty, as {shown(name or data)} is")
    if mime_type is None:
        remedy = (
            'write Image.from_binary(data, mime_type) or FilePart({"mime_type": "...", "data": data, "name": "..."})'
        )
        raise _wrong(f"must be of a type that its name or its first bytes tell, not {shown(name or data)}; {remedy}")
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_binary(data, mime_type))
    return FilePart({"mime_type": mime_type, "data": data, **({"name": name} if name else {})})


def mime_type_of(data: bytes, name: str) -> str | None:
    """Return the type of a file by its first bytes, or else by its name; None if neither is known.

    >>> mime_type_of(b"GIF89a", "cat.png"), mime_type_of(b"", "notes.pdf"), mime_type_of(b"", "notes")
    ('image/gif', 'application/pdf', None)
    """
    for signature, mime_type in _SIGNATURES.items():
        if data.startswith(signature):
            return mime_type
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    import mimetypes  # not needed before a file is attached

    guessed, encoding = mimetypes.guess_type(name, strict=False)
    # Python has the old name of this one before 3.14.
    return "audio/wav" if guessed == "audio/x-wav" else guessed if encoding is None else None


def _wrong(fault: str) -> ValidationError:
    return ValidationError("invalid_message", errors=[((), fault)])
