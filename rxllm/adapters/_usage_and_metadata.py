"""Convert response metadata to shared names, and counters to `Usage`.

============================  =======================================================================================
metadata                      value
============================  =======================================================================================
``service_tier``              the tier that handled the request, such as ``"default"`` or ``"priority"``
``system_fingerprint``        an identifier for the server's configuration
``provider``                  the provider that a router, such as OpenRouter, passed the request to
``native_finish_reason``      the finish reason exactly as the provider sent it to the router
``timings``                   how long each step took, in the server's own names and units
``content_filter_results``    Azure's most severe content-filter verdict on the answer, for each category
``prompt_filter_results``     Azure's content-filter verdicts on the prompts
``content_filters``           Azure's content-filter verdicts on the prompts and the answer (Responses API)
``content_filter_result``     why Azure's content filter did not run
``moderation``                the moderation verdicts, if the request asked for moderation
``safety_ratings``            Gemini's safety ratings
``traffic_type``              how Vertex AI bills the request
``speed``                     the speed at which Anthropic ran the model: ``"standard"`` or ``"fast"``
``channel``                   the channel of the model's latest thinking (Groq)
``executed_tools``            the tools that Groq ran, with their results
``related_questions``         follow-up questions that Perplexity suggests
``venice_parameters``         the settings that Venice used, and the web pages that its search found
``provider_metadata``         the route that Vercel's gateway chose for the request, and its cost
``warnings``                  warnings from watsonx, for example that a model will be withdrawn
``input_transformations``     the thoughts that Anthropic or OpenAI did not show to the model, and why
``cache_miss_reason``         why Anthropic's cache was not used, if the request asked for ``diagnostics``
``prompt_cache_diagnostics``  why OpenAI's cache was not used, if the request named a response to compare with
============================  =======================================================================================
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.values import FinishReason, StreamError, Usage
from rxllm.values.usage import amount, whole

_NAMES = {
    "service_tier": "service_tier",
    "serviceTier": "service_tier",
    "system_fingerprint": "system_fingerprint",
    "provider": "provider",
    "native_finish_reason": "native_finish_reason",
    "timings": "timings",
    "time_info": "timings",  # Cerebras
    "prompt_filter_results": "prompt_filter_results",
    "content_filters": "content_filters",
    "moderation": "moderation",
    "safetyRatings": "safety_ratings",
    "trafficType": "traffic_type",
    "speed": "speed",
    "related_questions": "related_questions",
    "venice_parameters": "venice_parameters",
    "provider_metadata": "provider_metadata",
    "input_transformations": "input_transformations",
    "prompt_cache_diagnostics": "prompt_cache_diagnostics",
    "cache_miss_reason": "cache_miss_reason",
}
REFUSALS: dict[str, FinishReason] = dict.fromkeys(
    (
        *("refusal", "content_filter", "content_filtered", "guardrail_intervened", "safety", "sensitive"),
        *("recitation", "blocklist", "prohibited_content", "spii", "model_armor", "content_policy_violation"),
    ),
    "content_filter",
)
"""The finish reasons that mean a refusal, in the words of providers and of the gateways before them."""

_TIMES = ("queue_time", "prompt_time", "completion_time", "total_time")
_SEVERITIES = ("safe", "low", "medium", "high")


def metadata_of(part: Any) -> dict[str, Any]:
    """Return the response metadata in `part`, which is a part of a frame.

    >>> metadata_of({"id": "1", "service_tier": "default", "system_fingerprint": None})
    {'service_tier': 'default'}
    """
    if not isinstance(part, Mapping):
        return {}
    fields = cast(Mapping[str, Any], part)
    found = [(_NAMES[wire], value) for wire, value in fields.items() if wire in _NAMES]
    if isinstance(system := fields.get("system"), Mapping):
        found.append(("warnings", cast(Mapping[str, Any], system).get("warnings")))
    return {name: value for name, value in found if value not in (None, "", [], {})}


def metadata_of_usage(counters: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: counters[name] for name in _TIMES if name in counters}
    return metadata_of(counters) | ({"timings": times} if times else {})


def add_verdicts(verdicts: dict[str, Any], later: Mapping[str, Any]) -> None:
    """Add `later` to `verdicts`. For each category, keep the more severe verdict.

    >>> verdicts = {"hate": {"filtered": False, "severity": "low"}}
    >>> add_verdicts(verdicts, {"hate": {"filtered": False, "severity": "safe"}, "violence": {"filtered": False}})
    >>> verdicts
    {'hate': {'filtered': False, 'severity': 'low'}, 'violence': {'filtered': False}}
    """
    for name, verdict in later.items():
        if _severity(verdict) >= _severity(verdicts.get(name)):
            verdicts[name] = verdict


def _severity(verdict: Any) -> tuple[bool, bool, int]:
    match verdict:
        case Mapping():
            fields = cast(Mapping[str, Any], verdict)
            severity = fields.get("severity")
            rank = _SEVERITIES.index(severity) if severity in _SEVERITIES else 0
            return fields.get("filtered") is True, fields.get("detected") is True, rank
        case _:
            return False, False, -1


log = logging.getLogger("rxllm")

LONGEST_NAME = 500
"""The maximum length of a counter's name, with the names of the objects that contain it, in characters."""

_COSTS = ("input_cost", "output_cost", "total_cost")
_UNITS = {"cost_in_usd_ticks": 1e10, "copilot_usage.total_nano_aiu": 1e11}
"""The number of units per dollar in the cost counters of xAI and GitHub Copilot."""


def to_usage(counters: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> Usage:
    """Return `counters` as a `Usage`.

    `names` maps each field of `Usage` to the names that providers use for it. In the name of a nested counter, dots
    separate the levels. Counters whose names are not in `names` go into `extra`. If a name is empty or longer than
    `LONGEST_NAME` characters, its counter is left out.

    >>> to_usage({"prompt_tokens": 3, "details": {"cached": 1, "audio": 0}}, {"input_tokens": ("prompt_tokens",)})
    Usage(input_tokens=3, extra={'details.cached': 1, 'details.audio': 0})
    """
    flat = with_short_names(_flatten(counters))
    fields = {field: _first_number(flat, names[field], amount if field in _COSTS else whole) for field in names}
    known = {name for candidates in names.values() for name in candidates}
    extra = {name: value for name, value in flat.items() if name not in known}
    check_counters(len(extra))
    for name, units in _UNITS.items():
        if fields.get("total_cost") is None and isinstance(extra.get(name), int):
            fields["total_cost"] = extra.pop(name) / units
    return _count_thoughts_as_output(Usage(**fields, extra=extra))


MOST_COUNTERS = 500
"""The maximum number of counters in the usage of a response, apart from those with a field of their own."""


def check_counters(number: int) -> None:
    """Raise ``StreamError("malformed_event")`` if `number` is more than `MOST_COUNTERS`."""
    if number > MOST_COUNTERS:
        raise StreamError("malformed_event", f"the usage has {number} counters; at most {MOST_COUNTERS} are read")


def costs_beside(part: Any) -> dict[str, Any]:
    """Return the costs that Venice, GitHub Copilot and Vercel report outside the usage object."""
    match part:
        case {"cost": dict()}:
            return {"cost": part["cost"]}
        case {"copilot_usage": dict()}:
            return {"copilot_usage": part["copilot_usage"]}
        case {"provider_metadata": {"gateway": {"cost": str() | int() | float() as cost}}}:
            return {"gateway": {"cost": _parse_number(cost)}}
        case _:
            return {}


def _parse_number(text: str | float) -> float | None:
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def with_short_names(counters: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return `counters` without the counter whose name is empty, which stands for all names that are too long."""
    named = dict(counters)
    if named.pop("", None) is not None:
        log.warning("a usage counter is left out: its name is empty or has more than %d characters", LONGEST_NAME)
    return named


def _flatten(counters: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in counters.items():
        if len(prefix) + len(name) > LONGEST_NAME:
            yield "", True  # the name of an object is repeated in the names of all its counters
        elif isinstance(value, dict):
            yield from _flatten(cast(dict[str, Any], value), f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", as_count(value)


def as_count(value: Any) -> Any:
    """Return `value`, as an int if it is the text of one."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS else value


_DIGITS = 19
"""The number of digits of a text that can be too large for a 64-bit int."""


def _first_number(flat: Mapping[str, Any], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    numbers = (read(flat[name]) for name in names if name in flat)
    return next((number for number in numbers if number is not None), None)


def _count_thoughts_as_output(usage: Usage) -> Usage:
    """Count the thoughts that the output counter leaves out, which the total shows.

    xAI reports them in a counter of their own, Google's endpoint for Chat Completions in the total alone.
    """
    if usage.input_tokens is None or usage.output_tokens is None or usage.total_tokens is None:
        return usage
    beside = usage.total_tokens - usage.input_tokens - usage.output_tokens
    if beside <= 0 or usage.reasoning_tokens not in (None, beside):
        return usage
    return replace(usage, output_tokens=usage.output_tokens + beside, reasoning_tokens=beside)


def dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in cast(list[Any], value) if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
