"""Tell the blocks of a response apart."""

from __future__ import annotations

from collections.abc import Reversible

from rxllm.events import Event

BlockKey = tuple[type[Event], str | None]
"""The class of a block's deltas, and its id."""


def block_key(kind: type[Event], id: str | None, open_blocks: Reversible[BlockKey]) -> BlockKey:
    """Return the key of the block that an event belongs to; the id None means the latest of its kind that is open.

    >>> from rxllm import TextDelta, ThinkingDelta
    >>> block_key(TextDelta, None, [(TextDelta, "a"), (TextDelta, "b"), (ThinkingDelta, "c")])[1]
    'b'

    None stays None if no block of the kind is open: then one begins.
    """
    if id is None:
        for key in reversed(open_blocks):
            if key[0] is kind:
                return key
    return kind, id
