"""What goes back of an answer in which another model took over from one that refused.

The server puts a ``fallback`` block where one model's output ends. The blocks before the last one of them are those of
models that refused, and some must not be sent back:

=================================================  ==========================================
block before the last ``fallback``                 sent back
=================================================  ==========================================
``fallback``, ``text``, results of server tools    yes
``thinking``, ``redacted_thinking``,               no
``connector_text``
``tool_use``                                       no, and neither is a ``tool_result`` for it
``server_tool_use``, ``mcp_tool_use``              if its result is there
=================================================  ==========================================

See https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback#continuing-the-conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxllm.adapters.anthropic.frames import CLIENT_CALL, SERVER_CALLS, THOUGHTS
from rxllm.collector import FALLBACK

Block = dict[str, Any]

_LEFT_OUT = (*THOUGHTS, "connector_text", CLIENT_CALL)


def drop_refused(messages: Iterable[list[Block]]) -> None:
    """Remove from the blocks of each message what must not be sent back."""
    refused: set[Any] = set()  # the ids of the calls that have been removed
    for blocks in messages:
        end = max((place for place, block in enumerate(blocks) if block["type"] == FALLBACK), default=0)
        answered = {block.get("tool_use_id") for block in blocks}
        dropped = [block for block in blocks[:end] if _is_left_out(block, answered)]
        refused |= {block["id"] for block in dropped if block["type"] == CLIENT_CALL}
        kept = [block for block in blocks[:end] if not _is_left_out(block, answered)] + blocks[end:]
        blocks[:] = [block for block in kept if block.get("tool_use_id") not in refused]


def _is_left_out(block: Block, answered: set[Any]) -> bool:
    kind = block["type"]
    return kind in _LEFT_OUT or (kind in SERVER_CALLS and block.get("id") not in answered)
