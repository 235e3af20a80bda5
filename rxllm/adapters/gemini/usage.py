"""Gemini's usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from rxllm.values import Usage
from rxllm.values.usage import whole

COUNTERS = {
    "promptTokenCount",
    "candidatesTokenCount",
    "responseTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "totalTokenCount",
}


def to_usage(counters: Mapping[str, Any]) -> Usage:
    """Return the counters of a ``usageMetadata`` object as `Usage`.

    ``promptTokenCount`` includes cached tokens, but not ``toolUsePromptTokenCount``, those of the server's tools;
    ``candidatesTokenCount`` excludes thoughts; ``totalTokenCount`` is the sum of all. Counters without a field of their
    own are in `extra`.
    """
    prompt, tools = whole(counters.get("promptTokenCount")), whole(counters.get("toolUsePromptTokenCount"))
    thoughts = whole(counters.get("thoughtsTokenCount"))
    answer = whole(counters.get("candidatesTokenCount"))
    answer = whole(counters.get("responseTokenCount")) if answer is None else answer
    return Usage(
        input_tokens=prompt if tools is None else (prompt or 0) + tools,
        output_tokens=answer if thoughts is None else (answer or 0) + thoughts,
        cached_input_tokens=whole(counters.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
        total_tokens=whole(counters.get("totalTokenCount")),
        extra=dict(_flat((name, count) for name, count in counters.items() if name not in COUNTERS)),
    )


def _flat(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, list) and all(isinstance(item, dict) for item in cast(list[Any], value)):
            # [{"modality": "TEXT", "tokenCount": 3}, ...]
            for item in cast(list[dict[str, Any]], value):
                yield f"{name}.{item.get('modality')}", item.get("tokenCount", 0)
        elif isinstance(value, dict):
            inner = cast(dict[str, Any], value)
            yield from _flat((f"{name}.{key}", count) for key, count in inner.items())
        elif value is not None:
            yield name, value
