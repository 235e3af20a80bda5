"""What happened in each lane of a marble diagram: its subscriptions, and their marks by kind and time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.values import Labelled

MAX_MARKS = 4000
"""How many marks a subscription keeps one by one; then near ones are joined, so that no stream is too long."""

Kind = tuple[str, bool]
"""What a mark stands for, by the names of the legend, and whether that is complete: drawn as an outline."""

MIXED = ("several", False)


class Mark(NamedTuple):
    """An item, or `count` of them from `at` until `until`. `key` is equal for equal items, `detail` their Python."""

    at: float
    until: float
    kind: Kind
    label: str
    detail: str
    key: int
    count: int = 1


class Span:
    """A subscription: its marks, and how it was over: ``"end"``, ``"error"`` or ``"dispose"``; empty while it runs."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.until: float | None = None
        self.outcome = ""
        self.marks: list[Mark] = []
        self.error: Mark | None = None

    def add(self, mark: Mark) -> None:
        self.marks.append(mark)
        if len(self.marks) > MAX_MARKS:
            gap = (mark.at - self.start) / (MAX_MARKS / 4)
            self.marks = joined(self.marks, gap, MAX_MARKS // 2)


class Lane:
    """A place that is watched: each subscription to it is a span."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def watcher(self, now: Callable[[], float]) -> Callable[[str, Any], None]:
        """Return what a new subscription calls with each of its signals; the words are those of `Trace`."""
        span: Span | None = None

        def note(kind: str, item: Any) -> None:
            nonlocal span
            with self._lock:
                at = now()
                if span is None:
                    self._spans.append(span := Span(at))
                if kind == "next":
                    span.add(mark_of(item, at))
                elif kind != "subscribe":
                    span.outcome, span.until = kind, at
                    span.error = mark_of(item, at) if kind == "error" else None

        return note

    def rows(self) -> list[list[Span]]:
        """Return the spans so that those of one row do not overlap: concurrent subscriptions have rows of their own."""
        rows: list[list[Span]] = []
        with self._lock:
            for span in self._spans:
                free = (row for row in rows if row[-1].until is not None and row[-1].until <= span.start)
                row = next(free, None)
                rows.append([span]) if row is None else row.append(span)
        return rows or [[]]


def joined(marks: Iterable[Mark], gap: float, most: int) -> list[Mark]:
    """Join neighbours of one kind that are at most `gap` apart; if more than `most` are left, of any kind."""
    result: list[Mark] = []
    for mark in marks:
        last = result[-1] if result else None
        if last is not None and mark.at - last.until <= gap and (last.kind == mark.kind or most == 0):
            kind = last.kind if last.kind == mark.kind else MIXED
            result[-1] = last._replace(until=mark.until, kind=kind, count=last.count + mark.count)
        else:
            result.append(mark)
    return joined(result, gap, 0) if 0 < most < len(result) else result


def mark_of(item: Any, at: float) -> Mark:
    try:
        (kind, label), detail = describe(item), repr(item)
    except Exception:  # of the user's own class
        kind, label = ("value", False), type(item).__name__
        detail = f"<{label}>"
    return Mark(at, at, kind, clipped(label, 40), clipped(detail, 80), hash(detail))


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


_KINDS: dict[type[Any], tuple[str, bool, str]] = {
    MessageStarted: ("message", False, "start"),
    MessageCompleted: ("message", True, "end"),
    TextDelta: ("text", False, "delta"),
    TextCompleted: ("text", True, "text"),
    ThinkingDelta: ("thinking", False, "delta"),
    ThinkingCompleted: ("thinking", True, "text"),
    ToolCallStarted: ("tool call", False, "name"),
    ToolCallDelta: ("tool call", False, "arguments_delta"),
    ToolCallCompleted: ("tool call", True, "tool_call"),
    ToolApprovalRequested: ("tool", False, "approval?"),
    ToolExecutionStarted: ("tool", False, "run"),
    ToolProgress: ("tool", False, "data"),
    ToolExecutionCompleted: ("tool", True, "result"),
    ToolResultEncoded: ("tool", True, "content"),
    AskUserRequested: ("tool", True, "question"),
    ToolHalt: ("tool", True, "reason"),
    StepRestarted: ("step", False, "again"),
    StepCompleted: ("step", True, "step"),
    ChatCompleted: ("step", True, "chat"),
    ErrorEvent: ("error", False, "error"),
    UsageUpdated: ("value", False, "usage"),
}
"""The kind of an event, and the field that labels it, or the label."""


def describe(item: Any) -> tuple[Kind, str]:
    """Return the kind of an item, and its label."""
    if isinstance(item, BaseException):
        return ("error", False), f"{getattr(item, 'reason', type(item).__name__)}"
    if isinstance(item, Labelled):
        kind, label = describe(item.item)
        return kind, f"{item.label}: {label}"
    name, complete, field = _KINDS.get(type(item), ("value", False, ""))
    error = getattr(item, "error", None) if field else None
    if isinstance(error, BaseException):
        return (name, complete), describe(error)[1]
    value = getattr(item, field, field) if field else item
    return (name, complete), value if isinstance(value, str) else repr(value)
