"""The frames of the Messages API as types, as far as they are read, and what is in their usage.

Types are as wide as the servers make them: fields that nobody reads are not here, and cost nothing.
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
    """What a ``content_block_delta`` or a ``message_delta`` adds: no two of them have a field of one name."""

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
    """An event of the stream, or (of a server that does not stream) the message itself."""

    type: str | None = None
    index: int = 0
    delta: Delta | None = None
    content_block: dict[str, Any] | None = None
    message: MessageFrame | None = None
    context_management: dict[str, Any] | None = None
    error: Any = None


def to_usage(counted: Mapping[str, Any]) -> Usage:
    """The counters of a ``usage`` object.

    Theirs is input beside what was read from and written to the cache; ours is all of it. Output includes thinking in
    both (https://platform.claude.com/docs/en/build-with-claude/prompt-caching). What has no field of its own is in
    `extra`, by its dotted name.
    """
    flat = {name: held for name, held in _flat(counted) if not name.startswith(_TOOLS)}
    read, written = (whole(flat.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    uncached, given = whole(flat.get("input_tokens")), whole(flat.get("output_tokens"))
    taken = None if uncached is None else uncached + (read or 0) + (written or 0)
    return Usage(
        input_tokens=taken,
        output_tokens=given,
        cached_input_tokens=read,
        cache_write_input_tokens=written,
        reasoning_tokens=whole(flat.get("output_tokens_details.thinking_tokens")),
        total_tokens=None if taken is None or given is None else taken + given,
        total_cost=amount(flat.get("cost")),  # a gateway's word
        tool_usage={name.removeprefix(_TOOLS): held for name, held in _flat(counted) if name.startswith(_TOOLS)},
        extra={name: held for name, held in flat.items() if name not in _USAGE},
    )


_TOOLS = "server_tool_use."

_USAGE = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens_details.thinking_tokens",
    "cost",
)


def _flat(counted: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, held in counted.items():
        if isinstance(held, dict):
            yield from _flat(cast(dict[str, Any], held), f"{prefix}{name}.")
        elif held is not None:
            yield f"{prefix}{name}", held
