"""The frames of the Messages API as types.

The types have only the fields that are read: the others cost nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

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
