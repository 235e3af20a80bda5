"""How counters are read as `Usage`, nested ones and xAI's too; the ``usage.py`` of each wire has its names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.values import Usage
from rxllm.values.usage import amount, whole

_COSTS = ("input_cost", "output_cost", "total_cost")
_UNITS = {"cost_in_usd_ticks": 1e10, "copilot_usage.total_nano_aiu": 1e11}
"""Costs that xAI and GitHub Copilot state in units of their own, of which so many are a dollar."""


def to_usage(counters: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> Usage:
    """Return a provider's `counters` as a `Usage`; `names` are the provider's names of each field, in order of trust.

    Nested counters have dotted names. Those without a field of their own are in `extra`.

    >>> to_usage({"prompt_tokens": 3, "details": {"cached": 1, "audio": 0}}, {"input_tokens": ("prompt_tokens",)})
    Usage(input_tokens=3, extra={'details.cached': 1, 'details.audio': 0})
    """
    flat = dict(_flatten(counters))
    fields = {field: _first(flat, names[field], amount if field in _COSTS else whole) for field in names}
    known = {name for candidates in names.values() for name in candidates}
    extra = {name: value for name, value in flat.items() if name not in known}
    for name, units in _UNITS.items():
        if fields.get("total_cost") is None and isinstance(extra.get(name), int):
            fields["total_cost"] = extra.pop(name) / units
    return _count_thoughts_as_output(Usage(**fields, extra=extra))


def costs_beside(part: Any) -> dict[str, Any]:
    """Return the costs that stand beside the usage in `part` of a frame, as counters for `to_usage`.

    Venice's are ``{"cost": {"usd": ..., "diem": ...}}``, GitHub Copilot's ``copilot_usage``, and those of Vercel's
    gateway text: ``{"provider_metadata": {"gateway": {"cost": "0.0045"}}}``.
    """
    match part:
        case {"cost": dict()}:
            return {"cost": part["cost"]}
        case {"copilot_usage": dict()}:
            return {"copilot_usage": part["copilot_usage"]}
        case {"provider_metadata": {"gateway": {"cost": str() | int() | float() as cost}}}:
            return {"gateway": {"cost": _number(cost)}}
        case _:
            return {}


def _number(text: str | float) -> float | None:
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _flatten(counters: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in counters.items():
        if isinstance(value, dict):
            yield from _flatten(cast(dict[str, Any], value), f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _first(flat: Mapping[str, Any], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    numbers = (read(flat.get(name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _count_thoughts_as_output(usage: Usage) -> Usage:
    # xAI counts them beside the output: then the total is the sum of all three.
    prompt, output, thoughts = usage.input_tokens or 0, usage.output_tokens or 0, usage.reasoning_tokens or 0
    is_beside = thoughts and usage.total_tokens == prompt + output + thoughts
    return replace(usage, output_tokens=output + thoughts) if is_beside else usage
