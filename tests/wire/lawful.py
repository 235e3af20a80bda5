"""What every adapter keeps, as one check over a response's events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rxllm.collector import fold_message, is_server
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)

DELTAS = (TextDelta, ThinkingDelta, ToolCallDelta)
COMPLETED = {TextDelta: TextCompleted, ThinkingDelta: ThinkingCompleted}


def lawful(events: Sequence[Event]) -> None:
    """Asserts the order of events, that what is opened is closed, and that deltas and completions say the same."""
    check_bookends(events)
    for kind in COMPLETED:
        check_blocks(events, kind)
    check_calls(events)
    check_message(events)
    usages = [event.usage for event in events if isinstance(event, UsageUpdated)]
    assert all(a != b for a, b in pairwise(usages)), "usage is said once per change"


def check_bookends(events: Sequence[Event]) -> None:
    kinds = [type(event) for event in events]
    assert kinds[0] is MessageStarted
    assert kinds.count(MessageStarted) == 1
    assert kinds[-1] in (MessageCompleted, ErrorEvent)
    assert kinds.count(MessageCompleted) + kinds.count(ErrorEvent) == 1


def check_blocks(events: Sequence[Event], kind: type[Event]) -> None:
    pieces: list[str] = []
    opened = False
    for event in events:
        if isinstance(event, kind):
            pieces.append(event.delta)
            opened = True
        elif isinstance(event, COMPLETED[kind]):
            assert event.text == "".join(pieces)
            pieces, opened = [], False
        elif isinstance(event, (TextDelta, ThinkingDelta, ToolCallStarted, MessageCompleted, ErrorEvent)):
            assert not opened, f"a block is still open at {event}"


def check_calls(events: Sequence[Event]) -> None:
    opened: dict[str, ToolCallStarted] = {}
    pieces: dict[str, list[str]] = {}
    completed: list[str] = []
    for event in events:
        match event:
            case ToolCallStarted():
                assert event.id
                assert event.id not in opened
                opened[event.id], pieces[event.id] = event, []
            case ToolCallDelta():
                assert event.id not in completed
                assert event.arguments_delta
                pieces[event.id].append(event.arguments_delta)
            case ToolCallCompleted():
                assert event.id not in completed
                assert event.name == opened[event.id].name
                assert event.raw_arguments == "".join(pieces[event.id])
                assert isinstance(event.arguments, dict)
                completed.append(event.id)
            case _:
                pass
    assert set(opened) == set(completed), "every call is completed"


def check_message(events: Sequence[Event]) -> None:
    message = fold_message(events)
    assert fold_message([event for event in events if not isinstance(event, DELTAS)]) == message
    terminal = events[-1]
    if isinstance(terminal, MessageCompleted):
        assert terminal.message == message
        clients = [call for call in message.tool_calls if not is_server(call)]
        assert not clients or terminal.finish_reason in ("tool_calls", "length", "content_filter", "error")
