"""AG-UI from other servers: what they leave to be inferred from their frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rxllm import (
    ChatCompleted,
    ChatResult,
    Custom,
    ErrorEvent,
    Event,
    Message,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    Response,
    StepCompleted,
    StepResult,
    StreamError,
    Thread,
    ToolResultEncoded,
    Usage,
    UsageUpdated,
)
from rxllm.web._ag_ui_end import to_usage
from rxllm.web._ag_ui_wire import Wire
from rxllm.web._codec import Frame
from rxllm.web._for_client import ClientFold


class ForeignRun:
    """What other servers do not tell: where a response begins and ends, and what its step and the chat come to."""

    def __init__(self, fold: ClientFold, wire: Wire) -> None:
        self._fold = fold
        self._wire = wire
        self._is_open = False  # a response
        self._is_answered = False  # a call of the response before

    def read(self, kind: str, frame: Frame, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, ToolResultEncoded):
                yield from self._response_end()
                self._is_answered = True
            elif not isinstance(event, Nested | Custom):
                yield from self._response_start()
            yield event
        match kind:
            case "RUN_ERROR":
                yield from self._failed(StreamError("adapter_error", str(frame["message"])))
            case "RUN_FINISHED":
                yield from self._finished(frame)
            case _ if kind.startswith(("STATE_", "ACTIVITY_", "MESSAGES_", "RAW")):
                yield RawChunk(kind, frame)
            case _:
                pass

    def _finished(self, frame: Frame) -> Iterator[Event]:
        outcome = frame.get("outcome") or {"type": "success"}
        usage = to_usage(frame)
        if usage is not None:
            yield UsageUpdated(usage)
        if outcome["type"] == "cancelled":
            yield from self._failed(StreamError("cancelled"))
            return
        yield from self._response_end()
        self._is_answered = True
        yield from self._step_end()
        yield self._fold.filled(ChatCompleted(self._chat(outcome)))

    def _failed(self, error: StreamError) -> Iterator[Event]:
        yield from self._response_start()
        yield from self._wire.unfinished()
        yield ErrorEvent(error)

    def _response_start(self) -> Iterator[Event]:
        if not self._is_open:
            yield from self._step_end()
            self._is_open = True
            yield MessageStarted(Message("assistant"))

    def _response_end(self) -> Iterator[Event]:
        if self._is_open:
            self._is_open = False
            reason = "tool_calls" if self._fold.state.to_response().tool_calls else "stop"
            yield self._fold.filled(MessageCompleted(Message("assistant"), reason))

    def _step_end(self) -> Iterator[Event]:
        if self._is_answered:
            self._is_answered = False
            step = self._fold.state
            yield self._fold.filled(
                StepCompleted(StepResult(Thread(), Response(), done=not step.to_response().tool_calls))
            )

    def _chat(self, outcome: Frame) -> ChatResult:
        interrupts = outcome.get("interrupts", ())
        step = self._fold.state.steps[-1]
        answered = {result.tool_call_id for result in step.tool_results}
        pending = tuple(call for call in step.response.tool_calls if call.id not in answered)
        question = next((interrupt for interrupt in interrupts if interrupt["reason"] != "tool_call"), None)
        reason = "approval" if interrupts else "manual_tool_calls" if pending else "completed"
        return ChatResult(
            Thread(),
            halted_reason="ask_user" if question else reason,
            pending_question=question and question.get("message"),
            pending_tool_call_id=question and question["id"],
            pending_tool_calls=pending,
            usage=sum((step.response.usage for step in self._fold.state.steps), Usage()),
            metadata={"interrupts": interrupts} if interrupts else {},
        )
