"""What the ways in share: the size and the fields of a request, what waits in a conversation, files of a user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm import (
    ChatResult,
    FilePart,
    Image,
    ImagePart,
    Part,
    Session,
    TextPart,
    Thread,
    ToolCall,
    ValidationError,
    user,
)

MAX_BYTES = 8_000_000
"""How long a request may be."""

MAX_DEPTH = 64
"""How deeply a request may be nested."""

UNANSWERED = "The user has gone on without an answer."

_JSON: dict[type[Any], str] = {str: "string", list: "array", dict: "object", bool: "boolean"}


class Incoming(msgspec.Struct, frozen=True):
    """The arguments of ``rxllm.resume`` and ``rxllm.stream_resume``, for a request with or without answers."""

    thread: Thread
    approvals: Mapping[str, Any] = {}
    results: Mapping[str, str | Mapping[str, Any]] = {}


def loaded(body: bytes | str | Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return a request as data. Raises ``ValidationError`` if it is too long, too deep, or not a JSON object."""
    request: Any = body
    if isinstance(body, bytes | str):
        if len(body) > max_bytes:
            raise wrong(f"is longer than {max_bytes} bytes", "body")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise wrong("is not JSON", "body") from None
    if not isinstance(request, dict):
        raise wrong("is not an object", "body")
    level: list[Any] = [request]
    for _ in range(MAX_DEPTH):
        level = [item for entry in level for item in _inside(entry)]
    if level:
        raise wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")
    return cast(dict[str, Any], request)


def _inside(entry: Any) -> Iterable[Any]:
    match entry:
        case dict():
            return cast(dict[str, Any], entry).values()
        case list():
            return cast(list[Any], entry)
        case _:
            return ()


def waiting(stored: Thread | ChatResult | Session) -> tuple[Thread, dict[str, ToolCall]]:
    """Return the thread of a conversation and its calls that wait, by id."""
    if not isinstance(stored, Thread):
        return stored.thread, {call.id: call for call in stored.pending_tool_calls}
    answered = {message.tool_call_id for message in stored}
    calls = (call for message in stored for call in message.tool_calls)
    return stored, {call.id: call for call in calls if call.id not in answered and not call.metadata.get("server")}


def file_part(url: str, mime_type: str, name: str | None = None) -> Part:
    """Return the part of a user's file, whose URL must be one of the web, or hold the file itself."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        try:
            (part,) = user([TextPart(""), url]).parts[1:]
        except ValidationError:
            raise wrong("is not a data: URL in base64", "url") from None
        return part
    if scheme not in ("http", "https"):
        raise wrong("must begin with http:, https: or data:", "url")
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    return FilePart({"mime_type": mime_type, "url": url, **({} if name is None else {"name": name})})


def field_of(entry: Any, name: str, cls: type[Any]) -> Any:
    """Return a field of the class `cls`."""
    value: Any = cast(dict[str, Any], entry).get(name) if isinstance(entry, dict) else None
    if not isinstance(value, cls):
        raise wrong(f"must be a JSON {_JSON[cls]}", name)
    return value


def at(path: tuple[str | int, ...], read: Callable[[Any], Any], item: Any) -> Any:
    """Return ``read(item)``, whose fault is told with the path of `item`."""
    try:
        return read(item)
    except ValidationError as error:
        inner, fault = error.errors[0]
        raise wrong(fault, *path, *inner) from None


def wrong(fault: str, *path: str | int) -> ValidationError:
    return ValidationError("invalid_request", errors=[(path, fault)])
