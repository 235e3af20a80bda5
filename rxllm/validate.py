"""Check requests, messages and other values before they are sent.

Each function returns None, or raises a ``ValidationError`` that lists every problem. The error's message describes the
problems in words. The error's `errors` contain a path and a code for each problem, such as
``(("messages", 0, "role"), "unknown")``. Rules that only the provider knows are not checked.

==========================  ===========================================================================================
function                    codes for each field
==========================  ===========================================================================================
`request`                   messages: ``empty``; tools: ``duplicate_name``; temperature: ``out_of_range``
                            (allowed: 0 to 2); top_p: ``out_of_range`` (allowed: above 0, up to 1); max_tokens:
                            ``must_be_positive``; response_format: ``invalid_shape``; structured_finalize:
                            ``requires_json_schema``. Its messages and tools are checked too. Its tool results are
                            checked as in `thread`, unless `options` has ``previous_response_id`` or ``conversation``
`thread`                    tool_call_id: ``result_without_call`` (the message answers a call that no earlier message
                            contains). Its messages are checked too
`message`                   role: ``unknown``; content: ``invalid_type`` or ``invalid_part_type``; tool_call_id:
                            ``required``
`tool`                      name: ``empty``, ``reserved_tool_name`` or ``invalid_format``; description:
                            ``not_a_string``; schema: ``not_a_map``
`session`                   status: ``unknown``; pending_question and pending_tool_calls: ``required_for_status``;
                            metadata: ``error_required_for_status``. Its thread is checked too
`image_request`             operation, style, background and response_format: ``unknown``; n: ``must_be_positive``;
                            size: ``invalid_shape``; input_images and mask: ``invalid_image``; prompt:
                            ``required_for_operation`` (to generate or edit) or ``not_allowed_for_operation`` (for a
                            variation); input_images: ``must_be_empty`` (to generate) or ``invalid_count`` (an edit
                            needs at least one image, and a variation needs exactly one); mask:
                            ``not_allowed_for_operation`` (except for an edit)
`capabilities`              the codes that ``rxllm.models`` lists, for capabilities that the model lacks
`data`                      faults that jsonschema-rs finds in JSON data, in the words of jsonschema-rs
all functions               ``wrong_type`` for any field, or for the value itself; ``too_large`` for an integer field
                            whose value does not fit in 64 bits
==========================  ===========================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args, get_type_hints

from rxllm.values import (
    Image,
    ImagePart,
    ImageRequest,
    Message,
    ModelInfo,
    Part,
    Request,
    Role,
    Session,
    SessionStatus,
    Thread,
    Tool,
    ToolCall,
    ValidationError,
)
from rxllm.values.argument_checks import invalid_option, must_be
from rxllm.values.codec import hint_text
from rxllm.values.errors import Path
from rxllm.values.json_text import described
from rxllm.values.model_table import SAMPLING, Takes
from rxllm.values.schema_checks import schema_faults

__all__ = [
    "RESERVED_NAMES",
    "Fault",
    "capabilities",
    "data",
    "image_request",
    "is_response_format",
    "is_temperature",
    "is_top_p",
    "message",
    "request",
    "session",
    "thread",
    "tool",
]

Fault = tuple[Path, str]
"""The path and the code of a fault."""

RESERVED_NAMES = frozenset({"auto", "none", "required"})
"""Names that no tool may have, because they have a special meaning in `tool_choice`."""


def request(value: Request) -> None:
    """Raise ``ValidationError("invalid_request")`` if the request cannot be sent to a model."""
    _raise("invalid_request", value, request_faults)


def thread(value: Thread) -> None:
    """Raise ``ValidationError("invalid_thread")`` if the thread cannot be sent to a model.

    An empty thread is valid.
    """
    _raise("invalid_thread", value, thread_faults)


def message(value: Message) -> None:
    """Raise ``ValidationError("invalid_message")`` if the message cannot be sent to a model."""
    _raise("invalid_message", value, message_faults)


def tool(value: Tool) -> None:
    """Raise ``ValidationError("invalid_tool")`` if the tool cannot be offered to a model."""
    _raise("invalid_tool", value, tool_faults)


def session(value: Session) -> None:
    """Raise ``ValidationError("invalid_session")`` if the session's status or thread is invalid."""
    _raise("invalid_session", value, session_faults)


def image_request(value: ImageRequest) -> None:
    """Raise ``ValidationError("invalid_image_request")`` if the request cannot be sent to a model."""
    _raise("invalid_image_request", value, image_request_faults)


def capabilities(value: Request, model: ModelInfo) -> None:
    """Raise ``ValidationError("unsupported_capability")`` if `model` cannot handle the request."""
    errors = tuple(capability_faults(value, model))
    if errors:
        faults = ", ".join(f"{'.'.join(map(str, path))} ({fault})" for path, fault in errors)
        message = f"according to rxllm.models, {model.name} lacks capabilities that the request needs: {faults}"
        raise ValidationError("unsupported_capability", message, errors=errors)


def data(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise ``ValidationError("invalid_output")`` if `value` does not match the JSON schema.

    Raises ``ValidationError("invalid_option")`` if the schema itself is invalid. The check requires jsonschema-rs,
    which is installed by ``rxllm[schema]``. If it is not installed, nothing is checked, and a warning is logged once.
    """
    try:
        errors = schema_faults(schema, value)
    except Exception as error:  # jsonschema-rs has its own exception classes
        fault = f"must be a JSON schema: {str(error).partition(chr(10))[0]}"
        raise invalid_option("schema", fault) from error
    if errors:
        message = f"{ValidationError.TITLE}: invalid_output ({described(errors)})"
        raise ValidationError("invalid_output", message, errors=errors)


def is_temperature(number: float) -> bool:
    return 0 <= number <= 2


def is_top_p(number: float) -> bool:
    return 0 < number <= 1


def is_response_format(value: Any) -> bool:
    """Return whether a request may use this response format.

    To create a response format from a type, use ``values.as_response_format``.
    """
    match value:
        case None | "text" | {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema"}:
            return _is_json_schema(value)
        case _:
            return False


def _raise(reason: str, value: Any, faults_of: Callable[[Any], Iterator[Fault]]) -> None:
    if errors := tuple(faults_of(value)):
        expected = _ROOTS[reason]
        faults = "; ".join(in_words(value, path, code, expected) for path, code in errors)
        raise ValidationError(reason, f"{ValidationError.TITLE}: {reason} ({faults})", errors=errors)


_ROOTS = {
    "invalid_request": "a Request",
    "invalid_thread": "a Thread",
    "invalid_message": "a Message",
    "invalid_tool": "a Tool",
    "invalid_session": "a Session",
    "invalid_image_request": "an ImageRequest",
}
"""Maps each error reason to a description of the expected class."""

_EXPECTED = {
    "temperature out_of_range": "a number from 0 to 2",
    "top_p out_of_range": "a number > 0 and <= 1",
    "must_be_positive": "an integer >= 1",
    "too_large": "an integer that fits in 64 bits",
    "response_format invalid_shape": "'text', {'type': 'json_object'} or json_schema(...)",
    "size invalid_shape": "a (width, height) pair, or the name of a size that the provider defines",
    "invalid_type": "text, a tuple of parts or, in a tool result, a dict",
    "invalid_part_type": "a part, such as TextPart(...)",
    "invalid_format": "1 to 64 letters, digits, _ or -",
    "not_a_string": "a string",
    "not_a_map": "a mapping",
    "invalid_image": "an Image, created with Image.from_file or another constructor",
}
"""Descriptions of valid values. The keys are fault codes, or a field and a fault code."""

_STATEMENTS = {
    "empty": "must not be empty",
    "duplicate_name": "must not contain two tools with the same name",
    "reserved_tool_name": "must not be 'auto', 'none' or 'required', which are reserved for tool_choice",
    "requires_json_schema": "requires response_format=json_schema(...)",
    "required": "must be the id of the tool call that the message answers",
    "result_without_call": "must be the id of a tool call in an earlier message; keep the assistant's message "
    "that contains the call, or remove the call's results too, as rxllm.trim_thread does",
    "required_for_status": "must be set while the session has this status",
    "error_required_for_status": "must contain an 'error' while the session has this status",
    "required_for_operation": "must be set for this operation",
    "not_allowed_for_operation": "must not be set for this operation",
    "must_be_empty": "must be empty when the operation is 'generate'",
    "invalid_count": "must contain at least one image for an edit, and exactly one for a variation",
}
"""Maps fault codes to error messages that do not show the invalid value."""


def in_words(root: Any, path: Path, code: str, expected: str) -> str:
    """Describe a fault: where it is, what was expected there, and what was found instead."""
    place = ".".join(map(str, path)) or "value"
    if code in _STATEMENTS:
        return f"{place} {_STATEMENTS[code]}"
    name, value, hint = "", root, None
    for key in path:
        if isinstance(key, str):
            hint = get_type_hints(cast(type[Any], type(value))).get(key)
            name, value = key, getattr(value, key)
        else:
            value, hint = value[key], next(iter(get_args(hint)), None)
    typed = expected if not path else "of another type" if hint is None else hint_text(hint)
    return f"{place} {must_be(_EXPECTED.get(f'{name} {code}') or _EXPECTED.get(code, typed), value)}"


_ON_THE_SERVER = ("previous_response_id", "conversation")
"""Options that refer to messages stored by the provider. Tool results may answer calls in those messages."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Request):
        yield (), "wrong_type"
        return
    if value.messages == ():
        yield ("messages",), "empty"
    yield from each_of("messages", value.messages, message_faults)
    if not (isinstance(value.options, Mapping) and any(map(value.options.get, _ON_THE_SERVER))):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield from _orphan_faults(value.messages)
    yield from each_of("tools", value.tools, tool_faults)
    if isinstance(value.tools, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = [tool.name for tool in value.tools if isinstance(tool, Tool) and isinstance(tool.name, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if len({*names}) < len(names):
            yield ("tools",), "duplicate_name"
    yield from number_faults("temperature", value.temperature, is_temperature, "out_of_range")
    yield from number_faults("top_p", value.top_p, is_top_p, "out_of_range")
    yield from whole_faults("max_tokens", value.max_tokens, lambda number: number > 0, "must_be_positive")
    yield from whole_faults("seed", value.seed, lambda number: True, "wrong_type")
    yield from each_of("stop", value.stop, _faults_unless(str))
    if not is_response_format(value.response_format):
        yield ("response_format",), "invalid_shape"
    elif value.structured_finalize and not _is_json_schema(value.response_format):
        yield ("structured_finalize",), "requires_json_schema"


def thread_faults(value: Any) -> Iterator[Fault]:
    if isinstance(value, Thread):
        yield from each_of("messages", value.messages, message_faults)
        yield from _orphan_faults(value.messages)
    else:
        yield (), "wrong_type"


def _orphan_faults(messages: Any) -> Iterator[Fault]:
    """Yield a fault for each tool result that does not answer an earlier tool call."""
    ids: set[str] = set()
    for i, message in enumerate(cast(tuple[Any, ...], messages if isinstance(messages, tuple) else ())):
        if not isinstance(message, Message):
            continue
        id, calls = message.tool_call_id, message.tool_calls
        if message.role == "tool" and isinstance(id, str) and id and id not in ids:
            yield ("messages", i, "tool_call_id"), "result_without_call"
        if isinstance(calls, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            ids.update(call.id for call in calls if isinstance(call, ToolCall))  # pyright: ignore[reportUnnecessaryIsInstance]


def session_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Session):
        yield (), "wrong_type"
        return
    if value.status not in get_args(SessionStatus):
        yield ("status",), "unknown"
    if value.status == "awaiting_user" and value.pending_question is None:
        yield ("pending_question",), "required_for_status"
    if value.status == "awaiting_tools" and not value.pending_tool_calls:
        yield ("pending_tool_calls",), "required_for_status"
    if value.status == "error" and "error" not in value.metadata:
        yield ("metadata",), "error_required_for_status"
    yield from ((("thread", *path), fault) for path, fault in thread_faults(value.thread))


def message_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Message):
        yield (), "wrong_type"
        return
    if value.role not in get_args(Role):
        yield ("role",), "unknown"
    yield from _content_faults(value.content, value.role)
    if value.role == "tool" and not value.tool_call_id:
        yield ("tool_call_id",), "required"
    yield from each_of("tool_calls", value.tool_calls, _faults_unless(ToolCall))


def _content_faults(content: Any, role: str) -> Iterator[Fault]:
    match content:
        case str():
            pass
        case tuple():
            parts = enumerate(cast(tuple[Any, ...], content))
            yield from ((("content", i), "invalid_part_type") for i, part in parts if not isinstance(part, Part))
        case dict() if role == "tool":
            pass
        case _:
            yield ("content",), "invalid_type"


def _faults_unless(cls: type[Any]) -> Callable[[Any], Iterator[Fault]]:
    return lambda value: iter([] if isinstance(value, cls) else [((), "wrong_type")])


def tool_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Tool):
        yield (), "wrong_type"
        return
    if fault := _name_fault(value.name):
        yield ("name",), fault
    if not isinstance(value.description, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield ("description",), "not_a_string"
    if not isinstance(value.schema, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield ("schema",), "not_a_map"


def _name_fault(name: Any) -> str | None:
    if name == "" or name is None:
        return "empty"
    if not isinstance(name, str):
        return "wrong_type"
    if name in RESERVED_NAMES:
        return "reserved_tool_name"
    return None if _NAME.fullmatch(name) else "invalid_format"


def capability_faults(value: Request, model: ModelInfo) -> Iterator[Fault]:
    wants_schema = _is_json_schema(value.response_format)
    if value.tools and model.tools is False:
        yield ("tools",), "tools_disabled"
    if wants_schema and model.json_schema is False:
        yield ("response_format",), "json_native_disabled"
    if value.tools and wants_schema and model.tools_with_schema is False:
        yield ("response_format",), "excludes_tools"
    if model.vision is False and any(
        isinstance(part, ImagePart) for message in value.messages for part in message.parts
    ):
        yield ("vision",), "vision_disabled"
    for name in Takes().overridden(model).refused(value):
        yield (name,), "sampling_disabled" if name in SAMPLING else f"{name}_disabled"


def _is_json_schema(value: Any) -> bool:
    match value:
        case {"type": "json_schema", "name": str(), "schema": Mapping(), **rest}:
            return isinstance(rest.get("strict", True), bool)
        case _:
            return False


_KNOWN: dict[str, tuple[str | None, ...]] = {
    "operation": ("generate", "edit", "variation"),
    "response_format": ("binary", "base64", "url"),
    "style": (None, "natural", "vivid"),
    "background": (None, "transparent", "opaque", "auto"),
}


def image_request_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, ImageRequest):
        yield (), "wrong_type"
        return
    yield from (((name,), "unknown") for name, known in _KNOWN.items() if getattr(value, name) not in known)
    texts = ((name, getattr(value, name)) for name in ("model", "prompt", "quality"))
    yield from (((name,), "wrong_type") for name, text in texts if not isinstance(text, str | None))
    if value.n is None:  # pyright: ignore[reportUnnecessaryComparison]
        yield ("n",), "wrong_type"
    yield from whole_faults("n", value.n, lambda number: number > 0, "must_be_positive")
    if not _is_size(value.size):
        yield ("size",), "invalid_shape"
    yield from each_of("input_images", value.input_images, _image_faults)
    if value.mask is not None:
        yield from ((("mask",), fault) for _, fault in _image_faults(value.mask))
    if isinstance(value.input_images, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield from _operation_faults(value)


def _operation_faults(value: ImageRequest) -> Iterator[Fault]:
    count, has_prompt = len(value.input_images), isinstance(value.prompt, str) and bool(value.prompt.strip())
    if value.operation in ("generate", "edit") and not has_prompt:
        yield ("prompt",), "required_for_operation"
    if value.operation == "variation" and value.prompt:
        yield ("prompt",), "not_allowed_for_operation"
    if value.operation == "generate" and count:
        yield ("input_images",), "must_be_empty"
    if (value.operation == "edit" and not count) or (value.operation == "variation" and count != 1):
        yield ("input_images",), "invalid_count"
    if value.operation != "edit" and value.mask is not None:
        yield ("mask",), "not_allowed_for_operation"


def _image_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Image) or isinstance(value.data, bytes) != (value.source == "binary"):
        yield (), "invalid_image"


def _is_size(value: Any) -> bool:
    match value:
        case None:
            return True
        case str():
            return bool(value)
        case (int() as width, int() as height):
            return width > 0 and height > 0
        case _:
            return False


def each_of(name: str, items: Any, faults_of: Callable[[Any], Iterator[Fault]]) -> Iterator[Fault]:
    """Yield the faults in each item of `items`, which is the value of the field `name`."""
    if not isinstance(items, tuple):
        yield (name,), "wrong_type"
        return
    for i, item in enumerate(cast(tuple[Any, ...], items)):
        yield from (((name, i, *path), fault) for path, fault in faults_of(item))


def number_faults(name: str, value: Any, is_allowed: Callable[[float], bool], fault: str) -> Iterator[Fault]:
    """Yield `fault` if `value` is not allowed. None is always allowed."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield (name,), "wrong_type"
    elif value != value or not is_allowed(value):  # a test for NaN that, unlike math.isnan, accepts huge integers
        yield (name,), fault


def whole_faults(name: str, value: Any, is_allowed: Callable[[float], bool], fault: str) -> Iterator[Fault]:
    """Yield `fault` if the integer `value` is not allowed. None is always allowed."""
    if isinstance(value, float):
        yield (name,), "wrong_type"
    elif isinstance(value, int) and value.bit_length() > 63:  # msgspec cannot write it
        yield (name,), "too_large"
    else:
        yield from number_faults(name, value, is_allowed, fault)
