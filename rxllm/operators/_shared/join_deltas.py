"""Join adjacent deltas of one block or tool call, and adjacent strings, for a consumer that is behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxllm.events import Nested, ToolCallDelta
from rxllm.operators._shared.event_operators import DELTAS


def text_of(item: Any) -> str | None:
    """Return the text of a delta, or the string itself; None for anything else, which is never joined."""
    if type(item) is Nested:
        return text_of(item.event)
    if type(item) in DELTAS:
        return item.arguments_delta if type(item) is ToolCallDelta else item.delta
    return item if type(item) is str else None


def continues(last: Any, item: Any) -> bool:
    """Whether `item`, which has a text, belongs to the same block or tool call as `last`, the one before it."""
    if type(last) is not type(item):
        return False
    if type(item) is Nested:
        return last.path == item.path and continues(last.event, item.event)
    return type(item) is str or last.id == item.id


def joined(item: Any, texts: Iterable[str]) -> Any:
    """Return an item like `item` with all of `texts`."""
    if type(item) is Nested:
        return Nested(item.path, joined(item.event, texts))
    text = "".join(texts)
    if type(item) is str:
        return text
    return ToolCallDelta(item.id, text) if type(item) is ToolCallDelta else type(item)(text, item.id)
