"""What the operators take: events."""

from __future__ import annotations

from typing import Any

from rxllm.events import EVENT_CLASSES
from rxllm.values import StreamError

EVENTS = frozenset[type[Any]](EVENT_CLASSES)


def no_event(operator: str, item: Any) -> StreamError:
    """The error for an `item` that is none of the `EVENTS` that `operator` takes; it may be secret: it is not shown."""
    hint = "put it behind stream(...) or the like, and before text(), which makes something else of the events"
    return StreamError("malformed_event", f"{operator}() takes events, and got a {type(item).__name__}: {hint}")
