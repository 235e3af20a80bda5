"""The frames of the Messages API as types, and their usage.

The types have only the fields that are read: the others cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.values import Usage
from rxllm.values._usage import amount, whole

CLIENT_CALL = "tool_use"
SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
CITATIONS = (
    "char_location",
    "page_location",
    "content_block_location",
    "web_search_result_location",
    "search_result_location",
)


class Delta(msgspec.Struct, gc=False):
    """The delta of a ``content_block_delta`` or a ``message_delta``: their kinds share no field name."""

    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citation: dict[str, Any] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None
    container: dict[str, Any] | None = None


class MessageFrame(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    provider: Any = None  # of a router
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    container: dict[str, Any] | None = None


class Frame(MessageFrame, gc=False):
    """An event of the stream, or, from a server that does not stream, the message itself."""

    type: str | None = None
    index: int = 0
    delta: Delta | None = None
    content_block: dict[str, Any] | None = None
    message: MessageFrame | None = None
    context_management: dict[str, Any] | None = None
    error: Any = None


def to_usage(counters: Mapping[str, Any]) -> Usage:
    """Return the counters of a ``usage`` object as `Usage`.

    Anthropic's ``input_tokens`` excludes what was read from and written to the cache, `Usage` includes it; output
    includes thinking in both (https://platform.claude.com/docs/en/build-with-claude/prompt-caching). A counter without
    a field of its own is in `extra`, under its dotted name.
    """
    flat = dict(_flat(counters))
    read, written = (whole(flat.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    uncached, output = whole(flat.get("input_tokens")), whole(flat.get("output_tokens"))
    total_input = None if uncached is None else uncached + (read or 0) + (written or 0)
    return Usage(
        input_tokens=total_input,
        output_tokens=output,
        cached_input_tokens=read,
        cache_write_input_tokens=written,
        reasoning_tokens=whole(flat.get("output_tokens_details.thinking_tokens")),
        total_tokens=None if total_input is None or output is None else total_input + output,
        total_cost=amount(flat.get("cost")),  # of a gateway
        tool_usage={name.removeprefix(_TOOLS): count for name, count in flat.items() if name.startswith(_TOOLS)},
        extra={name: count for name, count in flat.items() if name not in _FIELDS and not name.startswith(_TOOLS)},
    )


_TOOLS = "server_tool_use."
_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens_details.thinking_tokens",
    "cost",
)


def _flat(counters: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, count in counters.items():
        if isinstance(count, dict):
            yield from _flat(cast(dict[str, Any], count), f"{prefix}{name}.")
        elif count is not None:
            yield f"{prefix}{name}", count
