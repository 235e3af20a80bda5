"""Track the blocks and tool calls that are open, for operators and adapters that end a stream early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rxllm.collector._block_key import BlockKey, block_key
from rxllm.collector._nested import nest, unnest
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
)


class Unfinished:
    """The blocks and calls that have begun and not ended: `see` takes each event, `close` returns what closes them.

    Those of the agents that run are among them. Their tool calls are not ended: the stream's error ends them all.
    """

    def __init__(self) -> None:
        self.blocks: dict[BlockKey, list[str]] = {}
        self._calls: dict[str, tuple[str, Mapping[str, Any], list[str]]] = {}
        self._agents: dict[str, Unfinished] = {}
        self._kind: type[Event] | None = None  # of the last event, if that was a delta: nearly every delta continues it
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
            case ToolExecutionCompleted():
                self._agents.pop(event.id, None)
            case MessageCompleted() | ErrorEvent() | StepCompleted() | StepRestarted():
                self.blocks.clear()
                self._calls.clear()
                self._agents.clear()
            case _:
                pass

    def close(self) -> list[Event]:
        """Return their completions in the order in which they began; the calls are marked as incomplete."""
        events: list[Event] = []
        for (kind, id), pieces in self.blocks.items():
            text = "".join(pieces)
            events.append(TextCompleted(text, id) if kind is TextDelta else ThinkingCompleted(text, id=id))
        for id, (name, metadata, pieces) in self._calls.items():
            events.append(ToolCallCompleted(id, name, {}, "".join(pieces), {**metadata, "error": "incomplete"}))
        return [*events, *(nest(id, event) for id, agent in self._agents.items() for event in agent.close())]

    def _begin(self, kind: type[Event], id: str | None) -> None:
        self._kind, self._id = kind, id
        self._append = self.blocks.setdefault(block_key(kind, id, self.blocks), []).append
