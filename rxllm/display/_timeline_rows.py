"""Fold timed events into the rows of a timeline.

=======================  =========================================================================================
event                    effect on the rows
=======================  =========================================================================================
a step's first event     adds a step with a ``waiting`` bar, which begins where the previous step ended
content                  ends the bar, and begins a ``thinking``, ``text`` or ``call`` bar; a ``text`` bar has a
                         tick for each delta
`MessageCompleted`       ends the bar; its notes on retries, races and fallbacks add ``lost`` bars or rows; sets the
                         step's `change` and `loss`
`ErrorEvent`             ends the bar, sets the step's `error`, and adds a ``failed`` bar
`StepRestarted`          makes all bars of the step ``lost``; the next event adds a new step
approval is requested    adds a tool with an ``approval`` bar
a tool starts            ends the ``approval`` bar, and begins a ``tool`` bar
a tool ends              ends the ``tool`` bar, and makes it ``failed`` if the tool failed
an agent's event         has the same effects on the rows below the agent's tool
=======================  =========================================================================================

All times are in seconds since the start of the run. `UsageUpdated` and `StepCompleted` set a step's `usage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec

from rxllm.display._words import change_texts, count
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    SourceAdded,
    Steered,
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
    UsageUpdated,
)
from rxllm.values import StreamError, Usage

Kind = Literal["waiting", "thinking", "text", "call", "approval", "tool", "failed", "lost"]

_CONTENT: dict[type[Any], Kind | None] = {
    TextDelta: "text",
    TextCompleted: "text",
    ThinkingDelta: "thinking",
    ThinkingCompleted: "thinking",
    ToolCallStarted: "call",
    ToolCallDelta: "call",
    ToolCallCompleted: "call",
    SourceAdded: None,  # None means that the current bar continues
    FileAdded: None,
    PartAdded: None,
}

_NOTES = ("race", "hedge", "fallback", "retry")
"""The metadata keys that may contain a note about lost attempts, from the outermost operator to the innermost."""


_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class _Loss(msgspec.Struct, frozen=True):
    name: str
    began: _Seconds
    ended: _Seconds
    error: str | None = None


class _Note(msgspec.Struct, frozen=True):
    """A note about lost attempts; see ``ops.timed``."""

    began: _Seconds = 0.0
    lost: tuple[_Loss, ...] = ()
    winner: int | None = None
    answered_by: str | None = None


class _Gap(msgspec.Struct, frozen=True):
    """A period during which the connection was lost; see ``ops.timed``."""

    before: _Seconds
    seconds: _Seconds
    error: str = ""


class Bar(msgspec.Struct):
    """A bar in a row. `end` is None while the bar is growing. `ticks` are the times when deltas or progress arrived.

    `tokens` is how much the model has thought without showing it, as an estimate.
    """

    kind: Kind
    start: float
    end: float | None = None
    title: str = ""
    ticks: list[float] = msgspec.field(default_factory=list[float])
    tokens: int = 0


class Row(msgspec.Struct):
    """A row of a timeline: a step, a tool, a lost attempt or a labelled stream.

    `first` is when a step's first token arrived. `note` adds a detail, such as why the chat was halted. `change` is
    the first change at the beginning of a step's request. `loss` is what the request lost: cached tokens and thoughts.
    """

    kind: Literal["step", "tool", "lost", "stream"]
    name: str
    start: float
    about: str = ""
    bars: list[Bar] = msgspec.field(default_factory=list[Bar])
    rows: list[Row] = msgspec.field(default_factory=lambda: list[Row]())
    first: float | None = None
    end: float | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    model: str | None = None
    note: str = ""
    change: str = ""
    loss: str = ""
    error: str = ""

    @property
    def seconds(self) -> float | None:
        """The number of seconds from start to end, or None if the row has not ended."""
        return None if self.end is None else self.end - self.start

    @property
    def ttft(self) -> float | None:
        """The number of seconds from the start of the step to its first token."""
        return None if self.first is None else self.first - self.start

    @property
    def tokens_per_second(self) -> float | None:
        """The number of output tokens per second, from the first token to the end of the step."""
        if self.first is None or self.end is None or self.end - self.first < 0.001:
            return None
        return (self.usage.output_tokens or 0) / (self.end - self.first) or None

    def total(self) -> Usage:
        """Return the total usage of this row and the rows below it, not counting restarted steps."""
        if self.kind == "step" and self.is_lost:
            return Usage()
        return sum((row.total() for row in self.rows), self.usage)

    @property
    def is_lost(self) -> bool:
        return bool(self.bars) and all(bar.kind == "lost" for bar in self.bars)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Row]]:
        """Yield a (depth, row) pair for this row and for each row below it."""
        yield depth, self
        for row in [*self.rows]:
            yield from row.walk(depth + 1)


class Lane:
    """Folds the events of a chat into `rows`. The chat began at `since`.

    Each agent's events are folded by an inner lane.
    """

    def __init__(self, rows: list[Row], since: float) -> None:
        self.rows = rows
        self.is_chat = False
        self.result: Any = None
        self.error = ""
        self._since = since
        self._latest = since  # when the latest content arrived
        self._step: Row | None = None
        self._bar: Bar | None = None  # the step's latest bar, while that bar is still growing
        self._tools: dict[str, Row] = {}
        self._agents: dict[str, Lane] = {}
        self._number = 1
        self._notes: list[tuple[str, _Note]] = []
        self._cached: dict[str | None, int] = {}  # by model: the cached input tokens of its latest call

    @property
    def ticks(self) -> list[float] | None:
        """The ticks of the text bar that is still growing, or None if no text bar is growing.

        A caller may append the time of a delta to this list instead of calling `add`.
        """
        return self._bar.ticks if self._bar is not None and self._bar.kind == "text" else None

    def add(self, event: Event, at: float) -> None:
        if self.ticks:
            self._latest = self.ticks[-1]
        if type(event) in _CONTENT:
            self._write(event, at)
            return
        match event:
            case MessageStarted(message=message):
                if self._step is not None and self._step.end is not None:  # there was no ``StepCompleted``
                    self._close_step(at)
                step = self._open_step()
                step.model = message.metadata.get("model") or step.model
            case UsageUpdated(usage=usage):
                self._open_step().usage = usage
            case MessageCompleted(metadata=metadata):
                step = self._open_step()
                self._end_bar(at)
                step.end = at
                self._add_change(step, metadata)
                self._add_notes(step, metadata)
                _add_gaps(step, metadata, at)
            case ErrorEvent(error=error):
                self.fail(at, error)
            case StepRestarted(reason=reason):
                self._restart(reason)
            case StepCompleted(result=result):
                self._complete_step(at, result)
            case ChatCompleted(result=result):
                self.is_chat, self.result = True, result
                self.error = "" if result.error is None else message_of(result.error)
            case Nested(path=(id, *path), event=inner):
                self._agent(id, at).add(Nested(tuple(path), inner) if path else inner, at)
            case Steered(message=message, used=used):
                step = self._step or (self.rows[-1] if self.rows else self._open_step())
                step.note = f"steered: {message.text}" if used else f"not used: {message.text}"
            case _:
                self._run_tool(event, at)

    def _write(self, event: Event, at: float) -> None:
        kind = _CONTENT[type(event)]
        step, bar = self._open_step(), self._bar
        self._latest = at
        if step.first is None:
            step.first = at
        if bar is None or (bar.kind == "waiting" and kind is None) or (kind is not None and bar.kind != kind):
            self._end_bar(at)
            bar = self._bar = Bar(kind or "text", at)
            step.bars.append(bar)
        if type(event) is TextDelta:
            bar.ticks.append(at)
        elif type(event) is ThinkingDelta and event.estimated_tokens:
            bar.tokens += event.estimated_tokens
            bar.title = f"about {count(bar.tokens, 'token')}"

    def _open_step(self) -> Row:
        if self._step is None:
            self._bar = Bar("waiting", self._since)
            name = f"step {self._number}" if self.is_chat else "response"
            self._step = Row("step", name, self._since, bars=[self._bar])
            self.rows.append(self._step)
        return self._step

    def _end_bar(self, at: float) -> None:
        if self._bar is not None:
            self._bar.end = at
            self._bar = None

    def _add_change(self, step: Row, metadata: Mapping[str, Any]) -> None:
        usage, cached = step.usage, ""
        if usage.input_tokens is not None:
            before, now = self._cached.get(step.model, 0), usage.cached_input_tokens or 0
            self._cached[step.model] = now
            cached = f"cached {before:,} → {now:,} tok" if now < before else ""
        step.change, left_out = change_texts(metadata)
        step.loss = joined(cached, left_out)
        step.bars[0].title = joined(step.change, step.loss)

    def _add_notes(self, step: Row, metadata: Mapping[str, Any]) -> None:
        """Add the lost attempts that the notes in `metadata` describe."""
        notes = [*_notes_in(metadata)]
        if notes == self._notes:
            return
        self._notes = notes
        base, waiting = step.start, step.bars[0]
        for name, note in notes:
            lost = [Bar("lost", base + loss.began, base + loss.ended, loss.error or "disposed") for loss in note.lost]
            if name == "retry":  # attempts do not overlap, so one row is enough
                waits = [Bar("waiting", bar.end or 0.0, after.start) for bar, after in pairwise(lost)]
                step.bars[:0] = sorted([*lost, *waits], key=lambda bar: bar.start)
                waiting.start = (lost[-1].end if lost else None) or base
                return
            for bar, loss in zip(lost, note.lost, strict=True):
                step.rows.append(Row("lost", loss.name, bar.start, name, [bar], end=bar.end, error=loss.error or ""))
            waiting.start = base = base + note.began
            step.about = note.answered_by or f"stream {note.winner}"

    def _restart(self, reason: str) -> None:
        step = self._open_step()
        self.finish(self._latest)
        self._tools.clear()
        self._agents.clear()
        for bar in step.bars:
            bar.kind, bar.title = "lost", reason
        step.end, step.error, step.first = self._latest, reason, None
        self._since, self._step = self._latest, None

    def _complete_step(self, at: float, result: Any) -> None:
        self.is_chat = True
        if self._step is not None:
            self._step.name = f"step {self._number}"
            self._step.usage = result.response.usage
            self._step.model = result.response.model or self._step.model
        self._close_step(at)

    def _close_step(self, at: float) -> None:
        self.finish(at)
        self._number += self._step is not None
        self._since, self._step = at, None
        self._tools.clear()
        self._agents.clear()

    def fail(self, at: float, error: Exception) -> None:
        """End the step's open bar, and add a ``failed`` bar for `error`."""
        step = self._open_step()
        self._end_bar(at)
        step.end = step.end or at
        step.error = self.error = message_of(error)
        step.bars.append(Bar("failed", at, at, step.error))
        self._since = at

    def _run_tool(self, event: Event, at: float) -> None:
        match event:
            case ToolApprovalRequested(id=id, name=name, arguments=arguments):
                self._tool(id, name, arguments, at).bars.append(Bar("approval", at))
            case ToolExecutionStarted(id=id, name=name, arguments=arguments):
                row = self._tool(id, name, arguments, at)
                _end_last(row, at)
                row.bars.append(Bar("tool", at))
            case ToolProgress(id=id, name=name):
                row = self._tool(id, name, {}, at)
                if row.bars:
                    row.bars[-1].ticks.append(at)
            case ToolExecutionCompleted(id=id, name=name, error=error):
                row = self._tool(id, name, {}, at)
                row.bars = row.bars or [Bar("tool", at)]
                _end_last(row, at)
                row.end = at
                if error is not None:
                    row.error = row.bars[-1].title = message_of(error)
                    row.bars[-1].kind = "failed"
                if id in self._agents:
                    self._agents[id].finish(at)
            case AskUserRequested(tool_call_id=id, tool_name=name, question=question):
                self._tool(id, name, {}, at).note = f"asks: {question}"
            case ToolHalt(tool_call_id=id, reason=reason):
                if id in self._tools:
                    self._tools[id].note = f"halted the chat: {reason}"
            case _:
                pass

    def _tool(self, id: str, name: str, arguments: Mapping[str, Any], at: float) -> Row:
        row = self._tools.get(id)
        if row is None:
            about = str(next(iter(arguments.values()), ""))
            row = self._tools[id] = Row("tool", name, at, about)
            (self.rows if self._step is None else self._step.rows).append(row)
        return row

    def _agent(self, id: str, at: float) -> Lane:
        if id not in self._agents:
            row = self._tool(id, "agent", {}, at)
            self._agents[id] = Lane(row.rows, row.bars[-1].start if row.bars else at)
        return self._agents[id]

    def finish(self, at: float) -> None:
        """End the bars that are still growing."""
        if self._step is not None:
            self._end_bar(at)
            self._step.end = self._step.end or at
        for row in self._tools.values():
            if row.bars and row.bars[-1].kind == "approval":
                row.note = row.note or "not answered"
            _end_last(row, at)
            row.end = row.end or at
        for agent in self._agents.values():
            agent.finish(at)


def _notes_in(metadata: Mapping[str, Any]) -> Iterator[tuple[str, _Note]]:
    for name in _NOTES:
        if name in metadata:
            with suppress(msgspec.ValidationError):  # a provider's own metadata
                yield name, msgspec.convert(metadata[name], _Note)


def _add_gaps(step: Row, metadata: Mapping[str, Any], at: float) -> None:
    """Split the bars of `step` where the connection was lost.

    In each gap, `before` is the number of seconds from the start of the gap to the time `at`.
    """
    try:
        gaps = msgspec.convert(metadata.get("reattached", ()), tuple[_Gap, ...])
    except msgspec.ValidationError:  # a provider's own metadata
        return
    for gap in gaps:
        began = max(at - gap.before, step.start)
        bars: list[Bar] = []
        for bar in step.bars:
            bars += _split(bar, began, min(began + gap.seconds, at))
        lost = Bar("lost", began, min(began + gap.seconds, at), f"re-attached: {gap.error}")
        step.bars[:] = sorted([*bars, lost], key=lambda bar: bar.start)


def _split(bar: Bar, began: float, ended: float) -> Iterator[Bar]:
    """Yield the parts of `bar` before `began` and after `ended`."""
    end = ended if bar.end is None else bar.end
    if bar.start < began:
        yield Bar(bar.kind, bar.start, min(end, began), bar.title, [tick for tick in bar.ticks if tick <= began])
    if ended < end:
        ticks = [tick for tick in bar.ticks if tick > began]  # no content arrives during a gap
        yield Bar(bar.kind, max(bar.start, ended), end, bar.title, ticks)


def _end_last(row: Row, at: float) -> None:
    if row.bars and row.bars[-1].end is None:
        row.bars[-1].end = at


def joined(*texts: str) -> str:
    """Return the texts that are not empty, with dots between them."""
    return " · ".join(filter(None, texts))


def message_of(error: Exception) -> str:
    """Return a short message for `error`, or ``stopped`` if the stream was cancelled."""
    if isinstance(error, StreamError) and error.reason == "cancelled":
        return "stopped"
    text: str = getattr(error, "message", None) or str(error) or type(error).__name__
    return text.partition("\n")[0]
