"""The usage of Chat Completions."""

from __future__ import annotations

USAGE = {
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("completion_tokens",),
    "total_tokens": ("total_tokens",),
    "cached_input_tokens": (
        "prompt_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "cache_read_input_tokens",
    ),
    "cache_write_input_tokens": ("prompt_tokens_details.cache_write_tokens", "cache_creation_input_tokens"),
    "reasoning_tokens": ("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),
    "input_cost": ("cost.input_tokens_cost",),
    "output_cost": ("cost.output_tokens_cost",),
    "total_cost": ("cost", "cost.total_cost", "cost.usd", "gateway.cost"),
}
"""The servers' names for each field of `Usage`."""
