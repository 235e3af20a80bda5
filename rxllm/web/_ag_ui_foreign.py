"""AG-UI from other servers: what they leave to be inferred from their frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rxllm import Message, Nested, StreamError
from rxllm import events as ev
from rxllm.web._ag_ui_end import to_usage
from rxllm.web._ag_ui_wire import Wire
from rxllm.web._client_fold import ClientFold
from rxllm.web._codec import Frame


class ForeignRun:
    """What other servers do not tell: where a response begins and ends, and what its step and the chat come to."""

    def __init__(self, fold: ClientFold, wire: Wire) -> None:
        self._fold = fold
        self._wire = wire
        self._is_open = False  # a response
        self._is_answered = False  # a call of the response before

    def read(self, kind: str, frame: Frame, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        for event in events:
            if isinstance(event, ev.ToolResultEncoded):
                yield from self._response_end()
                self._is_answered = True
            elif not isinstance(event, Nested | ev.Custom):
                yield from self._response_start()
            yield event
        match kind:
            case "RUN_ERROR":
                yield from self._failed(StreamError("adapter_error", str(frame["message"])))
            case "RUN_FINISHED":
                yield from self._finished(frame)
            case _ if kind.startswith(("STATE_", "ACTIVITY_", "MESSAGES_", "RAW")):
                yield ev.RawChunk(kind, frame)
            case _:
                pass

    def _finished(self, frame: Frame) -> Iterator[ev.Event]:
        outcome = frame.get("outcome") or {"type": "success"}
        usage = to_usage(frame)
        if usage is not None:
            yield ev.UsageUpdated(usage)
        if outcome["type"] == "cancelled":
            yield from self._failed(StreamError("cancelled"))
            return
        yield from self._response_end()
        self._is_answered = True
        yield from self._step_end()
        yield self._chat(outcome)

    def _failed(self, error: StreamError) -> Iterator[ev.Event]:
        yield from self._response_start()
        yield from self._wire.unfinished()
        yield ev.ErrorEvent(error)

    def _response_start(self) -> Iterator[ev.Event]:
        if not self._is_open:
            yield from self._step_end()
            self._is_open = True
            yield ev.MessageStarted(Message("assistant"))

    def _response_end(self) -> Iterator[ev.Event]:
        if self._is_open:
            self._is_open = False
            reason = "tool_calls" if self._fold.state.to_response().tool_calls else "stop"
            yield self._fold.message(reason)

    def _step_end(self) -> Iterator[ev.Event]:
        if self._is_answered:
            self._is_answered = False
            yield self._fold.step()

    def _chat(self, outcome: Frame) -> ev.Event:
        interrupts = outcome.get("interrupts", ())
        step = self._fold.state.steps[-1]
        answered = {result.tool_call_id for result in step.tool_results}
        pending = tuple(call for call in step.response.tool_calls if call.id not in answered)
        question = next((interrupt for interrupt in interrupts if interrupt["reason"] != "tool_call"), None)
        reason = "approval" if interrupts else "manual_tool_calls" if pending else "completed"
        return self._fold.chat(
            halted_reason="ask_user" if question else reason,
            pending_question=question and question.get("message"),
            pending_tool_call_id=question and question["id"],
            pending_tool_calls=pending,
            metadata={"interrupts": interrupts} if interrupts else {},
        )
