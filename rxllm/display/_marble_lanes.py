"""The lanes, subscriptions and marks of a marble diagram."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from rxllm.display._card import truncate
from rxllm.events import EVENT_CLASSES, Nested, Steered, UsageUpdated
from rxllm.values import Labelled, Timed, ToolCall, Usage

MAX_LANES, MAX_ROWS, MAX_MARKS = 30, 12, 4000
"""The maximum number of lanes, of subscriptions per lane, and of marks per subscription."""

MAX_LABEL = 80
"""The maximum length of a label, in characters."""

UNUSED = "unused"
"""The outcome of a lane that was never subscribed to."""

QUIET = ("start", "complete")
"""The kinds of marks that only show that something began or completed. These marks have no label."""

_KINDS = {
    "MessageStarted": ("start", "start"),
    "MessageCompleted": ("complete", "end"),
    "TextDelta": ("text", "delta"),
    "TextCompleted": ("complete", "text"),
    "ThinkingDelta": ("thinking", "delta"),
    "ThinkingCompleted": ("complete", "text"),
    "ToolCallStarted": ("start", "name"),
    "ToolCallDelta": ("arguments", "arguments_delta"),
    "ToolCallCompleted": ("tool call", "tool_call"),
    "ToolApprovalRequested": ("question", "approve?"),
    "ToolExecutionStarted": ("start", "run"),
    "ToolProgress": ("tool output", "data"),
    "ToolExecutionCompleted": ("tool output", "result"),
    "ToolResultEncoded": ("complete", "content"),
    "AskUserRequested": ("question", "question"),
    "ToolHalt": ("tool output", "reason"),
    "StepRestarted": ("restart", "reason"),
    "StepCompleted": ("complete", "step"),
    "ChatCompleted": ("complete", "chat"),
    "ErrorEvent": ("error event", "error"),
    "RawChunk": ("value", "data"),
    "Custom": ("value", "name"),
}
"""The kind and the label of each event class. If the label is the name of a field, the field's value is shown."""


class Mark(NamedTuple):
    """The mark for one item, or for `size` items that arrived between the times `at` and `until`.

    Equal items have the same `key`. `content` is the label without agent and stream names, and determines the
    mark's colour. `detail` is the item's repr, cut to `MAX_LABEL`.
    """

    at: float
    until: float
    kind: str
    label: str
    content: str
    detail: str
    key: int
    size: int = 1


@dataclass
class Span:
    """A subscription and its marks. `outcome` is the kind of its final `Trace`, or None while it is still running."""

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
                self.marks = join_marks(self.marks, (at - self.start) * 4 / MAX_MARKS, MAX_MARKS // 2)
        elif kind != "subscribe":
            self.error = mark_of(item, at) if kind == "error" else None
            self.outcome = kind


class Lane:
    """A place in a pipe. It has one span for each subscription.

    `is_operator` is True if the label is the source code of an operator.
    """

    def __init__(self, label: str, is_operator: bool = False) -> None:
        self.label = truncate(label, MAX_LABEL)
        self.is_operator = is_operator
        self.spans: list[Span] = []
        self.hidden = 0

    def begin(self, at: float) -> Span:
        span = Span(at, at)
        if len(self.spans) < MAX_ROWS:
            self.spans.append(span)
        else:
            self.hidden += 1
        return span


class Row(NamedTuple):
    """A row of the diagram. Each row shows one subscription to a lane. A lane's first row has the `number` 1."""

    lane: Lane
    number: int
    span: Span

    @property
    def title(self) -> str:
        return self.lane.label if self.number == 1 else self.ordinal

    @property
    def ordinal(self) -> str:
        return f"{self.number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(self.number, 'th') }"

    @property
    def note(self) -> str:
        """The text that is shown below a lane's last row if some of the lane's subscriptions are hidden."""
        return f"and {self.lane.hidden} more" if self.number == MAX_ROWS and self.lane.hidden else ""


def rows_of(lanes: Sequence[Lane]) -> list[Row]:
    """Return the rows of `lanes`. The spans are copied because they may still change."""
    return [
        Row(lane, number, replace(span, marks=list(span.marks)))
        for lane in lanes[:MAX_LANES]
        for number, span in enumerate(lane.spans[:] or [Span(0.0, 0.0, UNUSED)], 1)
    ]


def join_marks(marks: Iterable[Mark], gap: float, most: int) -> list[Mark]:
    """Join marks of the same kind if they are at most `gap` apart.

    If more than `most` marks remain, also join marks of different kinds.
    """
    result: list[Mark] = []
    for mark in marks:
        last = result[-1] if result else mark
        if result and mark.at - last.until <= gap and (last.kind == mark.kind or not most):
            kind = last.kind if last.kind == mark.kind else "several"
            result[-1] = last._replace(until=mark.until, kind=kind, size=last.size + mark.size)
        else:
            result.append(mark)
    return join_marks(result, gap, 0) if 0 < most < len(result) else result


def mark_of(item: Any, at: float) -> Mark:
    try:
        (kind, names, label), detail = _describe(item), repr(item)
    except Exception:  # a property or the repr of a user's class raised an error
        kind, names, label, detail = "value", "", type(item).__name__, object.__repr__(item)
    whole = truncate(names + label, MAX_LABEL)
    return Mark(at, at, kind, whole, truncate(label, MAX_LABEL), truncate(detail, MAX_LABEL), hash(detail))


def _describe(item: Any) -> tuple[str, str, str]:
    """Return an item's kind, the names of the agents or streams that emitted it, and its label."""
    if isinstance(item, Labelled):
        labelled = cast(Labelled[Any], item)
        kind, names, label = _describe(labelled.item)
        return kind, f"{labelled.label}: {names}", label
    if isinstance(item, Timed):
        timed = cast(Timed[Any], item)
        kind, names, label = _describe(timed.item)
        return kind, f"{timed.at:.6g} s: {names}", label
    if isinstance(item, Nested):
        kind, names, label = _describe(item.event)
        return kind, f"{'/'.join(item.path)}: {names}", label
    if isinstance(item, Steered):
        return "text", "", item.message.text
    if isinstance(item, UsageUpdated):
        return _describe(item.usage)
    if isinstance(item, Usage):
        cost = "" if item.total_cost is None else f", ${item.total_cost:g}"
        return "usage", "", f"{item.input_tokens} + {item.output_tokens} tokens{cost}"
    if isinstance(item, BaseException):
        return "error", "", getattr(item, "reason", type(item).__name__)
    name, field = _KINDS.get(type(item).__name__, ("value", ""))
    if type(item) not in EVENT_CLASSES or not field:
        name = "text" if isinstance(item, str) else "tool call" if isinstance(item, ToolCall) else "value"
        return name, "", item if isinstance(item, str) else repr(item)
    error = getattr(item, "error", None)
    value = getattr(item, field, field) if error is None else _describe(error)[2]
    return name, "", value if isinstance(value, str) else repr(value)


UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))

TICKS = (
    *(factor * 10.0**power for power in range(-4, 0) for factor in (1, 2, 2.5, 5)),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 18_000.0, 43_200.0),
    *(86_400.0 * 10**power for power in range(6)),
)
"""The possible intervals between the labels on a time axis, in seconds."""


def time_label(value: float) -> str:
    """Format a time in the largest unit that keeps it short and exact.

    >>> [time_label(value) for value in (0, 0.05, 0.5, 90, 3600)]
    ['0', '50 ms', '0.5 s', '90 s', '1 h']
    """
    if 0 < value < 0.1:
        return f"{value * 1000:g} ms"
    unit, size = next(((unit, size) for unit, size in UNITS if value and value % size == 0), ("s", 1))
    return f"{value / size:g} {unit}" if value else "0"


def describe(row: Row) -> str:
    """Describe a row in a sentence for screen readers."""
    span = row.span
    parts = [f"{mark.kind} {mark.label!r} at {time_label(mark.at)}" for mark in span.marks[:MAX_ROWS]]
    if len(span.marks) > MAX_ROWS:
        parts.append(f"{len(span.marks) - MAX_ROWS} more marks")
    error = "" if span.error is None else f" with {span.error.label}"
    ends = {"end": "completes", "error": f"fails{error}", "dispose": "is cut", None: "is running"}
    parts.append(f"{ends.get(span.outcome, 'has no subscription')} at {time_label(span.latest)}")
    return f"{row.title}, from {time_label(span.start)}: {', '.join(parts)}."
