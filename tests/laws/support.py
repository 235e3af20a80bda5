"""What the tests of laws share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from hypothesis import settings

import rxllm
from rxllm import Engine, RetryPolicy
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.collector.event_rules import EventRules
from rxllm.events import (
    Event,
    Nested,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
)
from rxllm.runtime import Stream
from rxllm.values import Thread, user
from tests.examples import examples
from tests.laws import scripts
from tests.laws.scripts import fake

law = settings(deadline=None, max_examples=examples(100))


AT_ONCE = RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0)


def engine(script: list[list[Any]]) -> Engine:
    return Engine(fake(script), tools=tuple(scripts.TOOLS), retry=AT_ONCE)


def outcome(source: Stream[Any]) -> Any:
    """The last item, or the error."""
    try:
        return source.run()
    except Exception as error:
        return error if isinstance(error, rxllm.LLMError) else repr(error)


def events_of(source: Stream[Event]) -> list[Event]:
    """All events; a raised error is one too, so that failing streams can be compared."""
    return list(source.pipe(ops.errors_as_events()))


def unordered(events: list[Event]) -> list[str]:
    """Tools run at once, so the events of several come in any order."""
    return sorted(map(repr, events))


THREAD = Thread((user("Hi"),))


DELTAS = (TextDelta, ThinkingDelta, ToolCallDelta)


def fold(events: Sequence[Event], state: StreamCollector | None = None) -> StreamCollector:
    return reduce(StreamCollector.apply_event, events, StreamCollector(THREAD) if state is None else state)


def check_laws(events: Sequence[Event], cut: int, *, lawful: bool = True) -> list[Event]:
    """Check both laws at `cut`, and return the unfolded state."""
    before, rest = events[:cut], events[cut:]
    state = fold(before)
    unfolded = state.to_events()
    again = fold(unfolded)
    assert again == state
    assert again.to_events() == unfolded
    assert fold(rest, again) == fold(events)
    assert projections(fold(rest, again)) == projections(fold(events))
    if lawful:
        check_lawful([*unfolded, *rest])
        assert len(unfolded) <= length_bound(before)
    return unfolded


def projections(state: StreamCollector) -> Any:
    return state.to_response(), state.to_step_result(), state.to_chat_result(), state.to_events()


def check_lawful(events: Sequence[Event]) -> None:
    rules = EventRules()
    for event in events:
        rules.feed(event)


def length_bound(events: Sequence[Event]) -> int:
    """As many as there are without deltas, and one delta for each block and call; the fold keeps one usage a step."""
    owned = [(event.path, event.event) if isinstance(event, Nested) else ((), event) for event in events]
    others = [event for _, event in owned if not isinstance(event, DELTAS)]
    blocks = {(path, type(event), event.id) for path, event in owned if isinstance(event, DELTAS)}
    completed = sum(isinstance(event, TextCompleted | ThinkingCompleted | ToolCallCompleted) for event in others)
    return len(others) + len(blocks) + completed
