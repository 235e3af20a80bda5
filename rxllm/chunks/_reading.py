"""What chunks say of tool calls and of usage, read the same way by the accumulator and by `from_chunks`.

Nothing here raises: metadata come from anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

import msgspec

from rxllm.chunks._chunk import StreamChunk
from rxllm.events import NOTHING
from rxllm.values import FinishReason, Usage

Index = str | int | None

CONTROL = frozenset(
    {
        "id",
        "index",
        "name",
        "builtin?",
        "start",
        "expects_arg_fragments",
        "args_fragment_expected?",
        "done_at_unix_nano",
    }
)
"""What a tool call's metadata say to those who put it together; the rest is the call's own."""

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "completed": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "error": "error",
}
"""The fixed table; every other word is ``other``."""

_USAGE = {
    "input_tokens": ("input_tokens", "input"),
    "output_tokens": ("output_tokens", "output"),
    "cached_input_tokens": ("cached_input_tokens", "cached_tokens", "cache_read_input_tokens"),
    "cache_write_input_tokens": (
        "cache_write_input_tokens",
        "cache_creation_tokens",
        "cache_creation_input_tokens",
    ),
    "reasoning_tokens": ("reasoning_tokens",),
    "total_tokens": ("total_tokens",),
    "input_cost": ("input_cost",),
    "output_cost": ("output_cost",),
    "total_cost": ("total_cost", "cost"),
}


class CallRecord(msgspec.Struct, frozen=True):
    """A tool call chunk as it is meant."""

    id: str | None
    name: str
    arguments: Any
    index: Index
    metadata: dict[str, Any]
    builtin: bool
    expects: bool
    raw: str


def read_call(chunk: StreamChunk) -> CallRecord | None:
    """The call that a chunk begins; None without a name."""
    metadata = mapping(chunk.metadata)
    name, id, raw = chunk.name or metadata.get("name"), metadata.get("id"), metadata.get("raw_arguments")
    if not isinstance(name, str) or not name:
        return None
    expected = ("expects_arg_fragments", "args_fragment_expected?", "start")
    return CallRecord(
        id=id if isinstance(id, str) and id else None,
        name=name,
        arguments={} if chunk.arguments is None else chunk.arguments,
        index=_index(metadata),
        metadata={key: held for key, held in metadata.items() if key not in CONTROL},
        builtin=metadata.get("builtin?") is True,
        expects=any(metadata.get(key) is True for key in expected),
        raw=raw if isinstance(raw, str) else "",
    )


def read_fragment(given: Any) -> tuple[Index, str] | None:
    """The index and the text of a ``tool_call_args``."""
    fragment = mapping(given).get("fragment")
    return (_index(given), fragment) if isinstance(fragment, str) else None


def read_call_metadata(given: Any) -> tuple[Index, dict[str, Any]] | None:
    """The index and the updates of a ``tool_call_metadata``."""
    updates = mapping(given).get("metadata")
    if not isinstance(updates, Mapping):
        return None
    return _index(given), {key: held for key, held in mapping(updates).items() if key not in CONTROL}


def merge_counters(usage: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the larger of two numbers: counters only grow, so a late chunk full of zeros takes nothing back."""
    merged = dict(usage)
    for name, held in more.items():
        known = merged.get(name)
        if held is not None:
            merged[name] = max(known, held) if _is_number(known) and _is_number(held) else held
    return merged


def latest_counters(usage: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the later of two: providers do correct themselves. Zero and None say nothing where there is a number."""
    return {**usage, **{k: held for k, held in more.items() if held is not None and not (held == 0 and usage.get(k))}}


def merge_usage(usage: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The counters merged, their total the sum of input and output, whatever the provider says."""
    merged = merge_counters(usage, more)
    spent, made = (held if _is_number(held := merged.get(name)) else 0 for name in ("input_tokens", "output_tokens"))
    return {**merged, "total_tokens": spent + made, "input": spent, "output": made}


def to_usage(counted: Mapping[str, Any]) -> Usage:
    """The counters as a value; those without a field of their own are in `extra`.

    >>> to_usage({"input_tokens": 5, "output_tokens": 2, "image_tokens": 1})
    Usage(input_tokens=5, output_tokens=2, extra={'image_tokens': 1})
    """
    numbers: dict[str, Any] = {name: held for name, held in counted.items() if _is_number(held)}
    fields = {field: next((numbers[n] for n in names if n in numbers), None) for field, names in _USAGE.items()}
    tools = counted.get("tool_usage")
    known = {name for names in _USAGE.values() for name in names if name in numbers}
    known |= {"tool_usage"} if isinstance(tools, Mapping) else set()
    extra = {name: held for name, held in counted.items() if name not in known}
    return Usage(**fields, tool_usage=dict(mapping(tools)), extra=extra)


def normalised(reason: Any) -> FinishReason:
    """The finish reason that is meant.

    >>> normalised("end_turn"), normalised("pause_turn")
    ('stop', 'other')
    """
    return FINISH_REASONS.get(str(reason).lower(), "other")


def as_json(arguments: Any) -> str | None:
    """Arguments as JSON text, as they are if they are text; None for what has no JSON."""
    if isinstance(arguments, str):
        return arguments
    given = dict(mapping(arguments)) if isinstance(arguments, Mapping) else arguments
    try:
        return msgspec.json.encode(given).decode()
    except (TypeError, ValueError, RecursionError):
        return None


def is_stream_only(chunk: StreamChunk) -> bool:
    """Whether a chunk is shown, and no part of the message."""
    return mapping(chunk.metadata).get("stream_only?") is True


def mapping(given: Any) -> Mapping[str, Any]:
    """What is given, if it is a mapping; else an empty one."""
    return cast(Mapping[str, Any], given) if isinstance(given, Mapping) else NOTHING


def _index(given: Mapping[str, Any]) -> Index:
    # None is an index of its own; what cannot be one counts as missing.
    index = given.get("index", 0)
    return index if isinstance(index, str | int | None) else 0


def _is_number(held: Any) -> TypeGuard[int | float]:
    return isinstance(held, int | float) and not isinstance(held, bool)


def key_of(annotation: Any) -> bytes | str:
    """The same for equal annotations, in whatever order their fields come."""
    try:
        return msgspec.json.encode(annotation, order="deterministic")
    except (TypeError, ValueError, RecursionError):
        return repr(annotation)
