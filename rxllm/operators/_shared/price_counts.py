"""The counts of a usage that have prices of their own, under the names of genai-prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.values import Usage

_EXTRA = {
    "cache_write_1h_tokens": ("cache_creation.ephemeral_1h_input_tokens",),
    "input_audio_tokens": (
        "prompt_tokens_details.audio_tokens",
        "promptTokensDetails.AUDIO",
        "toolUsePromptTokensDetails.AUDIO",
    ),
    "cache_audio_read_tokens": ("cacheTokensDetails.AUDIO",),
    "output_audio_tokens": (
        "completion_tokens_details.audio_tokens",
        "candidatesTokensDetails.AUDIO",
        "responseTokensDetails.AUDIO",
    ),
    "input_image_tokens": (
        "promptTokensDetails.IMAGE",
        "promptTokensDetails.DOCUMENT",
        "toolUsePromptTokensDetails.IMAGE",
        "toolUsePromptTokensDetails.DOCUMENT",
    ),
    "output_image_tokens": ("candidatesTokensDetails.IMAGE",),
    "input_video_tokens": ("promptTokensDetails.VIDEO", "toolUsePromptTokensDetails.VIDEO"),
    "web_searches": ("num_search_queries",),
}
"""The counters that Anthropic, Google, OpenAI and Perplexity add to ``Usage.extra``, by the name of the count."""

_CONTEXT = ("service_tier", "speed")
"""Facts about the answer that select a price list."""


def token_counts(usage: Usage) -> dict[str, int | None]:
    """Return the counts that every model has a price for."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_input_tokens,
    }


def all_counts(usage: Usage) -> dict[str, int | None]:
    """Return `token_counts`, counts with another price for some models (sound, images, one-hour caches), and searches.

    >>> all_counts(Usage(10, 5, tool_usage={"web_search_requests": 2}))["web_searches"]
    2
    """
    counts = token_counts(usage)
    for name, keys in _EXTRA.items():
        counts[name] = sum(_number(usage.extra.get(key)) for key in keys) or None
    return counts | ({"web_searches": searches} if (searches := _searches(usage.tool_usage)) else {})


def price_context(usage: Usage, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the answer's service tier and speed; `metadata` is that of ``MessageCompleted``."""
    known = {name: metadata.get(name) or usage.extra.get(name) for name in _CONTEXT}
    return {name: text for name, text in known.items() if isinstance(text, str)}


def _searches(tool_usage: Mapping[str, Any]) -> int:
    match tool_usage:  # Anthropic, and OpenAI's Responses API
        case {"web_search_requests": count} | {"web_search": {"num_requests": count}}:
            return _number(count)
        case _:
            return 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
