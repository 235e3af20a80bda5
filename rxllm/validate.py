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
everywhere                  ``wrong_type``
==========================  ===========================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args

from rxllm.values import Message, Part, Request, Role, Thread, Tool, ToolCall, ValidationError
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


def _raise(reason: str, faults: Iterator[Fault]) -> None:
    if errors := tuple(faults):
        raise ValidationError(reason, errors=errors)


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
    if not _is_response_format(value.response_format):
        yield ("response_format",), "invalid_shape"
    elif value.structured_finalize and not _is_json_schema(value.response_format):
        yield ("structured_finalize",), "requires_json_schema"


def _thread_faults(value: Any) -> Iterator[Fault]:
    if isinstance(value, Thread):
        yield from _each("messages", value.messages, _message_faults)
    else:
        yield (), "wrong_type"


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


def _is_response_format(held: Any) -> bool:
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
