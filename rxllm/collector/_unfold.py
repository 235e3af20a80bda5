"""Convert the current step of a state to the shortest list of events that restores it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, cast

import msgspec

from rxllm.collector._message import Blocks, Summary, check_delta, complete, restart_step, without_faults
from rxllm.collector._step import Executions, unfold_executions
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.values import Usage


def unfold(log: list[Event], summary: Summary, executions: Executions) -> list[Event]:
    """Return the events of the current step in order of first appearance.

    * All deltas of a block or call are merged into a single delta, which precedes the completion of the block or call.
    * Malformed events are omitted, and so are deltas that contradict the completion.
    * Tool executions follow the message.
    """
    if summary.fresh:
        return []
    events = without_faults(_blocks_and_calls, log)
    completed = [place for place, event in enumerate(events) if isinstance(event, MessageCompleted)]
    begun = len(events) if any(isinstance(event, MessageStarted) for event in events) else 0  # 0 in a resumed chat
    behind = completed[-1] + 1 if completed else begun
    events[behind:behind] = unfold_executions(executions)
    end = completed[-1] if completed else len(events)
    folded = reduce(complete, (event for event in events if isinstance(event, MessageCompleted)), restart_step(summary))
    if summary.error is not None and (summary.error, summary.finish_reason) != (folded.error, folded.finish_reason):
        # The error for an unknown tool precedes the tool executions. Any other error is the last event.
        behind = end + 1 if summary.error.reason == "unknown_tool" else len(events)
        events.insert(behind, ErrorEvent(summary.error))
    if summary.usage != Usage():
        events.insert(end, UsageUpdated(summary.usage))
    if not events and summary.steps:  # the step was restarted
        return [StepRestarted("", 1)]
    return events


class _Call(msgspec.Struct):
    id: str
    delta_first: bool = False  # True if a delta arrived before the start of the call
    pieces: list[str] = msgspec.field(default_factory=list[str])
    started: ToolCallStarted | None = None
    completed: ToolCallCompleted | None = None

    def add(self, event: ToolCallStarted | ToolCallCompleted) -> None:
        if isinstance(event, ToolCallCompleted):
            self.completed = event
        else:
            self.started = self.started or event

    def delta(self) -> list[Event]:
        text = "".join(self.pieces) if self.completed is None else self.completed.raw_arguments
        return [ToolCallDelta(self.id, text)] if text or self.delta_first else []

    def events(self) -> list[Event]:
        delta = self.delta() if self.started and not self.delta_first else []
        return [event for event in (self.started, *delta, self.completed) if event is not None]


def _blocks_and_calls(log: Iterable[Event]) -> list[Event]:
    blocks = Blocks()
    calls: dict[str, _Call] = {}
    kind, id, pieces = None, None, list[str]()  # the block of the latest delta
    for event in log:
        if type(event) is TextDelta or type(event) is ThinkingDelta:
            if kind is not type(event) or event.id != id:
                kind, id = type(event), event.id
                check_delta(event, event.delta)
                pieces = blocks.pieces(kind, id)
            pieces.append(event.delta)
            continue
        if isinstance(event, ToolCallDelta):
            _add_delta(blocks, calls, event)
            continue
        kind = None
        match event:
            case TextCompleted():
                blocks.complete(TextDelta, event.id, event)
            case ThinkingCompleted():
                blocks.complete(ThinkingDelta, event.id, event)
            case ToolCallStarted() | ToolCallCompleted():
                call = calls.setdefault(event.id, _Call(event.id))
                call.add(event)
                blocks.mark((_Call, event.id), call)
            case _:
                blocks.add(event)
    return [event for key, value in blocks.items() for event in _events(key, value)]


def _add_delta(blocks: Blocks, calls: dict[str, _Call], event: ToolCallDelta) -> None:
    call = calls.get(event.id)
    if call is None:
        check_delta(event, event.arguments_delta)
        call = calls[event.id] = _Call(event.id, delta_first=True)
        blocks.mark((ToolCallDelta, event.id), call)
    call.pieces.append(event.arguments_delta)


def _events(key: Any, value: Any) -> list[Event]:
    match key:
        case (cls, id) if cls is TextDelta or cls is ThinkingDelta:
            return _block(cls, id if isinstance(id, str) else None, value)
        case (cls, _) if cls is ToolCallDelta:
            return value.delta()
        case (cls, _) if cls is _Call:
            return value.events()
        case _:
            return [cast(Event, value)]


def _block(
    kind: type[TextDelta | ThinkingDelta], id: str | None, block: list[str] | TextCompleted | ThinkingCompleted
) -> list[Event]:
    if isinstance(block, list):
        return [kind("".join(block), id)]
    delta = [kind(block.text, id)] if block.text else []
    return [*delta, block if block.id == id else msgspec.structs.replace(block, id=id)]
