"""What the ways in share: the limits of a request, its form, what waits in a conversation, and files of a user."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs

from rxllm import (
    ChatResult,
    FilePart,
    Image,
    ImagePart,
    Message,
    Part,
    Session,
    TextPart,
    Thread,
    ToolCall,
    ValidationError,
    user,
)
from rxllm.values import open_calls, open_questions
from rxllm.values.argument_checks import invalid_option, must_be

MAX_BYTES = 8_000_000
"""How long a request may be."""

MAX_DEPTH = 64
"""How deeply a request may be nested."""

UNANSWERED = "The user has gone on without an answer."
"""What the model is told of calls that wait when the user writes something else."""

T = TypeVar("T")


class Incoming(msgspec.Struct, frozen=True):
    """The arguments of ``rxllm.resume`` and ``rxllm.stream_resume``, for a request with or without answers."""

    thread: Thread
    approvals: Mapping[str, Any] = {}
    results: Mapping[str, str | Mapping[str, Any]] = {}


def loaded(body: bytes | str | Mapping[str, Any], max_bytes: int) -> Any:
    """Return a request as data. Raises ``ValidationError`` if it is too long, too deep, or not JSON."""
    data: Any = body
    if isinstance(body, bytes | str):
        if len(body) > max_bytes:
            raise wrong(f"is longer than {max_bytes} bytes", "body")
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise wrong("is not JSON", "body") from None
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [item for entry in level for item in _inside(entry)]
    if level:
        raise wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")
    return data


def _inside(entry: Any) -> Iterable[Any]:
    match entry:
        case Mapping():
            return cast(Mapping[str, Any], entry).values()
        case list():
            return cast(list[Any], entry)
        case _:
            return ()


def converted(data: Any, cls: type[T], *path: str | int) -> T:
    """Return `data`, which is at `path` of a request, in the form of `cls`; unknown fields are left out."""
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        inner = [int(index) if index else name for name, index in re.findall(r"(\w+)|\[(\d+)]", place)]
        raise wrong(fault[:120], *path, *inner) from None


def waiting(stored: Thread | ChatResult | Session) -> tuple[Thread, dict[str, ToolCall]]:
    """Return the thread of a conversation and its calls that wait, by id."""
    if not isinstance(cast(object, stored), Thread | ChatResult | Session):
        fault = must_be("a Thread, a ChatResult or a Session", type(stored))
        raise invalid_option("stored", f"{fault}; write Thread(messages) for a list of messages")
    if not isinstance(stored, Thread):
        return stored.thread, {call.id: call for call in stored.pending_tool_calls}
    return stored, {call.id: call for call in open_calls(stored)}


def question(stored: Thread | ChatResult | Session) -> str | None:
    """Return the id of the call whose tool, here or in an agent inside, has asked the user."""
    if not isinstance(stored, Thread) and stored.pending_tool_call_id is not None:
        return stored.pending_tool_call_id
    thread = stored if isinstance(stored, Thread) else stored.thread
    return next(open_questions(thread), None)


def replied(incoming: Incoming, new: list[Message], id: str | None) -> Incoming:
    """Return `incoming` with the user's `new` messages; an agent inside that has asked, as `id`, gets their text."""
    if new and id is not None and "/" in id:  # its chat goes on with it
        text = "\n\n".join(message.text for message in new)
        return structs.replace(incoming, results={**incoming.results, id: text})
    return structs.replace(incoming, thread=incoming.thread + new)


def asking(incoming: Incoming, pending: Collection[str]) -> Incoming:
    """Return `incoming`. Raises ``ValidationError`` if it asks for nothing: a second tab, or click, comes late."""
    last = incoming.thread[-1].role if incoming.thread else "user"
    is_answer = bool(incoming.approvals or incoming.results)
    if not is_answer and (last == "assistant" or (pending and last != "user")):
        raise wrong("answers none of the calls that wait, and holds no new message of the user", "messages")
    return incoming


def file_part(url: str, mime_type: str, *path: str | int, name: str | None = None) -> Part:
    """Return the part of a user's file, whose URL must be one of the web, or hold the file itself."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        try:
            (part,) = user([TextPart(""), url]).parts[1:]
        except ValidationError:
            raise wrong("is not a data: URL in base64", *path) from None
        return part
    if scheme not in ("http", "https"):
        raise wrong("must begin with http:, https: or data:", *path)
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    return FilePart({"mime_type": mime_type, "url": url, **({} if name is None else {"name": name})})


def wrong(fault: str, *path: str | int) -> ValidationError:
    return ValidationError("invalid_request", errors=[(path, fault)])
