"""The rules that values keep before they are sent.

Each function gives None, or raises one ``ValidationError`` that lists all faults: ``errors`` pairs a path with what is
wrong there, ``(("messages", 0, "role"), "unknown")``. Nothing is checked that only a provider can know.

==========================  ===========================================================================================
`request`                   messages ``empty``; tools ``duplicate_name``; temperature ``out_of_range`` (0 to 2);
                            max_tokens ``must_be_positive``; response_format ``invalid_shape``;
                            structured_finalize ``requires_json_schema``; and what its messages and tools break
`thread`                    what its messages break
`message`                   role ``unknown``; content ``invalid_type``, ``invalid_part_type``; tool_call_id ``required``
`tool`                      name ``empty``, ``reserved_tool_name``, ``invalid_format``; description ``not_a_string``;
                            schema ``not_a_map``
`session`                   status ``unknown``; pending_question and pending_tool_calls ``required_for_status``;
                            metadata ``error_required_for_status``; and what the messages of its thread break
`image_request`             operation ``unknown``; n ``must_be_positive``; size ``invalid_shape``; style, background and
                            response_format ``unknown``; input_images and mask ``invalid_image``. To generate: prompt
                            ``required_for_operation``, input_images ``must_be_empty``; to edit: prompt
                            ``required_for_operation``, input_images ``invalid_count`` without any; for a variation:
                            prompt ``not_allowed_for_operation``, input_images ``invalid_count`` but for one; a mask
                            but to edit ``not_allowed_for_operation``
`capabilities`              what a model's entry in ``rxllm.models`` says that it cannot do, see there
everywhere                  ``wrong_type``
==========================  ===========================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args

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
from rxllm.values.errors import Path

Fault = tuple[Path, str]

RESERVED_NAMES = frozenset({"auto", "none", "required"})
"""What `tool_choice` already means, and so no tool can be called."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request(value: Request) -> None:
    """Raises ``ValidationError("invalid_request")``, unless a model could be asked this."""
    _raise("invalid_request", _request_faults(value))


def thread(value: Thread) -> None:
    """Raises ``ValidationError("invalid_thread")``, unless every message could be sent. An empty thread is fine."""
    _raise("invalid_thread", _thread_faults(value))


def message(value: Message) -> None:
    """Raises ``ValidationError("invalid_message")``, unless it could be sent."""
    _raise("invalid_message", _message_faults(value))


def tool(value: Tool) -> None:
    """Raises ``ValidationError("invalid_tool")``, unless a model could be told of it."""
    _raise("invalid_tool", _tool_faults(value))


def session(value: Session) -> None:
    """Raises ``ValidationError("invalid_session")``, unless its fields are what its status promises."""
    _raise("invalid_session", _session_faults(value))


def image_request(value: ImageRequest) -> None:
    """Raises ``ValidationError("invalid_image_request")``, unless an image model could be asked this."""
    _raise("invalid_image_request", _image_request_faults(value))


def capabilities(value: Request, model: ModelInfo) -> None:
    """Raises ``ValidationError("unsupported_capability")`` where `model` is known not to do what the request asks."""
    errors = tuple(_capability_faults(value, model))
    if errors:
        named = ", ".join(f"{'.'.join(map(str, path))} ({what})" for path, what in errors)
        message = f"{model.name} cannot do what is asked, as rxllm.models says: {named}"
        raise ValidationError("unsupported_capability", message, errors=errors)


def _raise(reason: str, faults: Iterator[Fault]) -> None:
    if errors := tuple(faults):
        raise ValidationError(reason, errors=errors)


def _capability_faults(value: Request, model: ModelInfo) -> Iterator[Fault]:
    wants_schema = _is_json_schema(value.response_format)
    if value.tools and model.tools is False:
        yield ("tools",), "tools_disabled"
    if wants_schema and model.json_schema is False:
        yield ("response_format",), "json_native_disabled"
    if value.tools and wants_schema and model.tools_with_schema is False:
        yield ("response_format",), "excludes_tools"
    if model.vision is False and any(isinstance(part, ImagePart) for each in value.messages for part in each.parts):
        yield ("vision",), "vision_disabled"


def _request_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Request):
        yield (), "wrong_type"
        return
    if value.messages == ():
        yield ("messages",), "empty"
    yield from _each("messages", value.messages, _message_faults)
    yield from _each("tools", value.tools, _tool_faults)
    if isinstance(value.tools, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = [each.name for each in value.tools if isinstance(each, Tool)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if any(name in names[:i] for i, name in enumerate(names)):
            yield ("tools",), "duplicate_name"
    yield from _number_faults("temperature", value.temperature, lambda number: 0 <= number <= 2, "out_of_range")
    yield from _whole_faults("max_tokens", value.max_tokens, lambda number: number > 0, "must_be_positive")
    yield from _whole_faults("seed", value.seed, lambda number: True, "wrong_type")
    yield from _each("stop", value.stop, _text_faults)
    if not is_response_format(value.response_format):
        yield ("response_format",), "invalid_shape"
    elif value.structured_finalize and not _is_json_schema(value.response_format):
        yield ("structured_finalize",), "requires_json_schema"


def _thread_faults(value: Any) -> Iterator[Fault]:
    if isinstance(value, Thread):
        yield from _each("messages", value.messages, _message_faults)
    else:
        yield (), "wrong_type"


def _session_faults(value: Any) -> Iterator[Fault]:
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
    yield from ((("thread", *path), what) for path, what in _thread_faults(value.thread))


def _message_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Message):
        yield (), "wrong_type"
        return
    if value.role not in get_args(Role):
        yield ("role",), "unknown"
    yield from _content_faults(value.content, value.role)
    if value.role == "tool" and not value.tool_call_id:
        yield ("tool_call_id",), "required"
    yield from _each("tool_calls", value.tool_calls, _call_faults)


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


def _call_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, ToolCall):
        yield (), "wrong_type"


def _text_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, str):
        yield (), "wrong_type"


def _tool_faults(value: Any) -> Iterator[Fault]:
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


def _each(name: str, items: Any, faults_of: Callable[[Any], Iterator[Fault]]) -> Iterator[Fault]:
    if not isinstance(items, tuple):
        yield (name,), "wrong_type"
        return
    for i, item in enumerate(cast(tuple[Any, ...], items)):
        yield from (((name, i, *path), what) for path, what in faults_of(item))


def _number_faults(name: str, held: Any, is_allowed: Callable[[float], bool], what: str) -> Iterator[Fault]:
    if held is None:
        return
    if isinstance(held, bool) or not isinstance(held, int | float):
        yield (name,), "wrong_type"
    elif math.isnan(held) or not is_allowed(held):
        yield (name,), what


def _whole_faults(name: str, held: Any, is_allowed: Callable[[float], bool], what: str) -> Iterator[Fault]:
    if isinstance(held, float):
        yield (name,), "wrong_type"
    else:
        yield from _number_faults(name, held, is_allowed, what)


def is_response_format(held: Any) -> bool:
    """Whether a request may have it; a class is none yet, see ``values.as_response_format``."""
    match held:
        case None | "text" | {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema"}:
            return _is_json_schema(held)
        case _:
            return False


def _is_json_schema(held: Any) -> bool:
    match held:
        case {"type": "json_schema", "name": str(), "schema": Mapping(), **rest}:
            return isinstance(rest.get("strict", True), bool)
        case _:
            return False


_IMAGE_WORDS: dict[str, tuple[str | None, ...]] = {
    "operation": ("generate", "edit", "variation"),
    "response_format": ("binary", "base64", "url"),
    "style": (None, "natural", "vivid"),
    "background": (None, "transparent", "opaque", "auto"),
}


def _image_request_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, ImageRequest):
        yield (), "wrong_type"
        return
    yield from (((name,), "unknown") for name, words in _IMAGE_WORDS.items() if getattr(value, name) not in words)
    texts = ((name, getattr(value, name)) for name in ("model", "prompt", "quality"))
    yield from (((name,), "wrong_type") for name, held in texts if not isinstance(held, str | None))
    if value.n is None:  # pyright: ignore[reportUnnecessaryComparison]
        yield ("n",), "wrong_type"
    yield from _whole_faults("n", value.n, lambda number: number > 0, "must_be_positive")
    if not _is_image_size(value.size):
        yield ("size",), "invalid_shape"
    yield from _each("input_images", value.input_images, _image_faults)
    if value.mask is not None:
        yield from ((("mask",), what) for _, what in _image_faults(value.mask))
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


def _is_image_size(held: Any) -> bool:
    match held:
        case None:
            return True
        case str():
            return bool(held)
        case (int() as width, int() as height):
            return width > 0 and height > 0
        case _:
            return False
