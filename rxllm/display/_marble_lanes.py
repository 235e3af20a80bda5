"""What happened in each lane of a marble diagram: its subscriptions, and their marks by kind and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from rxllm.events import EVENT_CLASSES, Nested, Steered
from rxllm.values import Labelled

MAX_SPANS, MAX_MARKS = 200, 4000
"""How many subscriptions a lane keeps, and how many marks each of them; of more, near ones are joined."""

Kind = tuple[str, bool]
"""What a mark stands for, as the legend calls it, and whether that is complete: drawn as an outline."""

_KINDS = {
    "MessageStarted": ("message", False, "start"),
    "MessageCompleted": ("message", True, "end"),
    "TextDelta": ("text", False, "delta"),
    "TextCompleted": ("text", True, "text"),
    "ThinkingDelta": ("thinking", False, "delta"),
    "ThinkingCompleted": ("thinking", True, "text"),
    "ToolCallStarted": ("tool call", False, "name"),
    "ToolCallDelta": ("tool call", False, "arguments_delta"),
    "ToolCallCompleted": ("tool call", True, "tool_call"),
    "ToolApprovalRequested": ("tool", False, "approve?"),
    "ToolExecutionStarted": ("tool", False, "run"),
    "ToolProgress": ("tool", False, "data"),
    "ToolExecutionCompleted": ("tool", True, "result"),
    "ToolResultEncoded": ("tool", True, "content"),
    "AskUserRequested": ("tool", True, "question"),
    "ToolHalt": ("tool", True, "reason"),
    "StepRestarted": ("step", False, "restarted"),
    "StepCompleted": ("step", True, "step"),
    "ChatCompleted": ("step", True, "chat"),
    "ErrorEvent": ("error", False, "error"),
    "UsageUpdated": ("value", False, "tokens"),
}
"""The kind of an event by its class, and the field that labels it, or the label."""


class Mark(NamedTuple):
    """An item, or `size` of them from `at` until `until`. `key` is equal for equal items, `detail` their Python."""

    at: float
    until: float
    kind: Kind
    label: str
    detail: str
    key: int
    size: int = 1


@dataclass
class Span:
    """A subscription: its marks, and how it ended, in the words of `Trace`; None while it runs."""

    start: float
    latest: float
    outcome: str | None = None
    error: Mark | None = None
    marks: list[Mark] = field(default_factory=list[Mark])

    def note(self, kind: str, at: float, item: Any) -> None:
        self.latest = at
        if kind == "next":
            self.marks.append(mark_of(item, at))
            if len(self.marks) > MAX_MARKS:
                self.marks = joined(self.marks, (at - self.start) * 4 / MAX_MARKS, MAX_MARKS // 2)
        elif kind != "subscribe":
            self.error = mark_of(item, at) if kind == "error" else None
            self.outcome = kind


class Lane:
    """A place that is watched: each subscription to it is a span."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.spans: list[Span] = []

    def begin(self, at: float) -> Span:
        self.spans = [*self.spans[1 - MAX_SPANS :], Span(at, at)]
        return self.spans[-1]

    def rows(self) -> list[list[Span]]:
        """Return copies of the spans, as they go on meanwhile, in rows: those that overlap have rows of their own."""
        rows: list[list[Span]] = [[]]
        for span in self.spans:
            copy = replace(span, marks=list(span.marks))
            free = (row for row in rows if not row or (row[-1].outcome and row[-1].latest <= span.start))
            row = next(free, None)
            rows.append([copy]) if row is None else row.append(copy)
        return rows


def joined(marks: Iterable[Mark], gap: float, most: int) -> list[Mark]:
    """Join neighbours of one kind that are at most `gap` apart; if more than `most` are left, those of any kind."""
    result: list[Mark] = []
    for mark in marks:
        last = result[-1] if result else mark
        if result and mark.at - last.until <= gap and (last.kind == mark.kind or not most):
            kind = last.kind if last.kind == mark.kind else ("several", False)
            result[-1] = last._replace(until=mark.until, kind=kind, size=last.size + mark.size)
        else:
            result.append(mark)
    return joined(result, gap, 0) if 0 < most < len(result) else result


def mark_of(item: Any, at: float) -> Mark:
    try:
        (kind, label), detail = _described(item), repr(item)
    except Exception:  # of the user's own class
        kind, label, detail = ("value", False), type(item).__name__, object.__repr__(item)
    return Mark(at, at, kind, clipped(label, 40), clipped(detail, 80), hash(detail))


def _described(item: Any) -> tuple[Kind, str]:
    if isinstance(item, Labelled):
        labelled = cast(Labelled[Any], item)
        kind, label = _described(labelled.item)
        return kind, f"{labelled.label}: {label}"
    if isinstance(item, Nested):
        kind, label = _described(item.event)
        return kind, f"{'/'.join(item.path)}: {label}"
    if isinstance(item, Steered):
        return ("message", False), item.message.text
    if isinstance(item, BaseException):
        return ("error", False), getattr(item, "reason", type(item).__name__)
    name, is_complete, field = _KINDS.get(type(item).__name__, ("value", False, ""))
    if type(item) not in EVENT_CLASSES or not field:
        return ("value", False), item if isinstance(item, str) else repr(item)
    error = getattr(item, "error", None)
    value = getattr(item, field, field) if error is None else _described(error)[1]
    return (name, is_complete), value if isinstance(value, str) else repr(value)


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
