"""The faults of requests, messages, tools, threads and sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

from rxllm.validate._faults import Fault, each_of, number_faults, whole_faults
from rxllm.values import (
    ImagePart,
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
)

RESERVED_NAMES = frozenset({"auto", "none", "required"})
"""The words of `tool_choice`, which no tool can have as its name."""

_ON_THE_SERVER = ("previous_response_id", "conversation")
"""The options by which a server has the earlier messages, and so the calls that results answer."""

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
    yield from each_of("stop", value.stop, _text_faults)
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
    """Yield a fault for each tool result without its call, as at the start of ``thread[2:]``: providers refuse it."""
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
    yield from each_of("tool_calls", value.tool_calls, _call_faults)


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


def is_temperature(number: float) -> bool:
    """Whether a request may have this temperature."""
    return 0 <= number <= 2


def is_top_p(number: float) -> bool:
    """Whether a request may choose among the tokens of this share of the probability."""
    return 0 < number <= 1


def is_response_format(value: Any) -> bool:
    """Whether a request may have this format; ``values.as_response_format`` turns a type into one."""
    match value:
        case None | "text" | {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema"}:
            return _is_json_schema(value)
        case _:
            return False


def _is_json_schema(value: Any) -> bool:
    match value:
        case {"type": "json_schema", "name": str(), "schema": Mapping(), **rest}:
            return isinstance(rest.get("strict", True), bool)
        case _:
            return False
