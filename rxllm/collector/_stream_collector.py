"""`StreamCollector`, the state of a fold over events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rxllm.collector._event_faults import event_fault
from rxllm.collector._message import (
    DELTAS,
    Summary,
    apply_to_summary,
    begin_step,
    complete,
    fold_calls,
    fold_message,
    restart_step,
)
from rxllm.collector._step import (
    Executions,
    agent_usage,
    answer,
    execute,
    halt_metadata,
    halted_by,
    is_unfinished,
    pending_calls,
    tool_message,
    with_agents,
)
from rxllm.collector._unfold import unfold
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    PartAdded,
    RawChunk,
    SourceAdded,
    Steered,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolResultEncoded,
    current_form,
)
from rxllm.values import (
    ChatResult,
    FinishReason,
    LLMError,
    Message,
    Response,
    StepResult,
    StreamError,
    Thread,
    ToolCall,
    Usage,
)
from rxllm.values.drawing import drawn

_LOGGED = frozenset(
    {
        MessageStarted,
        TextDelta,
        TextCompleted,
        ThinkingDelta,
        ThinkingCompleted,
        ToolCallStarted,
        ToolCallDelta,
        ToolCallCompleted,
        SourceAdded,
        FileAdded,
        PartAdded,
        MessageCompleted,
        ToolResultEncoded,
        ToolHalt,
        AskUserRequested,
    }
)

_DONE = ("stop", "length", "content_filter", "error", "other")


class StreamCollector(msgspec.Struct, frozen=True, eq=False, repr_omit_defaults=True):
    """The state of a fold over events.

    >>> from reactivex import from_iterable
    >>> events = from_iterable([TextDelta("hel"), TextDelta("lo")])
    >>> events.scan(StreamCollector.apply_event, StreamCollector()).run().current_text
    'hello'

    Start with ``StreamCollector()``, or ``StreamCollector(thread)`` for a step or a chat.
    """

    thread: Thread | None = None
    log: list[Event] = msgspec.field(default_factory=list[Event])
    length: int = 0
    summary: Summary = Summary()
    executions: Executions = {}

    def apply_event(self, event: Event) -> StreamCollector:
        """Return the state after `event`. A malformed event changes nothing.

        Raises ``TypeError`` if raw usage has unknown keys. It raises no other error.
        """
        summary = self.summary
        if type(event) not in DELTAS or summary.fresh:
            if type(event) is RawChunk:
                event = current_form(event)
            if event_fault(event) is not None:
                return self
            if type(event) not in _LOGGED:
                return self._apply_other(event)
            if summary.fresh:
                summary = msgspec.structs.replace(summary, fresh=False)
            if type(event) is MessageCompleted:
                summary = complete(summary, event)
        log, length = self.log, self.length
        if len(log) != length:
            log = log[:length]
        log.append(event)
        return StreamCollector(self.thread, log, length + 1, summary, self.executions)

    def _apply_other(self, event: Event) -> StreamCollector:
        match event:
            case StepCompleted(result=result):
                events = (*self._unfolded(), event)
                return StreamCollector(result.thread, [], 0, begin_step(self.summary, result, events))
            case StepRestarted():
                return StreamCollector(self.thread, [], 0, restart_step(self.summary))
            case Steered():
                thread = self.thread + event.message if self.thread is not None and event.used else self.thread
                summary = msgspec.structs.replace(self.summary, past=(*self.summary.past, (event,)))
                return StreamCollector(thread, self.log, self.length, summary, self.executions)
            case Nested() | ToolExecutionStarted() | ToolExecutionCompleted():
                executions = execute(self.executions, event, StreamCollector())
                if executions is self.executions:
                    return self
                summary = msgspec.structs.replace(self.summary, fresh=False) if self.summary.fresh else self.summary
                return StreamCollector(self.thread, self.log, self.length, summary, executions)
            case _:
                changed = apply_to_summary(self.summary, event)
                if changed is self.summary:
                    return self
                return StreamCollector(self.thread, self.log, self.length, changed, self.executions)

    def apply_deltas(self, deltas: Sequence[TextDelta | ThinkingDelta | ToolCallDelta]) -> StreamCollector:
        """Return the state after all `deltas`."""
        if self.summary.fresh:
            deltas = [delta for delta in deltas if event_fault(delta) is None]
        if not deltas:
            return self
        log = self.log if len(self.log) == self.length else self.log[: self.length]
        log.extend(deltas)
        summary = msgspec.structs.replace(self.summary, fresh=False) if self.summary.fresh else self.summary
        return StreamCollector(self.thread, log, self.length + len(deltas), summary, self.executions)

    @property
    def message(self) -> Message:
        """The part of the current message that has arrived so far."""
        return fold_message(self.log[: self.length])

    @property
    def current_text(self) -> str:
        """The text of the current message so far."""
        return self.message.text

    @property
    def current_tool_calls(self) -> Mapping[str, ToolCall]:
        """The current tool calls by id, including unfinished ones."""
        return fold_calls(self.log[: self.length])

    @property
    def tool_call_order(self) -> tuple[str, ...]:
        return tuple(self.current_tool_calls)

    @property
    def last_message(self) -> Message | None:
        """The step's completed message, if any."""
        completed = (event for event in reversed(self.log[: self.length]) if isinstance(event, MessageCompleted))
        return next((event.message for event in completed), None)

    @property
    def last_response(self) -> Response[Any] | None:
        """The response of the last completed step."""
        return self.summary.steps[-1].response if self.summary.steps else None

    @property
    def steps(self) -> tuple[StepResult, ...]:
        return self.summary.steps

    @property
    def tool_results(self) -> tuple[Message, ...]:
        messages = map(tool_message, self.log[: self.length])
        return tuple(message for message in messages if message is not None)

    @property
    def halt(self) -> ToolHalt | AskUserRequested | None:
        """The step's first event that halts the chat, if any."""
        halts = (event for event in self.log[: self.length] if isinstance(event, ToolHalt | AskUserRequested))
        return next(halts, None)

    @property
    def usage(self) -> Usage:
        """The usage of the current step."""
        return self.summary.usage

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.summary.finish_reason

    @property
    def raw_finish_reason(self) -> str | None:
        return self.summary.raw_finish_reason

    @property
    def error(self) -> LLMError | None:
        return self.summary.error

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.summary.metadata

    @property
    def chat_result(self) -> ChatResult | None:
        return self.summary.chat_result

    @property
    def done(self) -> bool:
        return self.summary.chat_result is not None

    def to_response(self) -> Response[Any]:
        """Return the current step's response so far.

        After a step has completed, return that step's response until the next step begins or fails.
        """
        summary = self.summary
        if summary.fresh:
            return summary.steps[-1].response
        message = self.message
        calls = pending_calls(message)
        wins = summary.finish_reason in ("length", "content_filter", "error")
        return Response(
            message=message,
            output_text=message.text,
            tool_calls=calls,
            finish_reason=summary.finish_reason if wins or not calls else "tool_calls",
            raw_finish_reason=summary.raw_finish_reason,
            usage=summary.usage,
            error=summary.error if summary.finish_reason == "error" else None,
            id=message.metadata.get("id"),
            model=message.metadata.get("model"),
            metadata=dict(summary.metadata),
        )

    def to_step_result(self) -> StepResult:
        """Return the step so far, or the step that just ended.

        Raises the same error as `to_chat_result`.
        """
        if self.summary.fresh:
            return self.summary.steps[-1]
        thread = self._thread("to_step_result")
        response = self.to_response()
        halt = self.halt
        order = {call.id: place for place, call in enumerate(response.tool_calls)}
        results = tuple(sorted(self.tool_results, key=lambda result: order.get(result.tool_call_id or "", len(order))))
        step = StepResult(
            thread=thread + answer(response) + results,
            response=response,
            tool_results=results,
            done=halt is not None or (response.finish_reason in _DONE and not is_unfinished(response)),
            metadata=halt_metadata(halt),
        )
        return self.with_agents(step)

    def with_agents(self, step: StepResult) -> StepResult:
        """Return `step` with the usage of its agents added.

        If agents are waiting for the caller, their pending tool calls and their first question are also added.
        """
        return with_agents(step, self.executions)

    def to_chat_result(self) -> ChatResult:
        """Return the chat's result, or the result so far.

        A partial result's `halted_reason` is ``cancelled``, unless an error or an operator sets a different reason. If
        there is no initial thread, the result's thread is empty until a step completes. Raises
        ``StreamError("truncated")`` if there is neither a thread nor an event.
        """
        if self.chat_result is not None:
            return self.chat_result
        return ChatResult(
            thread=self._thread("to_chat_result"),
            final_response=self.steps[-1].response if self.steps else self.to_response(),
            steps=self.steps,
            halted_reason=halted_by(self.error) if self.error is not None else self._halted_reason(),
            usage=sum((step.usage for step in self.steps), self.usage + agent_usage(self.executions)),
            error=self.error,
            metadata=dict(self.metadata),
        )

    def _thread(self, function: str) -> Thread:
        if self.thread is not None:
            return self.thread
        if self == StreamCollector():
            message = f"no event has arrived, and there is no thread to start from; write {function}(thread)"
            raise StreamError("truncated", message)
        return Thread()

    def _halted_reason(self) -> str:
        reason = self.metadata.get("halted_reason")  # set if an operator cut off the stream
        return reason if isinstance(reason, str) else "cancelled"

    def to_events(self) -> list[Event]:
        """Return the shortest valid list of events that folds to this state.

        >>> deltas = [TextDelta("hel"), TextDelta("lo")]
        >>> StreamCollector().apply_deltas(deltas).to_events()
        [TextDelta(delta='hello', id=None)]

        To restore the state, fold the events into ``StreamCollector(thread)``, with the thread that this state began
        with. After a completed step, ``StreamCollector()`` is enough. Open blocks and calls stay open, so the stream
        can continue.

        * A block becomes at most a delta and a completion.
        * A tool call becomes a start, a delta and a completion.
        * A response adds its start, its last usage and its end.
        * An agent's events are unfolded inside its tool call.

        Whatever the fold does not keep is left out, such as restarted steps, tool progress, raw frames and `Custom`
        events.
        """
        past = [event for step in self.summary.past for event in step]
        chat = [] if self.chat_result is None else [ChatCompleted(self.chat_result, self.summary.unparsed)]
        return [*past, *self._unfolded(), *chat]

    def _unfolded(self) -> list[Event]:
        return unfold(self.log[: self.length], self.summary, self.executions)

    def _compared(self) -> tuple[Any, ...]:
        from_log = (self.message, self.current_tool_calls, self.last_message, self.tool_results, self.halt)
        executed = {id: events for id, entry in self.executions.items() if (events := entry.to_events(id))}
        return (self.thread, *from_log, self.summary, executed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamCollector) and self._compared() == other._compared()

    def __ne__(self, other: object) -> bool:  # Struct's own __ne__ compares by identity
        return not self == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Any, ...]:
        return (StreamCollector, (self.thread, self.log[: self.length], self.length, self.summary, self.executions))

    def __repr__(self) -> str:
        return f"StreamCollector({self.current_text!r}, {self.finish_reason}, {len(self.steps)} steps)"

    _repr_html_ = drawn
