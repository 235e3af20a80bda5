"""Check the types of an event's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from rxllm.events import (
    EVENT_CLASSES,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    Steered,
    TextDelta,
    ThinkingDelta,
    UsageUpdated,
    current_form,
)
from rxllm.values import FinishReason, Message, Part, ToolCall, Usage

_CLASSES = frozenset[type[Any]](EVENT_CLASSES)
_FINISH_REASONS = frozenset((None, *get_args(FinishReason)))
_NUMBER = (int, float, NoneType)
_ID = (str, NoneType)


def event_fault(event: Any) -> str | None:
    """Return what is wrong with `event`, or None if nothing is wrong."""
    cls = cast(type[Any], type(event))
    # Check deltas and usage first, because they are the most frequent events.
    if cls is TextDelta and type(event.delta) is str and type(event.id) in _ID and type(event.refusal) is bool:
        return None
    if cls is ThinkingDelta and type(event.delta) is str and type(event.id) in _ID and event.estimated_tokens is None:
        return None
    if cls is UsageUpdated and type(event.usage) is Usage:
        return _usage_fault(event)
    if cls not in _CLASSES:
        return f"{cls.__name__} is not one of the rxllm.Event classes"
    for name, types in _types(cls):
        value = getattr(event, name)
        if not isinstance(value, types):
            expected = " or ".join(dict.fromkeys(_NAMES.get(type, type.__name__) for type in types))
            got = "None" if value is None else f"a value of type {type(value).__name__}"
            return f"{cls.__name__}.{name} is not {expected}: got {got}"
    check = _CHECKS.get(cls)
    fault = None if check is None else check(event)
    return f"{cls.__name__}.{fault}" if fault else None


_NAMES = {NoneType: "None", dict: "a mapping", Mapping: "a mapping", str: "a str", int: "an int"}


@cache
def _types(cls: type[Any]) -> tuple[tuple[str, tuple[type[Any], ...]], ...]:
    """Return the name and the allowed classes of every field whose type is not `Any`."""
    fields = ((name, _classes(hint)) for name, hint in get_type_hints(cls).items())
    return tuple((name, classes) for name, classes in fields if classes)


def _classes(hint: Any) -> tuple[type[Any], ...]:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return tuple(cls for option in get_args(hint) for cls in _classes(option))
    if hint is Any:
        return ()
    if origin is Literal:
        return (str,)
    # dict is first because isinstance is faster for it than for Mapping.
    return (dict, Mapping) if origin is Mapping else (origin or hint,)


def _message_fault(message: Message) -> str | None:
    content = cast(Any, message.content)
    if not isinstance(content, str | tuple | dict):
        return "message.content is neither text nor parts"
    if isinstance(content, tuple) and not all(isinstance(part, Part) for part in cast(tuple[Any, ...], content)):
        return "message.content contains items that are not parts"
    calls = cast(Any, message.tool_calls)
    if not (isinstance(calls, tuple) and all(isinstance(call, ToolCall) for call in cast(tuple[Any, ...], calls))):
        return "message.tool_calls is not a tuple of ToolCalls"
    return None if isinstance(cast(Any, message.metadata), Mapping) else "message.metadata is not a mapping"


def _completed_fault(event: MessageCompleted) -> str | None:
    if event.finish_reason not in _FINISH_REASONS:
        return f"finish_reason is not one of {', '.join(sorted(get_args(FinishReason)))}"
    return _message_fault(event.message)


def _usage_fault(event: UsageUpdated) -> str | None:
    if _are_counters(tuple(map(type, vars(event.usage).values()))):
        return None
    return "UsageUpdated.usage holds a counter that is not a number, or a tool_usage or extra that is not a dict"


@lru_cache(64)
def _are_counters(types: tuple[type[Any], ...]) -> bool:
    *counters, tool_usage, extra = types  # in the order of the fields
    return (
        all(issubclass(cls, _NUMBER) for cls in counters) and issubclass(tool_usage, dict) and issubclass(extra, dict)
    )


def _raw_fault(event: RawChunk) -> str | None:
    """Return what is wrong with an obsolete ``RawChunk``, or None if nothing is wrong."""
    try:
        current = current_form(event)
    except TypeError:  # the fold itself raises this error for an unknown counter
        return None
    fault = None if current is event else event_fault(current)
    return fault and f"data is malformed: {fault}"


def _nested_fault(event: Nested) -> str | None:
    if not event.path or not all(isinstance(cast(object, id), str) for id in event.path):
        return "path is empty or contains ids that are not strings"
    inner = cast(object, event.event)
    if isinstance(inner, Nested):
        return "event is itself a Nested; pass the innermost event and the whole path"
    fault = event_fault(inner)
    return f"event is malformed: {fault}" if fault else None


_CHECKS: dict[type[Any], Callable[[Any], str | None]] = {
    MessageStarted: lambda event: _message_fault(event.message),
    MessageCompleted: _completed_fault,
    RawChunk: _raw_fault,
    Nested: _nested_fault,
    Steered: lambda event: _message_fault(event.message),
}
