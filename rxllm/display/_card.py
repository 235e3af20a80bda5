"""Fold a stream to a card: what is shown of it.

What happened is in the collector's state; a card adds what that does not keep: times, running tools, the latest value
of a stream that has no events, and how it ended. `rows` and `status` read both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from rxllm.collector import StreamCollector, with_partial_step
from rxllm.events import (
    EVENT_CLASSES,
    AskUserRequested,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    SourceAdded,
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
    ToolProgress,
)
from rxllm.values import (
    FilePart,
    ImagePart,
    Message,
    SourcePart,
    TextPart,
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallPart,
    Usage,
)

NOTHING: Any = object()
"""The value of a card that has none."""

EVENTS = frozenset(EVENT_CLASSES)
_DELTAS = frozenset((TextDelta, ThinkingDelta, ToolCallDelta))
_WRITTEN = _DELTAS | {TextCompleted, ThinkingCompleted, ToolCallStarted, ToolCallCompleted, SourceAdded, FileAdded}

End = Literal["done", "stopped", "failed"]


class Run(msgspec.Struct, frozen=True):
    """The run of one tool call. `waits` is whether it waits for approval; times are in seconds."""

    name: str
    arguments: Mapping[str, Any]
    started: float | None = None
    ended: float | None = None
    waits: bool = False
    progress: Any = None
    error: Exception | None = None


class ToolRow(msgspec.Struct, frozen=True):
    """A tool call with its run and its result, as far as there are any."""

    call: ToolCall
    state: Literal["arguments", "called", "waiting", "running", "done", "failed", "stopped"]
    seconds: float | None = None
    progress: Any = None
    result: str | None = None
    error: Exception | None = None


class Note(msgspec.Struct, frozen=True):
    """What rxllm says itself."""

    text: str
    error: Exception | None = None


Row = TextPart | ThinkingPart | SourcePart | FilePart | ImagePart | ToolRow | Note


class Card(msgspec.Struct, frozen=True):
    """What is shown of one stream. `begun`, `first` and `writing` are times, `wrote` is a sum of seconds.

    >>> card = Card(begun=0.0).add(TextDelta("Hel"), 0.5).add(TextDelta("lo"), 1.0)
    >>> rows(card, 1.0), status(card, 1.0)
    ([TextPart(text='Hello')], ['streaming', '0.50 s to the first token'])
    """

    begun: float
    state: StreamCollector = msgspec.field(default_factory=lambda: StreamCollector(Thread()))
    runs: Mapping[str, Run] = {}
    first: float | None = None
    writing: float | None = None
    wrote: float = 0.0
    restarted: str = ""
    any_event: bool = False
    value: Any = NOTHING
    end: End | None = None
    ended: float | None = None
    error: Exception | None = None

    def add(self, item: Any, now: float) -> Card:
        """Return the card after `item`: an event, or the next value."""
        if type(item) not in EVENTS:
            return msgspec.structs.replace(self, value=item)
        state = self.state.apply_event(item)
        if self.writing is not None and type(item) in _DELTAS:
            return msgspec.structs.replace(self, state=state)
        return msgspec.structs.replace(
            _timed(self, item, now), state=state, runs=_runs(self.runs, item, now), any_event=True
        )

    def finish(self, end: End, now: float, error: Exception | None = None) -> Card:
        """Return the card as it is left when its stream ends."""
        return msgspec.structs.replace(self, end=end, ended=now, error=error)

    @property
    def has_events(self) -> bool:
        """Whether the card shows events; else it shows a value."""
        return self.value is NOTHING

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come."""
        return self.has_events and not self.any_event

    @property
    def look(self) -> Literal["running", "done", "stopped", "failed"]:
        """How it goes; of several streams, some end before the others."""
        if self.end != "stopped" and (self.error or self.state.error):
            return "failed"
        has_ended = self.state.done or (self.state.finish_reason and not self.runs)
        return self.end or ("done" if has_ended else "running")

    @property
    def ticks(self) -> bool:
        """Whether the card changes while nothing comes: it waits for the first token, or for a tool."""
        waiting = self.first is None and self.has_events
        return self.end is None and (
            waiting or any(run.started is not None and run.ended is None for run in self.runs.values())
        )

    @property
    def result(self) -> Any:
        """The last value, or what the events fold to so far: a `ChatResult`, a `StepResult` or a `Response`."""
        state = self.state
        if not self.has_events:
            return self.value
        if state.chat_result is not None:
            return state.chat_result
        if state.steps and state.length:  # a chat that was cut off in a later step
            return with_partial_step(state, state.to_chat_result())
        return state.steps[-1] if state.steps else state.to_response()


def _timed(card: Card, event: Event, now: float) -> Card:
    first, writing, wrote, restarted = card.first, card.writing, card.wrote, card.restarted
    match event:
        case MessageCompleted() | ErrorEvent() | StepRestarted():
            writing, wrote = None, wrote + (now - writing if writing is not None else 0.0)
            restarted = event.reason if isinstance(event, StepRestarted) else restarted
        case _ if type(event) in _WRITTEN:
            first, writing = now if first is None else first, now if writing is None else writing
        case _:
            pass
    return msgspec.structs.replace(card, first=first, writing=writing, wrote=wrote, restarted=restarted)


def _runs(runs: Mapping[str, Run], event: Event, now: float) -> Mapping[str, Run]:
    match event:
        case ToolApprovalRequested(id=id, name=name, arguments=arguments):
            return {**runs, id: Run(name, arguments, waits=True)}
        case ToolExecutionStarted(id=id, name=name, arguments=arguments):
            return {**runs, id: Run(name, arguments, started=now)}
        case ToolProgress(id=id, name=name, data=data):
            return {**runs, id: msgspec.structs.replace(runs.get(id) or Run(name, {}), progress=data)}
        case ToolExecutionCompleted(id=id, name=name, error=error):
            run = runs.get(id) or Run(name, {})
            return {**runs, id: msgspec.structs.replace(run, ended=now, waits=False, error=error)}
        case _:
            return runs


def rows(card: Card, now: float) -> list[Row]:
    """Return the rows of a card of events, in the order in which they happened."""
    state = card.state
    messages = [step.response.message or Message("assistant") for step in state.steps] + [state.message]
    open_calls = [call for call in state.current_tool_calls.values() if call not in state.message.tool_calls]
    shown = {call.id for message in messages for call in message.tool_calls}
    resumed = [ToolCall(id, run.name, dict(run.arguments)) for id, run in card.runs.items() if id not in shown]
    answers = {m.tool_call_id: m for step in state.steps for m in step.tool_results}
    answers |= {message.tool_call_id: message for message in state.tool_results}

    def row(call: ToolCall, is_open: bool = False) -> ToolRow:
        answer = answers.get(call.id)
        return _tool_row(card, call, None if answer is None else content_of(answer), is_open, now)

    found: list[Row] = [row(call) for call in resumed if call.id not in {call.id for call in open_calls}]
    found += [Note(f"started again: {card.restarted}")] if card.restarted else []
    for message in messages:
        found += rows_of(message, row)
    found += [row(call, is_open=True) for call in open_calls]
    return found + list(_last_rows(card))


def rows_of(message: Message, row: Callable[[ToolCall], Row]) -> Iterator[Row]:
    """Yield the rows of a message, with a `row` for each of its tool calls, in its place or else behind the parts."""
    calls = {call.id: call for call in message.tool_calls}
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            if part.id in calls:
                yield row(calls.pop(part.id))
        elif isinstance(part, TextPart | ThinkingPart | SourcePart | FilePart | ImagePart):
            yield part
    yield from map(row, calls.values())


def _last_rows(card: Card) -> Iterator[Row]:
    halt = card.state.halt
    result = card.state.chat_result
    question = halt.question if isinstance(halt, AskUserRequested) else result.pending_question if result else None
    question = question or (card.state.steps[-1].metadata.get("pending_question") if card.state.steps else None)
    if question:
        yield TextPart(question)
    if (error := card.error or card.state.error) is not None:
        yield Note("", error)


def _tool_row(card: Card, call: ToolCall, answer: str | None, is_open: bool, now: float) -> ToolRow:
    run = card.runs.get(call.id)
    if run is None:
        return ToolRow(call, "arguments" if is_open else "called" if answer is None else "done", result=answer)
    seconds = (run.ended or card.ended or now) - run.started if run.started is not None else None
    if run.ended is not None:
        return ToolRow(call, "failed" if run.error else "done", seconds, None, answer, run.error)
    if run.waits:
        return ToolRow(call, "waiting")
    return ToolRow(call, "stopped" if card.end else "running", seconds, run.progress)


def content_of(message: Message) -> str:
    """Return the text of a tool's message."""
    return str(message.content) if isinstance(message.content, dict) else message.text


def status(card: Card, now: float) -> list[str]:
    """Return the texts of the status line: how it goes, the model, times, tokens, cost."""
    usage = sum((step.response.usage for step in card.state.steps), card.state.usage)
    responses = [step.response for step in card.state.steps] + [card.state.to_response()]
    models = dict.fromkeys(response.model for response in responses if response.model)
    texts = [_state(card, now), ", ".join(models)]
    texts += [f"{card.first - card.begun:.2f} s to the first token"] if card.first is not None else []
    wrote = card.wrote + ((card.ended or now) - card.writing if card.writing is not None else 0.0)
    if usage.output_tokens and wrote >= 0.001:
        texts.append(f"{usage.output_tokens / wrote:,.0f} tokens/s")
    return [text for text in [*texts, *spent(usage)] if text]


def spent(usage: Usage) -> list[str]:
    """Return the tokens and the cost, as far as they are known."""
    tokens = [f"{usage.total:,} tokens"] if usage.total else []
    return tokens + ([f"cost {usage.total_cost:.4g}"] if usage.total_cost is not None else [])


def _state(card: Card, now: float) -> str:
    if card.look == "running":
        return _doing(card, now)
    if card.look != "done":
        return card.look
    result = card.state.chat_result
    reason = None if result is None or result.halted_reason == "completed" else result.halted_reason
    return reason or card.state.to_response().finish_reason or "completed"


def _doing(card: Card, now: float) -> str:
    running = [run.name for run in card.runs.values() if run.started is not None and run.ended is None]
    if running:
        return f"running {', '.join(dict.fromkeys(running))}"
    if any(run.waits for run in card.runs.values()):
        return "waiting for approval"
    if card.first is None and card.has_events:
        return f"waiting for the first token, {now - card.begun:.1f} s"
    return "streaming" if card.writing is not None else "waiting"
