"""The events of agents inside a stream: each agent's are a stream of their own, under the id of its tool call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from rxllm.collector import nest, unnest
from rxllm.events import Event, Nested
from rxllm.operators._lift import Feeder
from rxllm.values import Message, Thread
from rxllm.values.threads import AGENTS

F = TypeVar("F", bound=Feeder[Event, Event])


def with_agents(message: Message, change: Callable[[str, Thread], Thread]) -> Message:
    """Return `message` with the threads of its halted agents as ``change(id, thread)`` returns them."""
    threads: Any = message.metadata.get(AGENTS)
    if not isinstance(threads, dict):
        return message
    entries = cast(dict[str, Any], threads).items()  # users may have metadata of that name, too
    changed = {id: change(id, entry) if isinstance(entry, Thread) else entry for id, entry in entries}
    return replace(message, metadata={**message.metadata, AGENTS: changed})


class Agents(Generic[F]):
    """The agents of one chat, each with a feeder of its own, which takes care of the agents inside it."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self._feeders: dict[str, F] = {}

    def __getitem__(self, id: str) -> F:
        """Return the feeder of the agent that is the tool call `id`, a new one for a new agent."""
        return self._feeders.get(id) or self._feeders.setdefault(id, self._make())

    def __contains__(self, id: object) -> bool:
        return id in self._feeders

    def feed(self, event: Nested) -> list[Event]:
        """Return what the agent's feeder makes of `event`."""
        id, inner = unnest(event)
        return [nest(id, result) for result in self[id].feed(inner)]

    def clear(self) -> None:
        self._feeders.clear()

    def close(self, id: str | None = None) -> list[Event]:
        """Return what is left of one agent, or of all; the feeders stay."""
        ids = list(self._feeders) if id is None else [id] if id in self else []
        return [nest(id, result) for id in ids for result in self._feeders[id].close()]
