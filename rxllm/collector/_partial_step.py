"""What a step that was cut off leaves in its thread."""

from __future__ import annotations

from dataclasses import replace

from rxllm.collector._agents import with_agents_so_far
from rxllm.collector._fold_message import content_of
from rxllm.collector._step_outcome import is_server, unsigned
from rxllm.collector._stream_collector import StreamCollector
from rxllm.values import ChatResult, FilePart, Message, ToolCallPart
from rxllm.values.threads import unanswered, with_results


def with_partial_step(state: StreamCollector, result: ChatResult) -> ChatResult:
    """Return `result`, the chat of `state` so far, with the text and the answered tool calls of its unfinished step.

    The message's ``metadata["partial"]`` is the result's `halted_reason`. Every provider takes the thread back:

    - tool calls without a result are left out, also those of agents that have begun in this step;
    - behind the last answered tool call, what the provider ran itself and its opaque parts are left out too, and
      thinking keeps only its text: they go back as a whole or not at all;
    - a message without text, files and tool calls is left out.
    """
    if state.done or state.summary.fresh:
        return result
    results = {message.tool_call_id or "": message for message in state.tool_results}
    # A resumed chat first answers the tool calls of its thread.
    earlier = {call.id: results[call.id] for call in unanswered(result.thread) if call.id in results}
    thread = with_agents_so_far(result.thread, state.executions)
    result = replace(result, thread=with_results(thread, earlier))
    message = _without_loose_ends(state.message, results.keys() - earlier.keys())
    if not (message.text.strip() or message.tool_calls or _has_files(message)):
        return result
    message = replace(message, metadata={**message.metadata, "partial": result.halted_reason})
    answers = [results[call.id] for call in message.tool_calls if call.id in results]
    return replace(result, thread=result.thread + message + answers, final_response=state.to_response())


def _without_loose_ends(message: Message, answered: set[str]) -> Message:
    """Return the message up to its last answered tool call, without those that have no answer, and what can be kept of
    the rest.
    """
    loose = {call.id for call in message.tool_calls if not is_server(call) and call.id not in answered}
    marked = {part.id for part in message.parts if isinstance(part, ToolCallPart)}
    unmarked = [ToolCallPart(call.id) for call in message.tool_calls if call.id not in marked]  # they follow the text
    parts = [part for part in [*message.parts, *unmarked] if not isinstance(part, ToolCallPart) or part.id not in loose]
    marks = [place for place, part in enumerate(parts, 1) if isinstance(part, ToolCallPart) and part.id in answered]
    end = marks[-1] if marks else 0
    kept = parts[:end] + [part for part in map(unsigned, parts[end:]) if part is not None]
    ids = {part.id for part in kept if isinstance(part, ToolCallPart)}
    calls = tuple(call for call in message.tool_calls if call.id in ids)
    return replace(message, content=content_of(tuple(kept)), tool_calls=calls)


def _has_files(message: Message) -> bool:
    return any(isinstance(part, FilePart) for part in message.parts)
