"""Select the parts to send, read response formats, and merge options.

Each ``request.py`` lists the kinds of parts that its API accepts from each role. Any other part raises an error before
anything is sent, with two exceptions:

* In an assistant message, it is left out, and logged at DEBUG level.
* In a tool's result, a note such as ``[image/png, 5000 bytes]`` replaces an image or a file. If the result is new, a
  warning is logged.

=========================================  =============================================================================
kind                                       part
=========================================  =============================================================================
``text``                                   `TextPart`
``image``                                  `ImagePart`, or a `FilePart` of type ``image/*``
``pdf``, ``text file``                     `FilePart` of that type
``wav``, ``mp3``, ``audio``, ``video``     `FilePart` of that type; ``audio`` is any audio except WAV and MP3
``file``                                   `FilePart` of any other type
``thinking``                               `ThinkingPart` that has only text
``own thinking``                           `ThinkingPart` with data from the provider that receives the request
``another's thinking``                     `ThinkingPart` with data from another provider, or with only a signature
``reasoning details``                      `ThinkingPart` with ``reasoning_details``, as OpenRouter sends them
``own part``                               `ProviderPart` from the provider that receives the request
``own fields``                             `ProviderPart` with `CHAT_FIELDS` from the provider that receives the request
``another's part``                         `ProviderPart` from another provider
``source url_citation``, ...               `SourcePart`; the second word of the kind is the source's type, if any
``tool call``                              `ToolCallPart`
=========================================  =============================================================================

A part that is passed by URL or id has its own kind, such as ``pdf by id``. If an API does not accept text files, their
content is sent as text.
"""

from __future__ import annotations

import logging
import mimetypes
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar, cast

from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    Message,
    Part,
    ProviderPart,
    Request,
    Role,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ValidationError,
    as_response_format,
)
from rxllm.values.argument_checks import must_be
from rxllm.values.json_text import UNREADABLE, decode_json, json_text, read_arguments
from rxllm.values.result_parts import note

_log = logging.getLogger("rxllm")

Entry = TypeVar("Entry")

Carries = Mapping[Role, Set[str]]
"""The kinds of parts that an API accepts from each role."""

_TEXT = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml)|application/(x-)?(javascript|sh|toml|yaml)")
_TYPES = {
    "application/pdf": "pdf",
    **dict.fromkeys(("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"), "wav"),
    **dict.fromkeys(("audio/mpeg", "audio/mp3"), "mp3"),
}
CHAT_FIELDS = {"audio", "extra_content", "thought_signature"}
"""Fields that Chat Completions puts beside the content of a message, and wants back there."""

TAKEN_BY = {
    "image": "openai, anthropic, gemini, or ollama with a vision model",
    "pdf": "openai, anthropic or gemini",
    "wav": "openai or gemini",
    "mp3": "openai or gemini",
    "audio": "gemini",
    "video": "gemini",
    "file": "openai-responses or gemini",
}
"""The providers that accept each kind of part. Error messages suggest them."""

_MESSAGE_FIELDS = ("thought", "thoughtSignature")
"""Fields that Gemini adds to a file. They are sent back only in assistant messages."""


def select_parts(request: Request, wire: str, provider: str, carries: Carries) -> Request:
    """Return `request` with only the parts that the API accepts.

    `wire` is what error messages call the API. Raises ``ValidationError("invalid_request")`` if a part is rejected.
    The error contains the path of the part, and suggests a fix.
    """
    if all(isinstance(message.content, str) for message in request.messages):
        return request
    omitted: Counter[str] = Counter()
    noted: Counter[str] = Counter()
    messages = list(request.messages)
    new = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=0)
    for index, message in enumerate(messages):
        if not isinstance(message.content, tuple):
            continue
        carried = carries.get(message.role, carries["user"])
        parts: list[Part] = []
        for place, original in enumerate(message.content):
            try:
                part = _decode_data_uri(original) if message.role == "assistant" else _simplify(original, carried)
            except ValidationError as error:  # malformed data: URI
                fault = f"has a URL that cannot be read: {error.errors[0][1] if error.errors else error.message}"
                path = ("messages", index, "content", place)
                raise ValidationError("invalid_request", errors=[(path, fault)]) from error
            kind = kind_of(part, provider)
            if kind in carried:
                parts.append(part)
            elif message.role == "assistant":
                omitted[kind] += 1
            elif message.role == "tool" and isinstance(part, ImagePart | FilePart) and kind != "file without data":
                parts.append(TextPart(f"\n{note(part)}" if parts else note(part)))
                noted[kind] += index > new
            else:
                fault = _describe_fault(part, kind, wire, message.role, carries)
                raise ValidationError("invalid_request", errors=[(("messages", index, "content", place), fault)])
        messages[index] = replace(message, content=tuple(parts))
    if omitted:
        fault = "%s does not accept these parts, so they were left out of the assistant's messages: %s"
        _log.debug(fault, wire, _counted(omitted))
    if +noted:
        fault = "%s does not accept these parts in a tool's result, so the model reads only a note about them: %s"
        _log.warning(fault, wire, _counted(+noted))
    return replace(request, messages=tuple(messages))


def drop_last_thoughts(made: Sequence[tuple[Message, list[Entry]]], is_thought: Callable[[Entry], Any]) -> None:
    """Remove the thoughts that nothing else of the assistant's follows, from the entries made of each message.

    A limit or a refusal ends an answer in such a thought. Anthropic and OpenAI refuse it, and with it every later
    request.
    """
    dropped = 0
    for role, turn in groupby(reversed(made), lambda pair: pair[0].role):
        for _, entries in turn if role == "assistant" else ():
            while entries and is_thought(entries[-1]):
                entries.pop()
                dropped += 1
            if entries:
                break
    if dropped:
        _log.debug("thoughts that led to nothing were left out of the assistant's messages: %d", dropped)


def without_empty_answers(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without those of the assistant that have at most a thought. Many servers refuse them."""
    says = ("content", "tool_calls", "audio")
    kept = [entry for entry in entries if entry["role"] != "assistant" or any(entry.get(name) for name in says)]
    if len(kept) < len(entries):
        _log.debug("messages of the assistant without text and calls were left out: %d", len(entries) - len(kept))
    return kept


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def kind_of(part: Part, provider: str) -> str:
    """Return the kind of a part.

    >>> kind_of(FilePart({"mime_type": "application/pdf", "url": "https://example.org/a.pdf"}), "anthropic")
    'pdf by url'
    """
    match part:
        case TextPart():
            return "text"
        case ImagePart(image=image):
            return "image by url" if image.source == "url" else "image"
        case FilePart(file=file):
            return "signed file" if file.get("thoughtSignature") else _kind_of_file(file)
        case ThinkingPart(signature=None, provider_data=None):
            return "thinking"
        case ThinkingPart(provider_data=data):
            own = "own thinking" if data and data.get("provider") == provider else "another's thinking"
            return "reasoning details" if data and "reasoning_details" in data else own
        case ProviderPart(provider=owner, data=data):
            own = "own fields" if data and data.keys() <= CHAT_FIELDS else "own part"
            return own if owner == provider else "another's part"
        case SourcePart(source=source):
            return f"source {source['type']}" if isinstance(source.get("type"), str) else "source"
        case ToolCallPart():
            return "tool call"


def mime_type_of(file: Mapping[str, Any]) -> str:
    return str(file.get("mime_type") or "application/octet-stream").partition(";")[0].strip().lower()


def name_of(file: Mapping[str, Any]) -> str:
    """Return the file's name or, if it has none, a default name whose extension matches its MIME type."""
    return str(file.get("name") or f"file{mimetypes.guess_extension(mime_type_of(file)) or ''}")


def _kind_of_file(file: Mapping[str, Any]) -> str:
    mime_type = mime_type_of(file)
    general = mime_type.partition("/")[0]
    kind = _TYPES.get(mime_type) or (general if general in ("image", "audio", "video") else "file")
    match file:
        case {"data": bytes(data)}:
            return "text file" if _TEXT.fullmatch(mime_type) and _is_utf_8(data) else kind
        case {"url": str()} | {"file_id": str()}:
            kind = "text file" if _TEXT.fullmatch(mime_type) else kind
            return f"{kind} by {'url' if isinstance(file.get('url'), str) else 'id'}"
        case _:
            return "file without data"


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decode_data_uri(part: Part) -> Part:
    match part:
        case ImagePart(image=Image(source="url", data=str(url))) if url.startswith("data:"):
            return replace(part, image=Image.from_data_uri(url))
        case _:
            return part


def _simplify(part: Part, carried: Set[str]) -> Part:
    """Decode data URIs, and turn files into images or text."""
    match part:
        case ImagePart():
            return _decode_data_uri(part)
        case FilePart(file={"url": str(url), **rest}) if url.startswith("data:"):
            image = Image.from_data_uri(url)
            file = {"mime_type": image.mime_type, **rest, "data": image.to_binary()}
            return _simplify(FilePart(file), carried)
        case FilePart(file=file) if not file.keys().isdisjoint(_MESSAGE_FIELDS):
            rest = {name: value for name, value in file.items() if name not in _MESSAGE_FIELDS}
            return _simplify(FilePart(rest), carried)
        case FilePart(file=file):
            kind = _kind_of_file(file)
            if kind == "image":
                return ImagePart(Image.from_binary(file["data"], mime_type_of(file)))
            if kind == "image by url":
                return ImagePart(Image("url", file["url"], mime_type_of(file)))
            if kind == "text file" and kind not in carried:
                return TextPart(f'\n<file name="{name_of(file)}">\n{file["data"].decode()}\n</file>\n')
            return part
        case _:
            return part


def _describe_fault(part: Part, kind: str, wire: str, role: Role, carries: Carries) -> str:
    remedy = _suggest_remedy(part, kind, carries.get(role, carries["user"]), carries["user"])
    article = "an" if isinstance(part, ImagePart) else "a"
    return f"is {article} {type(part).__name__} ({kind}), which {wire} does not accept in a {role} message; {remedy}"


def _suggest_remedy(part: Part, kind: str, carried: Set[str], carried_for_users: Set[str]) -> str:
    base = kind.partition(" by ")[0]
    match part:
        case _ if kind == "file without data":
            return 'write {"mime_type": ..., "data": bytes} or {"mime_type": ..., "url": str}'
        case _ if base != kind and (base in carried or base == "text file"):
            return "pass its data or a file path instead"
        case _ if kind in carried_for_users or base in carried_for_users:
            return "put it in a user message"
        case ImagePart() | FilePart():
            return f"write its content as text, or use a provider that takes it: {TAKEN_BY[base]}"
        case ProviderPart(provider=owner) if kind == "another's part":
            return f"remove it, or send it to {owner}"
        case _:
            return "remove it"


def sent_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of an earlier call, as an object.

    Servers refuse a thread with any other arguments, and with it every later request. For invalid JSON, Anthropic's
    docs suggest the object that is returned here.

    >>> sent_arguments(ToolCall("c1", "add", '{"x": '))
    {'INVALID_JSON': '{"x": '}
    """
    if not call.arguments and call.raw_arguments and read_arguments(call.raw_arguments) is None:
        return {"INVALID_JSON": call.raw_arguments}
    return call.arguments


def sent_arguments_text(call: ToolCall) -> str:
    """Return the arguments of an earlier call as text: the model's own text, if it is an object in standard JSON."""
    with suppress(*UNREADABLE):
        if call.raw_arguments and isinstance(decode_json(call.raw_arguments), dict):
            return call.raw_arguments
    return json_text(sent_arguments(call))


_SCHEMA_FIELDS = ("type", "name", "description", "strict", "schema")


def response_format(request: Request) -> dict[str, Any] | None:
    """Return the response format, or None if the response is plain text.

    ===========================================  ===================================================================
    ``request.response_format``                  result
    ===========================================  ===================================================================
    None, ``"text"``, ``{"type": "text"}``       None
    ``{"type": "json_object"}``                  ``{"type": "json_object"}``
    ``json_schema(...)``, a type, OpenAI's form  ``{"type": "json_schema", "name": ..., "schema": ...}``; `name` is
                                                 ``"answer"`` if it is missing; `strict` and `description` are
                                                 copied if they are set
    ===========================================  ===================================================================

    A call has already converted a type; a request that is only built has not.

    Raises ``ValidationError("invalid_request")`` for anything else. To use a format that only one provider supports,
    put it into ``Request.options``.

    >>> response_format(Request(response_format={"type": "json_schema", "schema": {}, "strict": True}))
    {'name': 'answer', 'type': 'json_schema', 'strict': True, 'schema': {}}
    """
    match as_response_format(request.response_format):
        case None | "text" | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema", "schema": Mapping()} as form:
            return {"name": "answer", **{name: form[name] for name in _SCHEMA_FIELDS if name in form}}
        case other:
            raise invalid_field("response_format", other, "a type, 'text', {'type': 'json_object'} or json_schema(...)")


def invalid_field(name: str, value: object, expected: str) -> ValidationError:
    """Return the error for an invalid request field.

    >>> invalid_field("reasoning_effort", "ultra", "none, low or high").errors
    ((('reasoning_effort',), "must be none, low or high, not 'ultra'"),)
    """
    return ValidationError("invalid_request", errors=[((name,), must_be(expected, value))])


def image_url(image: Image) -> str:
    return str(image.data) if image.source == "url" else image.to_data_uri()


def merge(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `options` into a copy of `body`. An option that is None removes the field.

    >>> merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": None, "e": 4}})
    {'a': {'b': 1, 'e': 4}, 'd': 3}
    """
    merged = dict(body)
    for name, value in options.items():
        current = merged.get(name)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            value = merge(cast(Mapping[str, Any], current), cast(Mapping[str, Any], value))
        merged[name] = value
        if value is None:
            del merged[name]
    return merged


def with_tools(tools: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with the request's `tools` before the provider's own tools, if the options have any.

    >>> with_tools([{"name": "add"}], {"tools": [{"type": "web_search"}], "seed": 1})
    {'tools': [{'name': 'add'}, {'type': 'web_search'}], 'seed': 1}
    """
    own = options.get("tools")
    return {**options, "tools": [*tools, *cast(list[Any], own)]} if isinstance(own, list) else dict(options)


def without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
