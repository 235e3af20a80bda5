"""What a response costs by the price list of genai-prices, and the counts that have prices of their own there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rxllm.values import EngineError, Usage
from rxllm.values.usage import by_iteration

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

_PROVIDERS = {"gemini": "google", "moonshot": "moonshotai", "openai-responses": "openai"}
"""Providers that have other names in genai-prices."""

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


def priced(usage: Usage, name: str, response_model: str | None, context: Mapping[str, str]) -> Usage:
    """Return `usage` with the costs it lacks, at the prices of `response_model`, or else of ``"provider:model"``."""
    provider, _, model = name.partition(":")
    provider = _PROVIDERS.get(provider, provider) or None

    def price(other: str | None, part: Usage) -> Usage:
        return _filled(part, provider, [other] if other else [response_model, model], context)

    return by_iteration(usage, price)


def _filled(usage: Usage, provider: str | None, models: Iterable[str | None], context: Mapping[str, str]) -> Usage:
    """Return `usage` with the costs it lacks, at the prices of the first of `models` that is in the list."""
    for model in filter(None, models):
        price = _price(usage, provider, model, context)
        if price is not None:
            input_cost = float(price.input_price) if usage.input_cost is None else usage.input_cost
            output_cost = float(price.output_price) if usage.output_cost is None else usage.output_cost
            # The price of a search or of the request itself is neither input nor output.
            total = input_cost + output_cost + float(price.total_price - price.input_price - price.output_price)
            total = total if usage.total_cost is None else usage.total_cost
            return replace(usage, input_cost=input_cost, output_cost=output_cost, total_cost=total)
    return usage


def _price(usage: Usage, provider: str | None, model: str, context: Mapping[str, str]) -> PriceCalculation | None:
    calc_price, Counts = price_list()  # noqa: N806 a class
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    for counts in (all_counts(usage), token_counts(usage)):
        try:
            return calc_price(Counts(**counts), model, provider_id=provider, price_context=context)
        except LookupError:  # the model is not in the list
            return None
        except ValueError:  # impossible counts, or too few to tell text from the rest
            continue
    return None


def price_list() -> tuple[Callable[..., PriceCalculation], type]:
    """Return genai-prices' function and its counts. Raises ``EngineError("missing_dependency")`` without it."""
    try:
        from genai_prices import Usage as Counts
        from genai_prices import calc_price
    except ImportError as error:
        message = "prices need the package genai-prices: pip install 'rxllm[cost]'"
        raise EngineError("missing_dependency", message) from error
    return calc_price, Counts


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
