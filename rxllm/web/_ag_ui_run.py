"""What a run of AG-UI comes to: what it waits for, what it has used, and what runs of other servers do not tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rxllm import Message, Nested, StreamCollector, StreamError, ToolCall, Usage, serializer
from rxllm import events as ev
from rxllm.collector import Unfinished
from rxllm.web._ag_ui_wire import Wire
from rxllm.web._client_fold import ClientFold
from rxllm.web._codec import Frame

COUNTS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "totalTokens": "total_tokens",
    "reasoningTokens": "reasoning_tokens",
    "cachedInputTokens": "cached_input_tokens",
    "cacheWriteInputTokens": "cache_write_input_tokens",
}
"""The counts of a run's usage, and the fields of `Usage` that they are."""

_APPROVAL = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
_EDITED = {**_APPROVAL, "editedArgs": {"type": "object"}}


def outcome(state: StreamCollector, wire: Wire, edits: bool) -> Frame:
    """Return what a run that has not failed waits for: answers of a user, or results of the client's own tools.

    With `edits` the answer to a call that waits for approval may rewrite its arguments.
    """
    if state.chat_result is not None:
        metadata, calls = state.chat_result.metadata, state.chat_result.pending_tool_calls
        question, id = state.chat_result.pending_question, state.chat_result.pending_tool_call_id
        asks = state.chat_result.halted_reason == "approval"
    else:
        metadata: Mapping[str, Any] = state.steps[-1].metadata if state.steps else {}
        calls = (*metadata.get("manual_tool_calls", ()), *metadata.get("approval_tool_calls", ()))
        question, id = metadata.get("pending_question"), metadata.get("pending_tool_call_id")
        asks = "approval_tool_calls" in metadata
    manual = {call.id for call in metadata.get("manual_tool_calls", ())}
    interrupts = [_approval(call, edits) for call in calls if asks and call.id not in manual]
    if question is not None and id is not None:
        interrupts.append(_question(id, question, metadata.get("ask_user_opts")))
    if interrupts:
        return {"type": "interrupt", "interrupts": [{**frame, **_agent(frame["id"], wire)} for frame in interrupts]}
    return {"type": "success", **({"pendingToolCallIds": [call.id for call in calls]} if calls else {})}


def _approval(call: ToolCall, edits: bool) -> Frame:
    frame: Frame = {"id": call.id, "toolCallId": call.id, "reason": "tool_call", "message": f"Run {call.name}?"}
    schema = {"type": "object", "properties": _EDITED if edits else _APPROVAL, "required": ["approved"]}
    return {**frame, "responseSchema": schema}


def _question(id: str, question: str, opts: Any) -> Frame:
    frame: Frame = {"id": id, "toolCallId": id, "reason": "input_required", "message": question}
    metadata = {"metadata": {"opts": serializer.to_data(ev.Custom("", opts))["data"]}} if opts else {}
    return {**frame, "responseSchema": {"type": "string"}, **metadata}


def _agent(id: str, wire: Wire) -> Frame:
    """Return the agent whose call this is."""
    path = id.rpartition("/")[0]
    runs = [lane.run for lane in wire.lanes.values() if lane.run and "/".join(lane.path) == path]
    return {"subagentRunId": runs[-1]} if runs else {}


def to_usage(frame: Frame) -> Usage | None:
    """Return the usage of the end of a run, or None if it has none."""
    entries = [
        Usage(**{COUNTS[name]: entry[name] for name in COUNTS if type(entry.get(name)) is int})
        for entry in frame.get("usage") or ()
    ]
    return sum(entries, Usage()) if entries else None


def counts(usage: Usage, model: str | None) -> Frame:
    counts: Frame = {name: getattr(usage, field) for name, field in COUNTS.items()}
    known: Frame = {name: count for name, count in counts.items() if isinstance(count, int) and 0 <= count < 2**53}
    if known and model is not None:
        known["model"] = model
    return {"usage": [known]} if known else {}


class ForeignRun:
    """What other servers do not tell: where a response begins and ends, and what its step and the chat come to."""

    def __init__(self, fold: ClientFold, wire: Wire, open: Unfinished) -> None:
        self._fold = fold
        self._wire = wire
        self._open = open
        self._agents: dict[str, ForeignRun] = {}  # those inside, by their runs
        self._is_open = False  # a response
        self._is_answered = False  # a call of the response before

    def read(self, kind: str, frame: Frame, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        if "subagentRunId" in frame and kind != "SUBAGENT_STARTED":
            yield from self._response_start()
            lane = self._wire.lane(run := frame["subagentRunId"])
            if run not in self._agents:
                self._agents[run] = ForeignRun(self._fold.agent(lane.path), self._wire, Unfinished())
            agent, own = self._agents[run], [event.event for event in events if isinstance(event, Nested)]
            for event in agent._read(kind, frame, own):
                agent._open.see(event)
                yield Nested(lane.path, event)
        else:
            yield from self._read(kind, frame, events)

    def _read(self, kind: str, frame: Frame, events: Iterable[ev.Event]) -> Iterator[ev.Event]:
        for event in events:
            if isinstance(event, ev.ToolResultEncoded):
                yield from self._response_end()
                self._is_answered = True
            elif not isinstance(event, ev.Custom):
                yield from self._response_start()
            yield event
        match kind:
            case "RUN_ERROR" | "SUBAGENT_ERROR":
                yield from self._failed(StreamError("adapter_error", str(frame["message"])))
            case "RUN_FINISHED" | "SUBAGENT_FINISHED":
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
        if not self._is_answered:
            yield from self._response_start()
        yield from self._response_end()
        self._is_answered = True
        yield from self._step_end()
        yield self._chat(outcome)

    def _failed(self, error: StreamError) -> Iterator[ev.Event]:
        yield from self._response_start()
        yield from self._open.close()
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
        waits = interrupts or outcome["type"] == "suspended"
        reason = "approval" if waits else "manual_tool_calls" if pending else "completed"
        return self._fold.chat(
            halted_reason="ask_user" if question else reason,
            pending_question=question and question.get("message"),
            pending_tool_call_id=question and question["id"],
            pending_tool_calls=pending,
            metadata={"interrupts": interrupts} if interrupts else {},
        )
