"""Wrap and unwrap the events of agents: each agent's are a stream of their own, under the id of its tool call."""

from __future__ import annotations

from rxllm.events import Event, Nested


def innermost(event: Event) -> Event:
    """Return the event that an agent has emitted, at any depth; any other event is returned unchanged."""
    return event.event if type(event) is Nested else event


def unnest(event: Nested) -> tuple[str, Event]:
    """Return the id of the outermost tool call, and the event as its agent has emitted it."""
    id, *path = event.path
    return id, Nested(tuple(path), event.event) if path else event.event


def nest(id: str, event: Event) -> Nested:
    """Return the event of the agent that is the tool call `id`, as the chat that runs it emits it."""
    return Nested((id, *event.path), event.event) if type(event) is Nested else Nested((id,), event)
