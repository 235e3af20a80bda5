"""Add costs to usage, and list the counts that have prices of their own under the names of genai-prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, RawChunk, StepRestarted, UsageUpdated
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values import Usage

Cost = Callable[[Usage, str | None, Mapping[str, Any]], Usage]
"""Takes a response's usage, the provider's name for the model and the end's metadata; returns the usage with costs."""

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

_NO_METADATA: Mapping[str, Any] = {}

_READ = frozenset({MessageStarted, UsageUpdated, RawChunk, StepRestarted, MessageCompleted, ErrorEvent})


def fill_costs(cost: Cost) -> Callable[[Observable[Event]], Stream[Event]]:
    """Before a response's last event, emit its last usage once more with costs, if `cost` finds any.

    ::

        source         --start--usage--usage--end--|
        fill_costs     --start--usage--usage--(usage end)|
    """

    def make_handler(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        usage: Usage | None = None
        model: str | None = None

        def handle(event: Event) -> None:
            nonlocal usage, model
            if type(event) not in _READ:
                on_next(event)
                return
            match event:
                case MessageStarted(message=message):
                    model = message.metadata.get("model")
                case UsageUpdated():
                    usage = event.usage
                case RawChunk(kind="usage", data=Mapping()):
                    usage = raw_usage(event.data) or usage
                case StepRestarted():
                    usage = None
                case MessageCompleted() | ErrorEvent() if usage is not None:
                    metadata = event.metadata if isinstance(event, MessageCompleted) else _NO_METADATA
                    stated, usage = usage, None  # the next response has its own
                    try:
                        filled = cost(stated, model, metadata)
                    except Exception as error:
                        on_error(error)
                        return
                    if filled != stated:
                        on_next(UsageUpdated(filled))
                case _:
                    pass
            on_next(event)

        return handle

    return handle_each(make_handler)


def raw_usage(data: Any) -> Usage | None:
    """Return the usage in the data of a ``RawChunk("usage")``; None unless its keys are fields of `Usage`."""
    try:
        return Usage(**cast(Mapping[str, Any], data))
    except TypeError:  # unknown names: the fold raises a better error
        return None


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
