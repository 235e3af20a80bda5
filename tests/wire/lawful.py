"""What every decoder of the project keeps, as one check over a response's events."""

from __future__ import annotations

from collections.abc import Sequence

from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, MessageCompleted, ToolCallDelta


def lawful(events: Sequence[Event]) -> None:
    """Asserts that one response's events are lawful, see ``operators.verify``, and no call's delta is empty."""
    errors: list[Exception] = []
    from_iterable(events).pipe(ops.verify()).subscribe(on_error=errors.append)
    assert not errors, errors[0]
    assert isinstance(events[-1], MessageCompleted | ErrorEvent)
    assert all(event.arguments_delta for event in events if isinstance(event, ToolCallDelta))
