"""How a run of AG-UI ends: what it waits for, and what it has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm import Custom, StreamCollector, ToolCall, Usage, serializer
from rxllm.web._ag_ui_wire import Wire
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

APPROVAL = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object"},
    },
    "required": ["approved"],
}
"""What answers the interrupt of a call that waits for approval, as a JSON schema."""


def outcome(state: StreamCollector, wire: Wire) -> Frame:
    """Return what a run that has not failed waits for: answers of a user, or results of the client's own tools."""
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
    interrupts = [_approval(call) for call in calls if asks and call.id not in manual]
    if question is not None and id is not None:
        interrupts.append(_question(id, question, metadata.get("ask_user_opts")))
    if interrupts:
        return {"type": "interrupt", "interrupts": [{**frame, **_agent(frame["id"], wire)} for frame in interrupts]}
    return {"type": "success", **({"pendingToolCallIds": [call.id for call in calls]} if calls else {})}


def _approval(call: ToolCall) -> Frame:
    frame: Frame = {"id": call.id, "toolCallId": call.id, "reason": "tool_call", "message": f"Run {call.name}?"}
    return {**frame, "responseSchema": APPROVAL}


def _question(id: str, question: str, opts: Any) -> Frame:
    frame: Frame = {"id": id, "toolCallId": id, "reason": "input_required", "message": question}
    metadata = {"metadata": {"opts": serializer.to_data(Custom("", opts))["data"]}} if opts else {}
    return {**frame, "responseSchema": {"type": "string"}, **metadata}


def _agent(id: str, wire: Wire) -> Frame:
    """Return the agent whose call this is."""
    path = id.rpartition("/")[0]
    runs = [lane.run for lane in wire.lanes.values() if lane.run and "/".join(lane.path) == path]
    return {"subagentRunId": runs[-1]} if runs else {}


def to_usage(frame: Frame) -> Usage | None:
    """Return the usage of the end of a run, or None if it has none."""
    entries = [
        Usage(**{COUNTS[name]: entry[name] for name in COUNTS if name in entry}) for entry in frame.get("usage") or ()
    ]
    return sum(entries, Usage()) if entries else None


def counts(usage: Usage, model: str | None) -> Frame:
    counts: Frame = {name: getattr(usage, field) for name, field in COUNTS.items()}
    known: Frame = {name: count for name, count in counts.items() if isinstance(count, int) and 0 <= count < 2**53}
    if known and model is not None:
        known["model"] = model
    return {"usage": [known]} if known else {}
