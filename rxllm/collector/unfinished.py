"""Complete the blocks and calls that are still open when a stream is cut off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rxllm.collector._message import BlockKey, block_key, content_of
from rxllm.collector._step import is_server, nest, unnest, unsigned, with_answers_so_far, without_cut_text
from rxllm.collector._stream_collector import StreamCollector
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.values import ChatResult, FilePart, Message, ToolCallPart, ToolError
from rxllm.values.threads import unanswered


class Unfinished:
    """Tracks a stream's unfinished blocks, tool calls, tools and agents.

    Pass each event to `see`. `close` returns the completion events that are missing.
    """

    def __init__(self) -> None:
        self.blocks: dict[BlockKey, list[str]] = {}
        self._calls: dict[str, tuple[str, Mapping[str, Any], list[str]]] = {}
        self._agents: dict[str, Unfinished] = {}
        self._running: dict[str, str] = {}  # the names of the running tools, by call id
        self._kind: type[Event] | None = None  # the type of the last delta
        self._id: str | None = None
        self._append: Callable[[str], None] = list[str]().append

    def see(self, event: Event) -> None:
        if type(event) is TextDelta or type(event) is ThinkingDelta:
            if type(event) is not self._kind or event.id != self._id:
                self._begin(type(event), event.id)
            self._append(event.delta)
            return
        self._kind = None
        match event:
            case TextCompleted(id=id):
                self.blocks.pop(block_key(TextDelta, id, self.blocks), None)
            case ThinkingCompleted(id=id):
                self.blocks.pop(block_key(ThinkingDelta, id, self.blocks), None)
            case ToolCallStarted():
                self._calls[event.id] = (event.name, event.metadata, [])
            case ToolCallDelta() if event.id in self._calls:
                self._calls[event.id][2].append(event.arguments_delta)
            case ToolCallCompleted():
                self._calls.pop(event.id, None)
            case Nested():
                id, inner = unnest(event)
                self._agents.setdefault(id, Unfinished()).see(inner)
            case ToolExecutionStarted():
                self._running[event.id] = event.name
            case ToolExecutionCompleted():
                self._agents.pop(event.id, None)
                self._running.pop(event.id, None)
            case MessageCompleted() | ErrorEvent() | StepCompleted() | StepRestarted():
                if not isinstance(event, MessageCompleted):
                    self._running.clear()
                self.blocks.clear()
                self._calls.clear()
                self._agents.clear()
            case _:
                pass

    def close(self) -> list[Event]:
        """Return the events that complete all open blocks, calls and running tools.

        The calls are marked as incomplete.
        """
        events: list[Event] = []
        for (kind, id), pieces in self.blocks.items():
            text = "".join(pieces)
            events.append(TextCompleted(text, id) if kind is TextDelta else ThinkingCompleted(text, id=id))
        for id, (name, metadata, pieces) in self._calls.items():
            events.append(ToolCallCompleted(id, name, {}, "".join(pieces), {**metadata, "error": "incomplete"}))
        events += [nest(id, event) for id, agent in self._agents.items() for event in agent.close()]
        return events + [_cancelled(id, name) for id, name in self._running.items()]

    def _begin(self, kind: type[Event], id: str | None) -> None:
        self._kind, self._id = kind, id
        self._append = self.blocks.setdefault(block_key(kind, id, self.blocks), []).append


def _cancelled(id: str, name: str) -> ToolExecutionCompleted:
    message = "the stream has ended, so the tool was stopped"
    return ToolExecutionCompleted(id, name, error=ToolError("cancelled", message, tool_name=name, tool_call_id=id))


def with_partial_step(state: StreamCollector, result: ChatResult) -> ChatResult:
    """Add the unfinished step in `state` to the chat's `result`.

    The new message stores the `halted_reason` in ``metadata["partial"]``. The following is left out so that every
    provider accepts the thread:

    * tool calls without a result;
    * signed and opaque parts after the last answered call;
    * a message without text, files or tool calls.
    """
    if state.done or state.summary.fresh:
        return result
    # A resumed chat first answers the calls that were waiting in its thread.
    earlier = {call.id for call in unanswered(result.thread)}
    results = {id: message for message in state.tool_results if (id := message.tool_call_id or "") not in earlier}
    result = replace(result, thread=with_answers_so_far(result.thread, state))
    message = _without_loose_ends(state.message, {*results})
    has_files = any(isinstance(part, FilePart) for part in message.parts)
    if not (message.text.strip() or message.tool_calls or has_files):
        return result
    message = replace(message, metadata={**message.metadata, "partial": result.halted_reason})
    answers = [results[call.id] for call in message.tool_calls if call.id in results]
    return replace(result, thread=result.thread + message + answers, final_response=state.to_response())


def _without_loose_ends(message: Message, answered: set[str]) -> Message:
    """Return `message` without unanswered calls, and without signed data after the last answered call."""
    loose = {call.id for call in message.tool_calls if not is_server(call) and call.id not in answered}
    marked = {part.id for part in message.parts if isinstance(part, ToolCallPart)}
    unmarked = [ToolCallPart(call.id) for call in message.tool_calls if call.id not in marked]  # placed after the text
    parts = [part for part in [*message.parts, *unmarked] if not isinstance(part, ToolCallPart) or part.id not in loose]
    marks = [place for place, part in enumerate(parts, 1) if isinstance(part, ToolCallPart) and part.id in answered]
    end = marks[-1] if marks else 0
    kept = parts[:end] + [part for part in map(unsigned, parts[end:]) if part is not None]
    ids = {part.id for part in kept if isinstance(part, ToolCallPart)}
    calls = tuple(without_cut_text(call) for call in message.tool_calls if call.id in ids)
    return replace(message, content=content_of(tuple(kept)), tool_calls=calls)
