"""From a response and its tools to a step: what the thread gains, what it waits for, and which tool halts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rxllm.collector._fold_message import content_of
from rxllm.events import AskUserRequested, Event, ToolHalt, ToolResultEncoded
from rxllm.values import LLMError, Message, Part, ProviderPart, Response, ThinkingPart, ToolCall, ToolCallPart

AWAITING_USER = "<awaiting user response>"
"""The result of a tool call that waits for the user, as the model sees it."""

PAUSE = "pause_turn"
"""The raw finish reason by which a provider asks to be called again with its message so far."""

STEERED = "steered"
"""The raw finish reason of a response that was ended with its sentence, since the user corrected it."""


def answer(response: Response[Any]) -> tuple[Message, ...]:
    """Return what a response adds to its thread: its message, with only the calls that are to be answered.

    The message of a response that was cut keeps what every provider takes back.
    """
    message = response.message
    if message is None:
        return ()
    if response.raw_finish_reason == STEERED:
        parts = (unsigned(part) for part in message.parts)
        message = replace(message, content=content_of(tuple(part for part in parts if part is not None)))
    kept = tuple(call for call in message.tool_calls if is_server(call)) + response.tool_calls
    kept = kept if response.finish_reason == "tool_calls" else tuple(call for call in kept if is_server(call))
    if kept == message.tool_calls:
        return (message,) if message.content or kept else ()
    ids = {call.id for call in kept}
    calls = tuple(call for call in message.tool_calls if call.id in ids)
    parts = tuple(part for part in message.parts if not isinstance(part, ToolCallPart) or part.id in ids)
    content = content_of(parts)
    return (replace(message, content=content, tool_calls=calls),) if content or calls else ()


def unsigned(part: Part) -> Part | None:
    """Return what can be kept of a part that goes back to its provider as a whole or not at all."""
    match part:
        case ToolCallPart() | ProviderPart():
            return None
        case ThinkingPart(text=text):
            return ThinkingPart(text) if text else None
        case _:
            return part


def is_unfinished(response: Response[Any]) -> bool:
    """Whether the model waits for answers to its calls, or to be called again after a pause."""
    waits = response.finish_reason == "tool_calls" and bool(response.tool_calls)
    return waits or response.raw_finish_reason == PAUSE


def tool_message(event: Event) -> Message | None:
    """Return the message that carries a tool's outcome to the model; None for other events."""
    match event:
        case ToolResultEncoded():
            return Message("tool", event.content, tool_call_id=event.id)
        case ToolHalt():
            content = event.content if event.content is not None else str(event.result)
            return Message("tool", content, tool_call_id=event.tool_call_id)
        case AskUserRequested():
            return Message("tool", AWAITING_USER, tool_call_id=event.tool_call_id)
        case _:
            return None


def halted_by(error: LLMError) -> str:
    """Return the reason why a chat halts that has failed with `error`."""
    return "budget" if error.reason == "budget_exceeded" else "error"


def halt_metadata(halt: ToolHalt | AskUserRequested | None) -> dict[str, Any]:
    """Return the metadata of a step that halts."""
    match halt:
        case None:
            return {}
        case AskUserRequested():
            return {
                "halted_reason": "ask_user",
                "pending_tool_call_id": halt.tool_call_id,
                "pending_question": halt.question,
                "ask_user_opts": dict(halt.opts),
            }
        case ToolHalt(reason="tool_error"):
            return {"halted_reason": "tool_error", "halt_tool_call_id": halt.tool_call_id, **halt.metadata}
        case ToolHalt():
            return {
                "halted_reason": halt.reason,
                "halt_tool_call_id": halt.tool_call_id,
                "halt_result": halt.result,
                **halt.metadata,
            }


def is_server(call: ToolCall) -> bool:
    """Whether the provider runs this call itself."""
    return bool(call.metadata.get("server"))


def is_incomplete(call: ToolCall) -> bool:
    """Whether the stream ended before the call was complete."""
    return call.metadata.get("error") == "incomplete"
