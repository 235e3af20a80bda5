"""Functions that read and write messages in the format of OpenAI's Chat Completions API.

======================================================  ===============================================================
in OpenAI's format                                      in rxllm
======================================================  ===============================================================
roles ``developer`` and ``system``                      role ``system``
roles ``user``, ``assistant`` and ``tool``              the same roles
``content``: text, or a list of parts                   `content`: text, or a tuple of parts
part ``text``; part or field ``refusal``                `TextPart`
part ``image_url``, also with a ``data:`` URL           `ImagePart`
part ``file`` with ``file_data``; part ``input_audio``  `FilePart`
part ``file`` with ``file_id``                          `ProviderPart`
``tool_calls``                                          `ToolCall`; the arguments' JSON text becomes `raw_arguments`
fields ``reasoning_content`` and ``reasoning``          `ThinkingPart`
field ``annotations``                                   `SourcePart`
======================================================  ===============================================================

Empty fields are ignored. An unknown field raises an error, because ignoring it would lose data.
https://developers.openai.com/api/reference/resources/chat/subresources/completions/methods/create
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from rxllm.values.argument_checks import must_be, shown
from rxllm.values.errors import Path, ValidationError
from rxllm.values.images import Image
from rxllm.values.json_text import json_text
from rxllm.values.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    ProviderPart,
    Role,
    SourcePart,
    TextPart,
    ThinkingPart,
    data_part,
    data_uri_part,
)
from rxllm.values.tools import ToolCall

T = TypeVar("T")

_ROLES: Mapping[str, Role] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_THINKING = ("reasoning_content", "reasoning")
_FIELDS = {
    "assistant": ("content", "name", "tool_calls", "refusal", "annotations", *_THINKING),
    "tool": ("content", "name", "tool_call_id"),
}
_PARTS = ("text", "image_url", "file", "input_audio", "refusal")
_DETAILS = ("auto", "low", "high", "original")
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def read_message(entry: Mapping[str, Any]) -> Message:
    """Return the message that `entry` describes.

    >>> read_message({"role": "developer", "content": "Be brief."})
    Message('system', 'Be brief.')

    Raises ``ValidationError("invalid_thread")`` for anything that is not in the table at the top of this module.
    """
    fields = {name: value for name, value in entry.items() if value not in (None, [], {}, ())}
    role = fields.pop("role", None)
    if role == "function" or "function_call" in fields:
        remedy = "write tool_calls in the assistant message, and answer with role 'tool' and the tool_call_id"
        raise wrong(f"is OpenAI's old format for function calls, which is not supported; {remedy}", "function_call")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(must_be(f"one of {', '.join(_ROLES)}", role), "role")
    known = _FIELDS.get(role, ("content", "name"))
    for name in fields:
        if name not in known:
            remedy = f"its fields are {', '.join(known)}; keep other data in Message(..., metadata={{...}})"
            raise wrong(f"has {shown(name)}, which is not a field of a message with role {role}; {remedy}")
    names: dict[str, Any] = {name: _text(fields[name], name) for name in ("name", "tool_call_id") if name in fields}
    if role == "tool" and "tool_call_id" not in names:
        raise wrong("is missing; set it to the id of the tool call that this message answers", "tool_call_id")
    calls = _read_each("tool_calls", _read_call, fields.get("tool_calls", []))
    return Message(_ROLES[role], _read_content(role, fields), tool_calls=calls, **names)


def _read_content(role: str, fields: Mapping[str, Any]) -> str | tuple[Part, ...]:
    content = fields.get("content", "" if role == "assistant" else None)
    if not isinstance(content, str):
        content = _read_each("content", _read_part, content)
    before = [ThinkingPart(_text(fields[name], name)) for name in _THINKING if name in fields][:1]
    after: list[Part] = [TextPart(_text(fields["refusal"], "refusal"))] if "refusal" in fields else []
    after += _read_each("annotations", _read_source, fields.get("annotations", []))
    if not before and not after:
        return content
    parts = content if isinstance(content, tuple) else Message("assistant", content).parts
    return (*before, *parts, *after)


def _read_part(item: Any) -> Part:
    if not isinstance(item, Mapping) or "type" not in item:
        raise _not_a_part(cast(object, item))
    part = cast(Mapping[str, Any], item)
    kind = part["type"]
    if kind not in _PARTS:
        raise wrong(must_be(f"one of {', '.join(_PARTS)}", kind), "type")
    for name in part:
        if name not in ("type", kind):
            remedy = "; write TextPart(text, {'cache': True})" if "cache" in str(name) else ""
            raise wrong(f"has {shown(name)}, which is not supported in a part of type {kind}{remedy}")
    return _read_kind(kind, part.get(kind), part)


def _read_kind(kind: str, value: Any, part: Mapping[str, Any]) -> Part:
    if isinstance(value, str) and kind in ("text", "refusal"):
        return TextPart(value)
    if isinstance(value, str) and kind == "image_url":  # some servers omit the object around the URL
        return _read_image(value, "auto")
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    match kind, fields:
        case "image_url", {"url": str(url)} if fields.get("detail", "auto") in _DETAILS:
            return _read_image(url, fields.get("detail", "auto"))
        case "file", {"file_data": str(data)} if isinstance(fields.get("filename", ""), str | None):
            return _read_file(data, fields.get("filename"))
        case "file", {"file_id": str()}:
            return ProviderPart("openai", dict(part))
        case "input_audio", {"data": str(data), "format": "wav" | "mp3" as form}:
            return FilePart({"mime_type": _AUDIO[form], "data": _bytes_of(data)})
        case _:
            raise _not_a_part(part)


def _not_a_part(item: object) -> ValidationError:
    return wrong(must_be('a part such as {"type": "text", "text": "Hi"}', item))


def _read_image(url: str, detail: Any) -> ImagePart:
    if url[:5].lower() != "data:":
        return ImagePart(Image.from_url(url), detail)
    part = data_uri_part(url)
    if not isinstance(part, ImagePart):
        raise wrong(must_be("a data: URL that contains an image", url), "image_url", "url")
    return ImagePart(part.image, detail)


def _read_file(data: str, name: Any) -> Part:
    part = data_uri_part(data) if data[:5].lower() == "data:" else data_part(_bytes_of(data), name)
    return FilePart({**part.file, "name": name}) if isinstance(part, FilePart) and name else part


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise wrong(must_be("base64 text", text)) from error


def _read_source(item: Any) -> SourcePart:
    match item:
        case {"type": "url_citation", "url_citation": Mapping()}:
            return SourcePart({"type": "url_citation", **cast(Mapping[str, Any], item["url_citation"])})
        case Mapping():
            return SourcePart(dict(cast(Mapping[str, Any], item)))
        case _:
            raise wrong(must_be("a mapping", item))


def _read_call(item: Any) -> ToolCall:
    call = cast(dict[str, Any], item) if isinstance(item, dict) else {}
    for name in call:
        if name not in ("id", "type", "function", "index"):  # some programs keep the index of a streamed call
            raise wrong(f"has {shown(name)}, which is not supported in a tool call")
    match call:
        case {"id": str(id), "function": {"name": str(name), "arguments": str(text)}}:
            return ToolCall(id, name, cast(Any, text))
        case {"id": str(id), "function": {"name": str(name), "arguments": Mapping()}}:
            return ToolCall(id, name, dict(cast(Mapping[str, Any], call["function"]["arguments"])))
        case _:
            form = '{"id": "...", "type": "function", "function": {"name": "...", "arguments": "{...}"}}'
            raise wrong(must_be(form, cast(object, item)))


def _read_each(name: str, read: Callable[[Any], T], items: Any) -> tuple[T, ...]:
    if not isinstance(items, list | tuple):
        raise wrong(must_be("text or a list of parts" if name == "content" else "a list", items), name)
    return tuple(at((name, i), read, item) for i, item in enumerate(cast(Iterable[Any], items)))


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    raise wrong(must_be("text", value), name)


def write_message(message: Message) -> dict[str, Any]:
    """Return `message` in OpenAI's format.

    >>> write_message(Message("assistant", tool_calls=(ToolCall("a", "add", {"x": 1}),)))["tool_calls"]
    [{'id': 'a', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"x":1}'}}]

    For an assistant message, only the text of the content is kept. Calls to tools that the provider ran are omitted.
    In any other message, a part that the format cannot express raises ``ValidationError("not_serializable")``.
    """
    entry: dict[str, Any] = {"role": message.role, "content": _write_content(message)}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            entry[name] = getattr(message, name)
    calls = [write_call(call) for call in message.tool_calls if not call.metadata.get("server")]
    if calls:
        entry |= {"content": entry["content"] or None, "tool_calls": calls}
    return entry


def write_call(call: ToolCall) -> dict[str, Any]:
    arguments = json_text(call.arguments) if call.raw_arguments is None else call.raw_arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _write_content(message: Message) -> Any:
    if isinstance(message.content, dict):
        return json_text(message.content)
    if isinstance(message.content, str) or message.role == "assistant" or not message.content:
        return message.text
    if message.role == "user":
        return [at(("content", i), write_part, part) for i, part in enumerate(message.content)]
    return [at(("content", i), _write_text, part) for i, part in enumerate(message.content)]


def _write_text(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    raise _has_no_form(part, "only text in system, assistant and tool messages")


def write_part(part: Part) -> dict[str, Any]:
    """Convert `part`, a part of a user message, to OpenAI's format."""
    match part:
        case TextPart():
            return _write_text(part)
        case ImagePart(image=image, detail=detail):
            return _write_image(image, detail)
        case FilePart(file={"mime_type": str(mime_type), "data": bytes(data), **rest}):
            return _write_file(mime_type, data, rest.get("name"))
        case FilePart(file={"mime_type": str(mime_type), "url": str(url)}) if mime_type.startswith("image/"):
            return _write_image(Image.from_url(url), "auto")
        case ProviderPart(provider="openai", data={"type": "file", "file": _} as data):
            return dict(data)
        case _:
            raise _has_no_form(part, "only text, images (as data or URLs) and other files (as data, not URLs)")


def _write_image(image: Image, detail: str) -> dict[str, Any]:
    url = str(image.data) if image.source == "url" else image.to_data_uri()
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail != "auto" else {})}}


def _write_file(mime_type: str, data: bytes, name: Any) -> dict[str, Any]:
    if mime_type.startswith("image/"):
        return _write_image(Image.from_binary(data, mime_type), "auto")
    for form, audio in _AUDIO.items():
        if mime_type == audio:
            return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}}
    uri = Image.from_binary(data, mime_type).to_data_uri()
    return {"type": "file", "file": {"file_data": uri, **({"filename": name} if name else {})}}


def _has_no_form(part: Part, carried: str) -> ValidationError:
    fault = f"cannot be represented in OpenAI's format, which supports {carried}: got {shown(part)}"
    return ValidationError("not_serializable", errors=[((), fault)])


def at(path: Path, convert: Callable[[Any], T], item: Any) -> T:
    """Return ``convert(item)``. If that raises a ``ValidationError``, prepend `path` to each of the error's paths."""
    try:
        return convert(item)
    except ValidationError as error:
        errors = [((*path, *below), fault) for below, fault in error.errors]
        reason = "invalid_thread" if error.reason == "invalid_message" else error.reason
        raise ValidationError(reason, errors=errors) from error.__cause__


def wrong(fault: str, *path: str | int) -> ValidationError:
    """Return the ``ValidationError`` that reports `fault` at `path`."""
    return ValidationError("invalid_thread", errors=[(path, fault)])
