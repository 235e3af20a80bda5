"""What every decoder of the project keeps, as checks over a response's events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallDelta,
)
from rxllm.testing.event_checks import fold

OF_BLOCKS = (TextDelta, TextCompleted, ThinkingDelta, ThinkingCompleted)


def lawful(events: Sequence[Event]) -> None:
    """Asserts that one response's events are lawful, see ``operators.verify``, and every block has an id.

    No call's delta is empty.
    """
    errors: list[Exception] = []
    from_iterable(events).pipe(ops.verify()).subscribe(on_error=errors.append)
    assert not errors, errors[0]
    assert isinstance(events[-1], MessageCompleted | ErrorEvent)
    assert all(event.arguments_delta for event in events if isinstance(event, ToolCallDelta))
    assert all(event.id for event in events if isinstance(event, OF_BLOCKS))


def apart(events: Sequence[Event]) -> None:
    """Asserts that no two blocks of a response share an id, and that it reads the same without ids."""
    ids = [event.id for event in events if isinstance(event, TextCompleted | ThinkingCompleted)]
    assert len(set(ids)) == len(ids), ids
    assert fold(map(anonymous, events)) == fold(events)


def anonymous(event: Event) -> Event:
    """The event without its block's id, as recordings of earlier versions have it."""
    return msgspec.structs.replace(event, id=None) if isinstance(event, OF_BLOCKS) else event
