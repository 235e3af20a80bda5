"""What a usage holds that has a price of its own, under the names of genai-prices."""

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
"""The counters of ``Usage.extra``, as Anthropic, Google, OpenAI and Perplexity name them, by what they count."""

_CONTEXT = ("service_tier", "speed")
"""What the provider says of the answer that has a price list of its own."""


def token_counts(usage: Usage) -> dict[str, int | None]:
    """Return the counts of which every model has a price."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_input_tokens,
    }


def all_counts(usage: Usage) -> dict[str, int | None]:
    """Return these, those of which some models have another price (sound, images, caches of an hour), and searches.

    >>> all_counts(Usage(10, 5, tool_usage={"web_search_requests": 2}))["web_searches"]
    2
    """
    counted: dict[str, int | None] = token_counts(usage)
    for name, names in _EXTRA.items():
        counted[name] = sum(_number(usage.extra.get(key)) for key in names) or None
    return counted | ({"web_searches": searches} if (searches := _searches(usage.tool_usage)) else {})


def price_context(usage: Usage, about: Mapping[str, Any]) -> dict[str, str]:
    """Return the service tier and the speed of the answer; `about` is the metadata of ``MessageCompleted``."""
    known = {name: about.get(name) or usage.extra.get(name) for name in _CONTEXT}
    return {name: text for name, text in known.items() if isinstance(text, str)}


def _searches(used: Mapping[str, Any]) -> int:
    match used:  # of Anthropic, and of OpenAI's Responses API
        case {"web_search_requests": count} | {"web_search": {"num_requests": count}}:
            return _number(count)
        case _:
            return 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
