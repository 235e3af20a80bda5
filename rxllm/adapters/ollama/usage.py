"""Ollama's usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.values import Usage
from rxllm.values.usage import whole

_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def to_usage(last: Mapping[str, Any]) -> Usage:
    """Return the counters of the last line, with times in nanoseconds. A cached prompt has no count."""
    durations = {name: _count(last, name) for name in _DURATIONS}
    extra = {name: duration for name, duration in durations.items() if duration is not None}
    return Usage(_count(last, "prompt_eval_count"), _count(last, "eval_count"), extra=extra)


def _count(last: Mapping[str, Any], name: str) -> int | None:
    number = last.get(name)
    return int(number) if isinstance(number, str) and number.isdecimal() and len(number) < 19 else whole(number)
