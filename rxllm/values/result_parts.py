"""Images and files in the results of tools.

Text and JSON contain a note such as ``[image/png, 5000 bytes]`` in place of the data. The data itself is sent in the
parts of the tool's message.

==================================================  =================================================================
result                                              parts
==================================================  =================================================================
an `Image`, a Pillow image, or the bytes of a file  an `ImagePart` or a `FilePart`
of a known type
an image, file, text or provider part               the part itself
a list of texts and any of the above                all of them, in order
other data that contains images or files            its JSON with notes, followed by the images and files
other bytes                                         none; UTF-8 is text, and anything else becomes a note
==================================================  =================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.values.images import Image
from rxllm.values.json_text import is_pydantic
from rxllm.values.messages import (
    FilePart,
    ImagePart,
    Part,
    Picture,
    ProviderPart,
    TextPart,
    data_uri_part,
    mime_type_of,
    user,
)


def split_result(result: Any, encode: Callable[[Any], str]) -> tuple[str, tuple[Part, ...]]:
    """Return a tool's `result` as text with notes, and as the parts of a message.

    ``encode(data)`` converts data to text. There are no parts if the text says everything. Raises ``OSError`` or
    ``ValidationError`` if an image cannot be read.
    """
    items = cast(list[Any], list(result) if isinstance(result, list | tuple) else [result])  # pyright: ignore
    if any(map(_is_part, items)) and all(isinstance(item, str) or _is_part(item) for item in items):
        parts = [_part(item) for item in items]
        text = text_with_notes(parts)
    else:
        noting = _Noting(keeps_bytes=False)
        text = encode(noting.noted(result))
        parts = [TextPart(text), *map(_part, noting.files)]
    has_files = any(not isinstance(part, TextPart) for part in parts)
    return text, tuple(part for part in parts if part != TextPart("")) if has_files else ()


def with_notes(data: Any) -> Any:
    """Return `data` with notes in place of its images and files, or unchanged if it has none."""
    return _Noting(keeps_bytes=True).noted(data)


def text_with_notes(parts: Iterable[Part]) -> str:
    """Return the text of a tool's result, with notes in place of images and files."""
    return "\n".join(filter(None, map(_text, parts)))


def note(part: ImagePart | FilePart) -> str:
    """Return a short text that stands for an image or a file.

    >>> note(ImagePart(Image.from_binary(b"12345", "image/png")))
    '[image/png, 5 bytes]'
    >>> note(FilePart({"mime_type": "application/pdf", "url": "https://example.org/a.pdf?key=secret"}))
    '[application/pdf, https://example.org/a.pdf]'
    """
    match part:
        case ImagePart(image=image):
            name, mime_type, data = None, image.mime_type or "image", image.data
        case FilePart(file=file):
            name, mime_type = file.get("name"), file.get("mime_type") or "application/octet-stream"
            data = file.get("data") or file.get("url")
    match part, data:
        case _, bytes():
            place = f"{len(data)} bytes"
        case ImagePart(image=Image(source="base64")), str():
            place = f"{len(data.rstrip('=')) * 3 // 4} bytes"
        case _, str() if "://" in data:
            place = data.partition("?")[0]  # the query may contain a secret
        case _:
            place = ""
    return f"[{', '.join(str(text)[:200] for text in (name, mime_type, place) if text)}]"


class _Noting:
    """Replaces images and files with notes, and collects them. If `keeps_bytes` is false, other bytes become text."""

    def __init__(self, *, keeps_bytes: bool) -> None:
        self._keeps_bytes = keeps_bytes
        self.files: list[Any] = []

    def noted(self, data: Any) -> Any:
        try:
            return self._noted(data)
        except RecursionError:  # whatever encodes the data raises a clearer error
            return data

    def _noted(self, item: Any) -> Any:
        match item:
            case None | str() | int() | float():
                return item
            case bytes() | bytearray() | memoryview() | Image() | ImagePart() | FilePart():
                return self._noted_file(cast(Any, item))
            case Mapping():
                entries = cast(Mapping[Any, Any], item)
                return self._unless_same(item, [*entries.values()], lambda new: dict(zip(entries, new, strict=True)))
            case list() | tuple() | set() | frozenset():
                return self._unless_same(item, list(cast(Iterable[Any], item)), list)
            case _ if names := _field_names(item):
                values = [getattr(item, name) for name in names]
                return self._unless_same(item, values, lambda new: dict(zip(names, new, strict=True)))
            case _:
                return self._noted(_part(item)) if isinstance(item, Picture) else item

    def _noted_file(self, item: Any) -> Any:
        part = _part(item, read=False)
        if isinstance(part, TextPart):
            return item if self._keeps_bytes else part.text
        self.files.append(item)
        return note(cast(ImagePart | FilePart, part))

    def _unless_same(self, item: Any, values: list[Any], make: Callable[[list[Any]], Any]) -> Any:
        new = [self._noted(value) for value in values]
        return item if all(before is after for before, after in zip(values, new, strict=True)) else make(new)


def _field_names(item: Any) -> tuple[str, ...]:
    match item:
        case type():
            return ()
        case msgspec.Struct():
            return item.__struct_fields__
        case _ if dataclasses.is_dataclass(item):
            return tuple(field.name for field in dataclasses.fields(item))
        case _:
            return tuple(cast(Any, type(item)).__pydantic_fields__) if is_pydantic(type(item)) else ()


def _is_part(item: Any) -> bool:
    is_known = isinstance(item, bytes | bytearray | memoryview | Image | ImagePart | FilePart | TextPart | ProviderPart)
    return is_known or isinstance(item, Picture)


def _part(item: Any, *, read: bool = True) -> Part:
    """Return the part for a text, an image or a file. If `read` is true, an image's file is read."""
    match item:
        case str():
            return TextPart(item)
        case bytes() | bytearray() | memoryview():
            return _part_of_bytes(bytes(cast(bytes, item)))
        case Image(source="file") if read:  # the file may change before the image is sent
            data = item.to_binary()
            return ImagePart(Image.from_binary(data, item.mime_type or mime_type_of(data, "") or "image"))
        case ImagePart(image=Image(source="file") as image) if read:
            return dataclasses.replace(item, image=cast(ImagePart, _part(image)).image)
        case Image(source="url", data=str(uri)) | FilePart(file={"url": str(uri)}) if uri.startswith("data:"):
            return data_uri_part(uri)
        case ImagePart(image=Image(source="url", data=str(uri)) as image) if uri.startswith("data:"):
            return _part(image)
        case _:
            return user([item]).parts[0]


def _part_of_bytes(data: bytes) -> Part:
    if data and mime_type_of(data, "") is not None:
        return user([data]).parts[0]
    try:
        return TextPart(data.decode())
    except UnicodeDecodeError:
        return TextPart(note(FilePart({"data": data})))


def _text(part: Part) -> str:
    match part:
        case ImagePart() | FilePart():
            return note(part)
        case TextPart():
            return part.text
        case _:
            return ""
