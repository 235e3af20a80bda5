"""The text of a model's answer, read from events as it arrives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rxllm.collector import BlockKey, block_key
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageStarted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallStarted,
)
from rxllm.operators._lift import Feeder
from rxllm.operators._shared.event_operators import EVENTS, not_an_event

R = TypeVar("R")

FENCE = re.compile(r"\s*(?:```(?:json)?\s*)?", re.IGNORECASE)
"""What may precede the JSON: small models put a Markdown code fence round it."""

_READ = frozenset({ErrorEvent, MessageStarted, StepRestarted, ToolCallStarted, TextDelta, TextCompleted})


class TextPieces:
    """The strings of the blocks of one kind: their deltas, or the completed text where the deltas were dropped."""

    def __init__(
        self, delta: type[TextDelta | ThinkingDelta], completed: type[TextCompleted | ThinkingCompleted]
    ) -> None:
        self._delta = delta
        self._completed = completed
        self._open: dict[BlockKey, None] = {}  # in order

    def __call__(self, event: Event) -> Iterable[str]:
        if isinstance(event, self._delta):
            self._open.setdefault(block_key(self._delta, event.id, self._open))
            return (event.delta,)
        if isinstance(event, self._completed):
            block = block_key(self._delta, event.id, self._open)
            if block not in self._open:
                return (event.text,) if event.text else ()
            del self._open[block]
        elif isinstance(event, StepRestarted):
            self._open.clear()
        return ()


class AnswerText(Generic[R]):
    """Feeds the text of each message to a fresh ``make()``. Closes only the last, unless its message calls tools."""

    def __init__(self, name: str, make: Callable[[], Feeder[str, R]]) -> None:
        self._name = name
        self._make = make
        self._pieces = TextPieces(TextDelta, TextCompleted)
        self._reader: Feeder[str, R] | None = make()

    def feed(self, event: Event) -> Iterable[R]:
        if type(event) in _READ:
            return self._read(event)
        if type(event) not in EVENTS:
            raise not_an_event(self._name, event)
        return ()

    def _read(self, event: Event) -> Iterable[R]:
        match event:
            case ErrorEvent():
                raise event.error
            case MessageStarted() | StepRestarted():
                self._reader = self._make()
            case ToolCallStarted() if not event.metadata.get("server"):
                self._reader = None
            case _:
                pass
        for text in self._pieces(event):
            if self._reader is not None:
                yield from self._reader.feed(text)

    def close(self) -> Iterable[R]:
        return self._reader.close() if self._reader is not None else ()
