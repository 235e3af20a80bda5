"""Laws of the operators of failure: wherever a lawful response breaks off."""

from __future__ import annotations

from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from reactivex import concat, defer, from_iterable, never, throw
from reactivex.testing import TestScheduler

from rxllm import operators as ops
from rxllm.collector import StreamCollector, innermost
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    StepRestarted,
    TextCompleted,
    ThinkingCompleted,
    ToolCallCompleted,
    ToolExecutionCompleted,
    shows_nothing,
)
from rxllm.runtime import Stream, is_prelude
from rxllm.testing.marbles import record
from rxllm.testing.strategies import lawful_chats, lawful_events
from rxllm.values import AdapterError

DOWN = AdapterError("network_error")


def folded(events: list[Event]) -> Any:
    return Stream.of(from_iterable(events)).pipe(ops.to_response()).run()


def said(make: Any) -> tuple[list[Event], tuple[str, Any]]:
    """The items of ``make()``, in virtual time, and how it ended."""
    *notes, (_, kind, what) = record(TestScheduler(), make)
    return [what for _, _, what in notes], (kind, what)


@given(lawful_events, st.data())
def test_a_response_that_falls_silent_keeps_what_came_and_stays_lawful(
    events: list[Event], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(events) - 1))
    silent = concat(from_iterable(events[:cut]), never())
    seen, end = said(lambda: silent.pipe(ops.time_limits(first=5, idle=5), ops.verify()))
    assert end == ("end", None)
    assert seen[:cut] == events[:cut]
    assert isinstance(seen[-1], ErrorEvent)
    assert folded(seen).output_text == folded(events[:cut]).output_text


@given(lawful_chats, st.data())
def test_a_chat_that_falls_silent_keeps_what_its_agents_have_said_and_stays_lawful(
    events: list[Event], data: st.DataObject
) -> None:
    ends = [0, *(place for place, event in enumerate(events, 1) if isinstance(event, MessageCompleted)), len(events)]
    cut = data.draw(st.integers(1, len(events) - 1).filter(lambda cut: cut not in ends))
    silent = concat(from_iterable(events[:cut]), never())
    seen, end = said(lambda: silent.pipe(ops.time_limits(first=5, idle=5), ops.verify()))
    assert end == ("end", None)
    assert seen[:cut] == events[:cut]
    assert isinstance(seen[-1], ErrorEvent)
    assert all(
        isinstance(innermost(event), TextCompleted | ThinkingCompleted | ToolCallCompleted | ToolExecutionCompleted)
        for event in seen[cut:-1]
    )
    unfolded = reduce(StreamCollector.apply_event, seen, StreamCollector()).to_events()
    assert said(lambda: from_iterable(unfolded).pipe(ops.verify()))[1] == ("end", None)


@given(lawful_events, lawful_events, st.data())
def test_a_response_that_begins_again_folds_to_the_whole_one(
    torn: list[Event], whole: list[Event], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(torn) - 1))
    attempts = iter([concat(from_iterable(torn[:cut]), throw(DOWN)), from_iterable(whole)])
    source = defer(lambda _: next(attempts))
    policy = {"base_delay": 1.0, "retry_on": {"network_error"}}
    seen, end = said(lambda: source.pipe(ops.restart(policy), ops.verify()))
    if all(map(is_prelude, torn[:cut])):
        assert end == ("error", DOWN)
    elif not whole_fails_at_once(whole):
        assert end == ("end", None)
        assert sum(isinstance(event, StepRestarted) for event in seen) == 1
        assert folded(seen) == folded(whole)


@given(lawful_events, lawful_events, st.data())
def test_a_response_that_is_fallen_back_from_leaves_no_trace(
    torn: list[Event], whole: list[Event], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(torn) - 1))
    first = concat(from_iterable(torn[:cut]), throw(DOWN))
    seen, end = said(lambda: first.pipe(ops.fallback(from_iterable(whole)), ops.verify()))
    if all(map(shows_nothing, torn[:cut])):
        assert end == ("end", None)
        assert [bare(event) for event in seen] == whole
    else:
        assert (seen, end) == (torn[:cut], ("error", DOWN))


def whole_fails_at_once(events: list[Event]) -> bool:
    first = next(event for event in events if not is_prelude(event))
    return isinstance(first, ErrorEvent)


def bare(event: Event) -> Event:
    """Without what `fallback` says of itself."""
    if not isinstance(event, MessageCompleted):
        return event
    metadata = {name: held for name, held in event.metadata.items() if name != "fallback"}
    return MessageCompleted(event.message, event.finish_reason, event.raw_finish_reason, metadata)
