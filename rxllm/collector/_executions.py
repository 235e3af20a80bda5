"""The tool calls that run in the current step, and what the agents among them have done.

A call is kept while it runs, and that of an agent until the step ends. An agent has a state of its own, which folds its
events as the chat's does those of the chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from rxllm.collector._nested import nest, unnest
from rxllm.events import Event, Nested, ToolExecutionCompleted, ToolExecutionStarted

if TYPE_CHECKING:
    from rxllm.collector._stream_collector import StreamCollector


class Execution(msgspec.Struct, frozen=True):
    """One tool call. `agent` is empty until an event of an agent has come."""

    agent: StreamCollector
    started: ToolExecutionStarted | None = None
    completed: ToolExecutionCompleted | None = None

    def after(self, event: Nested | ToolExecutionStarted | ToolExecutionCompleted) -> Execution | None:
        """Return the execution after `event`; None if there is nothing left to keep."""
        if isinstance(event, ToolExecutionStarted):
            return msgspec.structs.replace(self, started=event, completed=None)
        if isinstance(event, ToolExecutionCompleted):
            return msgspec.structs.replace(self, completed=event) if self.agent.to_events() else None
        agent = self.agent.apply_event(unnest(event)[1])
        return self if agent is self.agent else msgspec.structs.replace(self, agent=agent)

    def to_events(self, id: str) -> list[Event]:
        nested = [nest(id, event) for event in self.agent.to_events()]
        return [event for event in (self.started, *nested, self.completed) if event is not None]


Executions = Mapping[str, Execution]


def execute(
    executions: Executions, event: Nested | ToolExecutionStarted | ToolExecutionCompleted, start: StreamCollector
) -> Executions:
    """Return the executions after `event`, the same object if it changes nothing; agents begin with `start`."""
    id = event.path[0] if isinstance(event, Nested) else event.id
    before = executions.get(id)
    execution = before or Execution(start)
    after = execution.after(event)
    if after is before or after is execution:
        return executions
    if after is None:
        return {other: entry for other, entry in executions.items() if other != id}
    return {**executions, id: after}


def unfold_executions(executions: Executions) -> list[Event]:
    """Return the events of the executions, one after the other."""
    return [event for id, execution in executions.items() for event in execution.to_events(id)]
