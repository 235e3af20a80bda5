"""Cards, which collect a stream's items into a form that a screen can draw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from rxllm.collector import StreamCollector, with_partial_step
from rxllm.display._words import Look, change_texts, duration, ending, thinking_text
from rxllm.events import (
    EVENT_CLASSES,
    AskUserRequested,
    ChatCompleted,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    Nested,
    RawChunk,
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
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.values import (
    ChatResult,
    FilePart,
    ImagePart,
    Message,
    ProviderPart,
    Response,
    SourcePart,
    TextPart,
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallPart,
    Usage,
)

NOTHING: Any = object()
"""The `value` of a card that has not received a value yet."""

EVENTS = frozenset(EVENT_CLASSES)
_DELTAS = frozenset((TextDelta, ThinkingDelta))
_CALLS = frozenset((ToolCallStarted, ToolCallDelta, ToolCallCompleted))
_WRITTEN = _DELTAS | _CALLS | {TextCompleted, ThinkingCompleted, SourceAdded, FileAdded}
_TOOLS = _CALLS | {ToolResultEncoded, AskUserRequested, StepCompleted, ChatCompleted}

End = Literal["done", "stopped", "failed"]
SILENCE_SECONDS = 3.0
"""After this many seconds without an event, the card shows how long the stream has been silent."""


class Run(msgspec.Struct, frozen=True):
    """The execution of a tool call. `waits` is True while the call is waiting for approval. Times are in seconds."""

    name: str
    arguments: Mapping[str, Any]
    started: float | None = None
    ended: float | None = None
    waits: bool = False
    progress: Any = None
    error: Exception | None = None


class ToolRow(msgspec.Struct, frozen=True):
    """A tool call with its state and result.

    If the tool is an agent, `rows` contains the agent's rows, and `facts` contains the agent's models and usage.
    `result` is None if the result would only repeat the agent's text.
    """

    call: ToolCall
    state: Literal["arguments", "called", "waiting", "needed", "running", "done", "failed", "stopped"]
    seconds: float | None = None
    progress: Any = None
    result: str | None = None
    error: Exception | None = None
    rows: tuple[Row, ...] = ()
    facts: tuple[str, ...] = ()

    @property
    def arguments(self) -> str:
        """The arguments received so far, as JSON."""
        return self.call.raw_arguments or json.dumps(self.call.arguments, ensure_ascii=False, default=str)

    @property
    def description(self) -> str:
        """The state of the call and how long the tool has run, such as ``running 1.5 s``."""
        states = {"arguments": "…", "waiting": "waits for approval", "needed": "needs a result"}
        state = states.get(self.state, self.state)
        return state if self.seconds is None else f"{state} {duration(self.seconds)}"


class Note(msgspec.Struct, frozen=True):
    """A note to the user. If `error` is set, the error is shown instead of `text`."""

    text: str
    error: Exception | None = None


class Correction(msgspec.Struct, frozen=True):
    """A message that the user sent to steer an answer in progress."""

    text: str
    used: bool


Row = TextPart | ThinkingPart | SourcePart | FilePart | ImagePart | ToolRow | Note | Correction


class Card(msgspec.Struct, frozen=True):
    """The state of one stream on a screen.

    `first` is when the first token arrived, and `latest` is when the latest event arrived. `writing` is when the
    current response began, and `wrote` is how many seconds the earlier responses took. `hidden` is the estimated number
    of tokens in a thought that is in progress but not shown, or None. `agents` maps tool call ids to the agents' cards.
    `steered` contains the user's corrections, each with the number of steps before it.

    >>> card = Card(begun=0.0).add(TextDelta("Hel"), 0.5).add(TextDelta("lo"), 1.0)
    >>> rows_and_status(card, 1.0)
    ([TextPart(text='Hello')], ['streaming', '1.0 s', '0.50 s to the first token'])
    """

    begun: float
    state: StreamCollector = msgspec.field(default_factory=lambda: StreamCollector(Thread()))
    runs: Mapping[str, Run] = {}
    agents: Mapping[str, Card] = {}
    steered: tuple[tuple[int, Steered], ...] = ()
    first: float | None = None
    latest: float | None = None
    writing: float | None = None
    wrote: float = 0.0
    hidden: int | None = None
    restarted: str = ""
    has_events: bool = False
    has_tools: bool = False
    value: Any = NOTHING
    end: End | None = None
    ended: float | None = None
    error: Exception | None = None

    def add(self, item: Any, now: float) -> Card:
        """Return a card that includes `item`, which is an event or a value."""
        if type(item) not in EVENTS:
            return msgspec.structs.replace(self, value=item)
        state = self.state.apply_event(item)
        hidden = _hidden(self.hidden, item)
        if self.writing is not None and type(item) in _DELTAS:
            return msgspec.structs.replace(self, state=state, latest=now, hidden=hidden)
        return msgspec.structs.replace(
            _update_times(self, item, now),
            state=state,
            runs=_update_runs(self.runs, item, now),
            agents=_update_agents(self.agents, item, now),
            steered=(*self.steered, (len(state.steps), item)) if type(item) is Steered else self.steered,
            latest=now,
            hidden=hidden,
            has_events=True,
            has_tools=self.has_tools or type(item) in _TOOLS,
        )

    def finish(self, end: End, now: float, error: Exception | None = None) -> Card:
        """Return a card that shows that the stream has ended."""
        agents = {id: agent if agent.end else agent.finish(end, now) for id, agent in self.agents.items()}
        return msgspec.structs.replace(self, end=end, ended=now, error=error, agents=agents)

    @property
    def has_value(self) -> bool:
        """Whether the stream emits values rather than events."""
        return self.value is not NOTHING

    @property
    def look(self) -> Look:
        return _look_and_words(self)[0]

    @property
    def ticks(self) -> bool:
        """Whether the card shows a time that is still increasing."""
        return self.end is None and not self.has_value and _ending(self) is None

    @property
    def result(self) -> Any:
        """The latest value if the stream emits values, or else the result of the events so far."""
        state = self.state
        if self.has_value:
            return self.value
        if state.chat_result is not None:
            return state.chat_result
        if state.steps and state.length:  # the chat was cut off after its first step
            return with_partial_step(state, state.to_chat_result())
        return state.steps[-1] if state.steps else state.to_response()


def _update_times(card: Card, event: Event, now: float) -> Card:
    first, writing, wrote, restarted = card.first, card.writing, card.wrote, card.restarted
    if isinstance(event, MessageCompleted | ErrorEvent | StepRestarted):
        writing, wrote = None, _seconds_writing(card, now)
        restarted = event.reason if isinstance(event, StepRestarted) else restarted
    elif type(event) in _WRITTEN:
        first, writing = now if first is None else first, now if writing is None else writing
    return msgspec.structs.replace(card, first=first, writing=writing, wrote=wrote, restarted=restarted)


def _hidden(tokens: int | None, event: Event) -> int | None:
    """Return the estimated length of the hidden thought that is in progress after `event`."""
    if type(event) is ThinkingDelta and event.estimated_tokens is not None:
        return (tokens or 0) + event.estimated_tokens
    return tokens if type(event) in (UsageUpdated, RawChunk, Nested) else None


def _seconds_writing(card: Card, now: float) -> float:
    return card.wrote + (now - card.writing if card.writing is not None else 0.0)


def _update_runs(runs: Mapping[str, Run], event: Event, now: float) -> Mapping[str, Run]:
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


def _update_agents(agents: Mapping[str, Card], event: Event, now: float) -> Mapping[str, Card]:
    match event:
        case Nested(path=(id, *path)):
            inner = Nested(tuple(path), event.event) if path else event.event
            return {**agents, id: (agents.get(id) or Card(now)).add(inner, now)}
        case ToolExecutionCompleted(id=id, error=error) if id in agents:
            return {**agents, id: agents[id].finish("failed" if error else "done", now)}
        case _:
            return agents


def rows_and_status(card: Card, now: float) -> tuple[list[Row], list[str]]:
    """Return the card's rows and the parts of its status line."""
    responses = responses_of(card)
    return [row for step in rows_by_step(card, responses, now) for row in step], _status(card, responses, now)


def responses_of(card: Card) -> list[Response[Any]]:
    """Return the response of each step. The last response may be partial."""
    # Right after a step, `to_response` still returns that step's response.
    return [step.response for step in card.state.steps] + ([card.state.to_response()] if card.state.length else [])


def rows_by_step(card: Card, responses: list[Response[Any]], now: float) -> list[list[Row]]:
    """Return the rows of each step. Resumed calls appear in the first step."""
    messages = [response.message or Message("assistant") for response in responses]
    called = {call.id for message in messages for call in message.tool_calls}
    # To find the calls and the answers, all events are scanned. This is needed only if the chat has tools.
    streaming: Mapping[str, ToolCall] = card.state.current_tool_calls if card.has_tools else {}
    answers = _answers(card) if card.has_tools else {}
    resumed = {id: ToolCall(id, run.name, dict(run.arguments)) for id, run in card.runs.items()}

    def row(call: ToolCall) -> ToolRow:
        found = _tool_row(card, call, answers.get(call.id), call.id not in called, now)
        agent = card.agents.get(call.id)
        return found if agent is None else _with_agent(found, agent, now)

    def corrections(number: int) -> Iterator[Correction]:
        return (Correction(event.message.text, event.used) for steps, event in card.steered if steps == number)

    first: list[Row] = [row(call) for id, call in resumed.items() if id not in called and id not in streaming]
    first += [Note(f"started again: {card.restarted}")] if card.restarted else []
    steps = [[*rows_of(message, row), *corrections(number)] for number, message in enumerate(messages, 1)] or [[]]
    steps[0] = first + steps[0]
    steps[-1] += [*(row(call) for id, call in streaming.items() if id not in called), *_last_rows(card)]
    return steps


def rows_of(message: Message, row: Callable[[ToolCall], Row]) -> Iterator[Row]:
    """Yield the rows of a message, with ``row(call)`` for each tool call. Calls without a `ToolCallPart` are last."""
    calls = {call.id: call for call in message.tool_calls}
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            if part.id in calls:
                yield row(calls.pop(part.id))
        elif not isinstance(part, ProviderPart):
            yield part
    yield from map(row, calls.values())


def _answers(card: Card) -> dict[str | None, str]:
    messages = [*(message for step in card.state.steps for message in step.tool_results), *card.state.tool_results]
    return {message.tool_call_id: content_of(message) for message in messages}


def content_of(message: Message) -> str:
    content: Any = message.content
    return json.dumps(content, ensure_ascii=False, default=str) if isinstance(content, dict) else message.text


def _last_rows(card: Card) -> Iterator[Row]:
    halt = card.state.halt if card.has_tools else None
    steps, result = card.state.steps, card.state.chat_result
    question = halt.question if isinstance(halt, AskUserRequested) else result.pending_question if result else None
    question = question or (steps[-1].metadata.get("pending_question") if steps else None)
    if question:
        yield TextPart(question)
    error = card.error or card.state.error
    if error is not None and all(str(error) != str(run.error) for run in card.runs.values()):
        yield Note("", error)


def _with_agent(row: ToolRow, agent: Card, now: float) -> ToolRow:
    chat, responses = agent.state.chat_result, responses_of(agent)
    rows = (inner for step in rows_by_step(agent, responses, now) for inner in step)
    waits = chat is not None and chat.halted_reason == "approval" and row.state in ("running", "stopped")
    is_shown = bool(responses) and row.result == responses[-1].output_text
    return msgspec.structs.replace(
        row,
        state="waiting" if waits else row.state,
        seconds=None if waits else row.seconds,
        result=None if is_shown else row.result,
        rows=tuple(inner for inner in rows if row.error is None or not isinstance(inner, Note) or inner.error is None),
        facts=(*_models(responses), *usage_texts(_used(agent))),
    )


def _tool_row(card: Card, call: ToolCall, answer: str | None, is_open: bool, now: float) -> ToolRow:
    run = card.runs.get(call.id)
    if run is None:
        pending = () if card.state.chat_result is None else card.state.chat_result.pending_tool_calls
        unanswered = "needed" if any(call.id == other.id for other in pending) else "called"
        return ToolRow(call, "arguments" if is_open else unanswered if answer is None else "done", result=answer)
    seconds = (run.ended or card.ended or now) - run.started if run.started is not None else None
    if run.ended is not None:
        return ToolRow(call, "failed" if run.error else "done", seconds, None, answer, run.error)
    if run.waits:
        return ToolRow(call, "waiting")
    return ToolRow(call, "stopped" if card.end else "running", seconds, run.progress)


def _status(card: Card, responses: list[Response[Any]], now: float) -> list[str]:
    usage = _own_usage(card)
    texts = [_look_and_words(card)[1], duration(_seconds(card, now))]
    if card.ticks and card.latest and now - card.latest >= SILENCE_SECONDS and not (_running(card) or _waits(card)):
        texts.append(f"silent for {duration(now - card.latest)}")
    texts.append(", ".join(_models(responses)))
    texts += [f"{card.first - card.begun:.2f} s to the first token"] if card.first is not None else []
    wrote = _seconds_writing(card, card.ended or now)
    texts += [f"{usage.output_tokens / wrote:,.0f} tokens/s"] if usage.output_tokens and wrote >= 0.001 else []
    texts += dict.fromkeys(text for answer in responses for text in change_texts(answer.metadata))
    return [text for text in [*texts, *usage_texts(_used(card))] if text]


def _seconds(card: Card, now: float) -> float:
    """Return the stream's duration so far, in seconds."""
    end = now if card.ticks else card.ended if card.end in ("stopped", "failed") else card.latest
    return (end or card.ended or card.begun) - card.begun


def _models(responses: list[Response[Any]]) -> list[str]:
    return list(dict.fromkeys(response.model for response in responses if response.model))


def _own_usage(card: Card) -> Usage:
    return sum((step.response.usage for step in card.state.steps), card.state.usage)


def _used(card: Card) -> Usage:
    """Return the total usage of the card and all its agents."""
    return sum(map(_used, card.agents.values()), _own_usage(card))


def usage_texts(usage: Usage) -> list[str]:
    """Return the number of tokens and the cost as text. Numbers that are not known are left out."""
    tokens = [f"{usage.total:,} tokens"] if usage.total else []
    return tokens + ([f"cost {usage.total_cost:.4g}"] if usage.total_cost is not None else [])


def _look_and_words(card: Card) -> tuple[Look, str]:
    return _ending(card) or _activity(card)


def _ending(card: Card) -> tuple[Look, str] | None:
    """Return the look and the status text of a stream that has ended, or None if it is still running."""
    state = card.state
    if card.end == "stopped":
        return "stopped", "stopped"
    if card.error or state.error:
        return "failed", "failed"
    if state.chat_result is not None:
        return chat_ending(state.chat_result)
    if state.done or card.end or (state.finish_reason and not card.runs):
        halted = state.steps[-1].metadata.get("halted_reason") if state.steps else None
        return ending(halted or state.finish_reason)
    return None


def chat_ending(chat: ChatResult) -> tuple[Look, str]:
    """Return the look and the status text of a chat that has ended.

    If the chat is completed, both depend on how its last response ended.
    """
    last = chat.final_response
    return ending(last.finish_reason if last is not None and chat.halted_reason == "completed" else chat.halted_reason)


def _activity(card: Card) -> tuple[Look, str]:
    if _waits(card):
        return "waiting", "waiting for approval"
    if card.has_tools and isinstance(card.state.halt, AskUserRequested):
        return ending("ask_user")
    if running := _running(card):
        return "running", f"running {', '.join(running)}"
    if card.first is None and not card.has_value:
        return "running", "waiting for the first token"
    if card.hidden is not None:
        return "running", thinking_text(card.hidden)
    return "running", "streaming" if card.writing is not None else "waiting for the model"


def _running(card: Card) -> list[str]:
    return list(dict.fromkeys(run.name for run in card.runs.values() if run.started is not None and run.ended is None))


def _waits(card: Card) -> bool:
    is_open = card.end is None
    return is_open and (any(run.waits for run in card.runs.values()) or any(map(_waits, card.agents.values())))


def truncate(text: str, width: int) -> str:
    """Return `text`. If it is longer than `width` characters, shorten it to that length with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
