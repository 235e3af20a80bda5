"""Turn a thread's last messages back into events, for browsers that join a resumed turn."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rxllm import Event, Message, StreamCollector, Thread, ToolCall
from rxllm import events as ev
from rxllm.values import FilePart, Part, SourcePart, TextPart, ThinkingPart, ToolCallPart, text_with_notes, unanswered


def events_before(thread: Thread) -> list[Event]:
    """Return the events of the steps that follow the last user message of `thread`.

    A browser that joins a turn receives these events first. If an answer to a tool call resumed the turn, these are the
    events of the steps up to that call. If a new message started the turn, there are none. Approval requests are left
    out, because the turn began with the answers to them.
    """
    users = [place for place, message in enumerate(thread) if message.role == "user"]
    events: list[Event] = []
    state = StreamCollector(Thread())
    for message in thread[users[-1] + 1 :] if users else ():
        is_next = bool(events) and message.role == "assistant"
        new = [*([ev.StepCompleted(state.to_step_result())] if is_next else ()), *_message_events(message)]
        for event in new:
            state = state.apply_event(event)
        events += new
    return [*events, ev.StepCompleted(state.to_step_result())] if events else []


def events_of_open_calls(thread: Thread) -> list[Event]:
    """Return the events of a synthetic step that contains only the calls that are still open in `thread`.

    A turn may begin with the results of these calls. If the user sent a new message instead of answering the calls, the
    page shows the turn in a new assistant message, which does not contain the calls yet.
    """
    calls = unanswered(thread)
    return events_before(Thread().add_user("") + Message("assistant", tool_calls=calls)) if calls else []


def _message_events(message: Message) -> Iterator[Event]:
    if message.role == "tool":
        parts = message.parts if isinstance(message.content, tuple) else ()
        yield ev.ToolResultEncoded(message.tool_call_id or "", text_with_notes(parts) if parts else message.text, parts)
    elif message.role == "assistant":
        calls = {call.id: call for call in message.tool_calls}
        placed = {part.id for part in message.parts if isinstance(part, ToolCallPart)}
        yield ev.MessageStarted(Message("assistant"))
        for part in (*message.parts, *(ToolCallPart(id) for id in calls if id not in placed)):
            yield from _call_events(calls[part.id]) if isinstance(part, ToolCallPart) else _part_events(part)
        yield ev.MessageCompleted(message, "tool_calls" if calls else "stop")


def _part_events(part: Part) -> list[Event]:
    match part:
        case TextPart(text=text):
            return [ev.TextDelta(text), ev.TextCompleted(text)]
        case ThinkingPart(text=text, signature=signature):
            return [ev.ThinkingDelta(text), ev.ThinkingCompleted(text, signature)]
        case SourcePart(source=source):
            return [ev.SourceAdded(source)]
        case FilePart(file=file):
            return [ev.FileAdded(file)]
        case _:
            return []


def _call_events(call: ToolCall) -> list[Event]:
    text = json.dumps(call.arguments) if call.raw_arguments is None else call.raw_arguments
    completed = ev.ToolCallCompleted(call.id, call.name, call.arguments, text, call.metadata)
    return [ev.ToolCallStarted(call.id, call.name, call.metadata), ev.ToolCallDelta(call.id, text), completed]
