"""The frame types and usage counters of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from rxllm.adapters._usage_and_metadata import check_counters, dicts
from rxllm.adapters._usage_and_metadata import to_usage as count_usage
from rxllm.values import Usage

CLIENT_CALL = "tool_use"
THOUGHTS = ("thinking", "redacted_thinking")
SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
CITATIONS = (
    "char_location",
    "page_location",
    "content_block_location",
    "web_search_result_location",
    "search_result_location",
)


CONTENT = frozenset({"type", "message", "content", "content_block", "delta", "text", "thinking", "partial_json"})
"""The fields that hold an answer's text, thinking and calls, and the one that says what a frame is."""


class Delta(msgspec.Struct, gc=False):
    """The ``delta`` in a ``content_block_delta`` or ``message_delta`` frame."""

    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    estimated_tokens: Any = msgspec.UNSET  # how much the model has thought unseen; often null
    signature: str | None = None
    citation: dict[str, Any] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None
    container: dict[str, Any] | None = None


class MessageFrame(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    provider: Any = None  # set by routers
    provider_metadata: Any = None  # set by gateways, with the cost
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    container: dict[str, Any] | None = None
    input_transformations: list[Any] | None = None
    diagnostics: dict[str, Any] | None = None


class Frame(MessageFrame, gc=False):
    """A frame, or a whole message that was not streamed."""

    type: str | None = None
    index: int | None = None
    delta: Delta | None = None
    content_block: dict[str, Any] | None = None
    message: MessageFrame | None = None
    context_management: dict[str, Any] | None = None
    error: Any = None


_COUNTERS = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "cached_input_tokens": ("cache_read_input_tokens",),
    "cache_write_input_tokens": ("cache_creation_input_tokens",),
    "reasoning_tokens": ("output_tokens_details.thinking_tokens",),
    "total_cost": ("cost", "gateway.cost"),  # sent by gateways
}
_TOOLS = "server_tool_use."
_SUMMED = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens", "total_tokens")


def to_usage(counters: Mapping[str, Any]) -> Usage:
    """Convert a ``usage`` object to `Usage`.

    `Usage` counts cached tokens as input; Anthropic's ``input_tokens`` does not. Thinking counts as output. See
    https://platform.claude.com/docs/en/build-with-claude/prompt-caching.

    If there are ``iterations``, the result is their sum, which also includes compactions and advisors. `extra` contains
    the usage, type and model of each iteration.
    """
    entries = dicts(counters.get("iterations"))
    check_counters(len(entries))
    usage, parts = _to_usage(counters), [_to_usage(entry) for entry in entries]
    check_counters(sum(len(part.extra) for part in parts))
    if not parts or len(parts) < len(counters["iterations"]) or any(part.total_tokens is None for part in parts):
        return usage
    total = sum(parts, Usage())
    sums = {name: getattr(total, name) for name in _SUMMED}
    cache = {name: count for name, count in total.extra.items() if name.startswith("cache_creation.")}
    iterations = [{name: value for name, value in vars(part).items() if value not in (None, {})} for part in parts]
    return replace(usage, **sums, extra={**usage.extra, **cache, "iterations": iterations})


def _to_usage(counters: Mapping[str, Any]) -> Usage:
    usage = count_usage(counters, _COUNTERS)
    uncached, cached, written = usage.input_tokens, usage.cached_input_tokens, usage.cache_write_input_tokens
    total_input = None if uncached is None else uncached + (cached or 0) + (written or 0)
    return replace(
        usage,
        input_tokens=total_input,
        total_tokens=None if total_input is None or usage.output_tokens is None else total_input + usage.output_tokens,
        tool_usage={tool.removeprefix(_TOOLS): n for tool, n in usage.extra.items() if tool.startswith(_TOOLS)},
        extra={name: count for name, count in usage.extra.items() if not name.startswith(_TOOLS)},
    )
