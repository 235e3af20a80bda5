"""The usage of the Responses API."""

from __future__ import annotations

USAGE = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "total_tokens": ("total_tokens",),
    "cached_input_tokens": ("input_tokens_details.cached_tokens",),
    "cache_write_input_tokens": ("input_tokens_details.cache_write_tokens",),
    "reasoning_tokens": ("output_tokens_details.reasoning_tokens",),
    "input_cost": ("cost_details.upstream_inference_input_cost",),
    "output_cost": ("cost_details.upstream_inference_output_cost",),
    "total_cost": ("cost", "gateway.cost"),
}
"""The servers' names for each field of `Usage`."""
