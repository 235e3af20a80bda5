"""What a provider says about its answer, under one name on every wire, for the metadata of ``MessageCompleted``.

==========================  =======================================================================================
name                        value
==========================  =======================================================================================
``service_tier``            the tier that answered: ``"default"``, ``"priority"``, ``"on_demand"``, ``"standard"``
``system_fingerprint``      the configuration of the server
``provider``                the provider behind a router (OpenRouter)
``native_finish_reason``    the finish reason in that provider's words
``timings``                 how long each step took, in the server's own names and units
``content_filter_results``  Azure's verdicts on the answer by category, the most severe of each
``prompt_filter_results``   Azure's verdicts on the prompts; ``content_filters``: both, from its Responses API
``moderation``              the verdicts of a requested moderation; ``safety_ratings``: Gemini's
``traffic_type``            how Vertex bills the answer
``speed``                   Anthropic's: ``"standard"`` or ``"fast"``
``content_filter_result``   why Azure's filter did not run
``channel``                 the last channel of the model's thinking (Groq)
``executed_tools``          the tools that Groq has run, with their results
``related_questions``       what one might ask next (Perplexity)
``venice_parameters``       what Venice did for the answer, with the pages of its search
``provider_metadata``       how Vercel's gateway routed the request, and what that cost
``warnings``                watsonx's, as about a model that will be withdrawn
==========================  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

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
    "system.warnings": "warnings",
}
_TIMES = ("queue_time", "prompt_time", "completion_time", "total_time")
_SEVERITIES = ("safe", "low", "medium", "high")


def metadata_of(part: Any) -> dict[str, Any]:
    """Return what `part` of a frame says about the answer; nothing if it is not an object.

    >>> metadata_of({"id": "1", "service_tier": "default", "system_fingerprint": None})
    {'service_tier': 'default'}
    """
    if not isinstance(part, Mapping):
        return {}
    found = ((name, _at(part, wire)) for wire, name in _NAMES.items())
    return {name: value for name, value in found if value not in (None, "", [], {})}


def _at(part: Any, path: str) -> Any:
    for name in path.split("."):
        part = cast(Mapping[str, Any], part).get(name) if isinstance(part, Mapping) else None
    return part


def metadata_of_usage(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a usage says about the answer; some servers (Groq) put their timings among its counters."""
    times = {name: counters[name] for name in _TIMES if name in counters}
    return metadata_of(counters) | ({"timings": times} if times else {})


def most_severe(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return two verdicts of a content filter as one: the more severe of each category.

    >>> most_severe({"hate": {"filtered": False, "severity": "low"}}, {"hate": {"filtered": False, "severity": "safe"}})
    {'hate': {'filtered': False, 'severity': 'low'}}
    """
    worse = {name: value for name, value in earlier.items() if _severity(value) > _severity(later.get(name))}
    return {**earlier, **later, **worse}


def _severity(verdict: Any) -> tuple[bool, bool, int]:
    match verdict:
        case Mapping():
            fields = cast(Mapping[str, Any], verdict)
            severity = fields.get("severity")
            rank = _SEVERITIES.index(severity) if severity in _SEVERITIES else 0
            return fields.get("filtered") is True, fields.get("detected") is True, rank
        case _:
            return False, False, -1
