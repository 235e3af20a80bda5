"""The line types and usage counters of Ollama's responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rxllm.adapters._usage_and_metadata import as_count
from rxllm.values import Usage
from rxllm.values.usage import whole

PROVIDER = "ollama"
OWN = {"provider": PROVIDER}
"""The data that marks thinking as Ollama's own, so that it is sent back. Ollama does not sign its thinking."""


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class ToolCallEntry(Function, gc=False):
    """A call. Some servers put the name and the arguments here, and not in ``function``."""

    id: str | None = None
    function: Function | None = None


class MessageDelta(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCallEntry] | None = None


class Line(msgspec.Struct, gc=False):
    message: MessageDelta | None = None
    response: str | None = None  # this field and the next one are sent only by /api/generate
    thinking: str | None = None
    logprobs: Any = None
    done: bool | None = None
    error: Any = None


class FirstLine(Line, gc=False):
    """A line that arrives while the model's name is still unknown."""

    model: str | None = None


_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def to_usage(last: Mapping[str, Any]) -> Usage:
    """Return the usage from the last line. The durations are in nanoseconds."""
    durations = {name: _count(last, name) for name in _DURATIONS}
    extra = {name: duration for name, duration in durations.items() if duration is not None}
    return Usage(_count(last, "prompt_eval_count"), _count(last, "eval_count"), extra=extra)


def _count(last: Mapping[str, Any], name: str) -> int | None:
    return whole(as_count(last.get(name)))
