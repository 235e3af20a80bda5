"""What a step that was cut off leaves in its thread."""

from __future__ import annotations

from dataclasses import replace

from rxllm.collector._fold_message import content_of
from rxllm.collector._step_outcome import is_server
from rxllm.collector._stream_collector import StreamCollector
from rxllm.values import (
    ChatResult,
    FilePart,
    Message,
    Part,
    ProviderPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
)
from rxllm.values._thread import unanswered, with_results


def with_partial_step(state: StreamCollector, result: ChatResult) -> ChatResult:
    """Return `result`, the chat of `state` so far, with the text and the answered tool calls of its unfinished step.

    The message's ``metadata["partial"]`` is the result's `halted_reason`. Every provider takes the thread back:

    - tool calls without a result are left out, and so are the provider's own, unless the message has their result;
    - thinking behind the last tool call, the provider's own included, keeps its text only, as what signs it holds for
      a whole answer;
    - a message without text, files and tool calls is left out.
    """
    if state.done or state.summary.fresh:
        return result
    results = {message.tool_call_id or "": message for message in state.tool_results}
    # A resumed chat first answers the tool calls of its thread.
    earlier = {call.id: results[call.id] for call in unanswered(result.thread) if call.id in results}
    result = replace(result, thread=with_results(result.thread, earlier))
    message = _without_loose_ends(state.message, results.keys() - earlier.keys())
    if not (message.text.strip() or message.tool_calls or _has_files(message)):
        return result
    message = replace(message, metadata={**message.metadata, "partial": result.halted_reason})
    answers = [results[call.id] for call in message.tool_calls if call.id in results]
    return replace(result, thread=result.thread + message + answers, final_response=state.to_response())


def _without_loose_ends(message: Message, answered: set[str]) -> Message:
    opaque = [part for part in message.parts if isinstance(part, ProviderPart)]
    calls = tuple(call for call in message.tool_calls if _is_answered(call, answered, opaque))
    ids = {call.id for call in calls}
    parts = [part for part in message.parts if not isinstance(part, ToolCallPart) or part.id in ids]
    closed = [place for place, part in enumerate(parts, 1) if isinstance(part, ToolCallPart | ProviderPart)]
    end = closed[-1] if closed else 0
    rest = [_unsigned(part) for part in parts[end:]]
    kept = (*parts[:end], *(part for part in rest if part != ThinkingPart("")))
    return replace(message, content=content_of(kept), tool_calls=calls)


def _is_answered(call: ToolCall, answered: set[str], opaque: list[ProviderPart]) -> bool:
    if is_server(call):
        return any(call.id in (part.data.get("tool_use_id"), part.data.get("id")) for part in opaque)
    return call.id in answered


def _unsigned(part: Part) -> Part:
    return ThinkingPart(part.text) if isinstance(part, ThinkingPart) else part


def _has_files(message: Message) -> bool:
    return any(isinstance(part, FilePart) for part in message.parts)
