"""Join adjacent deltas of the same block or tool call, for a consumer that is behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxllm.events import Event, ToolCallDelta
from rxllm.operators._shared.event_operators import DELTAS


def text_of(event: Any) -> str | None:
    """Return the text of a delta; None for anything else, which is never joined."""
    if type(event) not in DELTAS:
        return None
    return event.arguments_delta if type(event) is ToolCallDelta else event.delta


def continues(last: Any, delta: Any) -> bool:
    """Whether `delta` belongs to the same block or tool call as `last`, the event before it."""
    return type(last) is type(delta) and last.id == delta.id


def joined(event: Any, texts: Iterable[str]) -> Event:
    """Return a delta like `event` with all of `texts`."""
    text = "".join(texts)
    return ToolCallDelta(event.id, text) if type(event) is ToolCallDelta else type(event)(text, event.id)
