"""Read the results of tool calls."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, cast

from rxllm.mcp._connection import Json, object_of
from rxllm.tools import encode_result
from rxllm.values import FilePart, Image, ImagePart, ValidationError
from rxllm.values.argument_checks import shorten

SHOWN = 200
"""The maximum length of the text that stands in for a block that rxllm cannot read, in characters."""

_FIELDS = {"content", "structuredContent", "isError", "resultType", "_meta"}
_URL_SAFE = str.maketrans("-_", "+/")

Report = Callable[[ImagePart | FilePart], None]
"""A function that receives each picture, sound and file."""


def read_result(result: Json, report: Report) -> Any:
    """Return the text of `result`. If there is no text, return the structured content.

    If the text does not repeat the structured content, the content follows the text as JSON. A result in a form that
    rxllm does not know is returned as structured content.
    """
    content = result.get("content")
    blocks = cast(list[Any], content) if isinstance(content, list) else [] if content is None else [content]
    texts = [text for text in (_text(block, report) for block in blocks) if text]
    data = result.get("structuredContent")
    if data is None and not texts:
        data = {name: item for name, item in result.items() if name not in _FIELDS} or None
    if data is not None and not texts:
        return data
    return "\n".join(texts if data is None or _contains(texts, data) else [*texts, encode_result(data)])


def _contains(texts: list[str], data: Any) -> bool:
    parsed = [_parse(text) for text in texts]
    # Servers wrap a value that is not an object in {"result": ...}, and send one block for each item of a list.
    return any(data in (form, {"result": form}) for form in (texts, parsed, *texts, *parsed))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(block: Any, report: Report) -> str:
    match block:
        case {"type": "image" | "audio", "data": str(data), **named}:
            return _read_file(data, named.get("mimeType"), report)
        case {"type": "resource", "resource": {"text": str(text), **named}}:
            return f"{named.get('uri', '')}:\n{text}"
        case {"type": "resource", "resource": {"blob": str(data), **named}}:
            return _read_file(data, named.get("mimeType"), report)
        case {"type": "resource_link", "uri": str(uri)}:
            named = (object_of(block).get(name) for name in ("name", "description"))
            return ": ".join((uri, *(text for text in named if isinstance(text, str) and text)))
        case str(text) | {"text": str(text)}:
            return text
        case _:
            return f"[the server sent a block that cannot be read: {shorten(encode_result(block), SHOWN)}]"


def _read_file(data: str, kind: Any, report: Report) -> str:
    try:
        binary, own_kind = _decode(data)
    except ValueError:
        return f"[{str(kind)[:80]} data that is not base64: {shorten(data, 40)!r}]"
    kind = kind if kind and isinstance(kind, str) else own_kind or "application/octet-stream"
    is_image = kind.startswith("image/")
    report(ImagePart(Image.from_binary(binary, kind)) if is_image else FilePart({"mime_type": kind, "data": binary}))
    return f"[{kind[:80]}, {len(binary)} bytes]"


def _decode(data: str) -> tuple[bytes, str | None]:
    """Decode base64 text, and return its MIME type too if it is a data URL.

    Line breaks, missing padding and the alphabet of URLs are accepted. Raises ``ValueError`` for anything else.
    """
    kind: str | None = None
    if data[:5].lower() == "data:":
        try:
            image = Image.from_data_uri(data)
        except ValidationError as error:
            raise ValueError("not a data URL") from error
        if isinstance(image.data, bytes):
            return image.data, image.mime_type
        data, kind = image.data, image.mime_type
    text = "".join(data.split()).translate(_URL_SAFE).rstrip("=")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True), kind
