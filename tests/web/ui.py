"""How the npm package `ai` has to fold a stream."""

from __future__ import annotations

from typing import Any

import rxllm
from rxllm import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageStarted,
    StreamCollector,
    TextCompleted,
    ThinkingCompleted,
    Thread,
    ToolCallCompleted,
    tool,
)


def texts(events: list[Any], kind: Any) -> str:
    """The text of the steps that were not begun again."""
    steps: list[list[str]] = [[]]
    for event in events:
        if isinstance(event, rxllm.StepRestarted):
            steps[-1] = []
        elif isinstance(event, MessageStarted):
            steps.append([])
        elif isinstance(event, kind):
            steps[-1].append(event.text)
    return "".join(map("".join, steps))


def assert_folds_equal(result: Any, events: list[Event], name: str = "") -> None:
    """The client's message holds the text, the thinking, the calls with their results, and the usage of `events`."""
    message: Any = result["message"] or {"parts": []}
    parts = message["parts"]
    errors = [
        event.error.message for event in events if isinstance(event, ErrorEvent) and event.error.reason != "cancelled"
    ]
    assert result["errors"][: len(errors)] == errors, name
    assert all("truncated" in error for error in result["errors"][len(errors) :]), (name, result["errors"])
    assert all(part.get("state") != "streaming" for part in parts), name
    assert "".join(p["text"] for p in parts if p["type"] == "text") == texts(events, TextCompleted), name
    assert "".join(p["text"] for p in parts if p["type"] == "reasoning") == texts(events, ThinkingCompleted), name
    usage: Any = StreamCollector(Thread())
    calls: dict[str, ToolCallCompleted] = {}
    for event in events:
        usage = usage.apply_event(event)
        if isinstance(event, rxllm.StepRestarted):
            calls = {}
        if isinstance(event, ToolCallCompleted):
            calls[event.id] = event
    theirs = {part["toolCallId"]: part for part in parts if part["type"] == "dynamic-tool"}
    assert set(theirs) >= set(calls), name
    for id, call in calls.items():
        assert theirs[id]["toolName"] == call.name, name
        is_text = "error" in call.metadata and "vetoed" not in call.metadata
        assert theirs[id]["input"] == (call.raw_arguments if is_text else dict(call.arguments)), name
    for event in events:
        if isinstance(event, rxllm.ToolExecutionCompleted) and event.error is None:
            assert (theirs[event.id]["state"], theirs[event.id].get("output")) == ("output-available", event.result), (
                name
            )
        elif isinstance(event, rxllm.ToolExecutionCompleted):
            denied = event.error is not None and event.error.reason == "denied"
            assert theirs[event.id]["state"] == ("output-denied" if denied else "output-error"), name
    final = [event.result.usage for event in events if isinstance(event, ChatCompleted)]
    expected = final[-1] if final else usage.to_response().usage
    metadata: Any = message.get("metadata") or {}
    assert metadata.get("usage", {}).get("input_tokens") == expected.input_tokens, name


@tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"
