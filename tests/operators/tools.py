"""What the tests of tools share."""

from __future__ import annotations

from typing import Any

from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.events import Event, MessageCompleted, MessageStarted, StepCompleted, ToolCallCompleted
from rxllm.runtime import Stream
from rxllm.values import Message, StepResult, Thread, Tool, ToolCall, user

THREAD = Thread((user("Hi"),))


def response(*calls: ToolCall | str, reason: Any = "tool_calls") -> list[Event]:
    """A response that makes `calls`; a name alone is a call without arguments, its id the name."""
    made = [call if isinstance(call, ToolCall) else ToolCall(call, call, {}, "{}") for call in calls]
    completed = [
        ToolCallCompleted(call.id, call.name, call.arguments, call.raw_arguments or "{}", call.metadata)
        for call in made
    ]
    return [MessageStarted(Message("assistant")), *completed, MessageCompleted(Message("assistant"), reason)]


def calling(*calls: ToolCall | str, reason: Any = "tool_calls") -> Stream[Event]:
    return Stream.of(from_iterable(response(*calls, reason=reason)))


def events_of(source: Stream[Event], tools: list[Tool], **options: Any) -> list[Event]:
    """All that `run_tools` adds to `source`."""
    return list(source.pipe(ops.run_tools(tools, thread=THREAD, **options)))


def told(source: Stream[Event], tools: list[Tool], **options: Any) -> list[Event]:
    """What comes after the response and before the end of the step."""
    events = events_of(source, tools, **options)
    return events[list(map(type, events)).index(MessageCompleted) + 1 : -1]


def result(source: Stream[Event], tools: list[Tool], **options: Any) -> StepResult:
    last = events_of(source, tools, **options)[-1]
    assert isinstance(last, StepCompleted)
    return last.result


def contents(step: StepResult) -> dict[str | None, Any]:
    """What the model is told, by the call's id."""
    return {message.tool_call_id: message.content for message in step.tool_results}
