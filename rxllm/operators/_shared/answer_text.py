"""The text of a model's answer, as it comes, for those who read JSON from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from rxllm.events import ErrorEvent, Event, MessageStarted, StepRestarted, TextCompleted, TextDelta, ToolCallStarted
from rxllm.operators._lift import Feeder
from rxllm.operators._shared.only_events import EVENTS, no_event
from rxllm.operators._shared.pick import Pieces
from rxllm.values import ValidationError
from rxllm.values._schema import unfenced

R = TypeVar("R")

FENCE = re.compile(r"\s*(?:```(?:json)?\s*)?", re.IGNORECASE)
"""What may stand before the JSON: small models put a Markdown code fence round it."""


_READ = frozenset({ErrorEvent, MessageStarted, StepRestarted, ToolCallStarted, TextDelta, TextCompleted})


class AnswerText(Generic[R]):
    """Feeds the text of each message to a fresh ``make()``. Only the last one is closed, if it asks for no tools."""

    def __init__(self, name: str, make: Callable[[], Feeder[str, R]]) -> None:
        self._name = name
        self._make = make
        self._pieces = Pieces(TextDelta, TextCompleted)
        self._reader: Feeder[str, R] | None = make()

    def feed(self, event: Event) -> Iterable[R]:
        if type(event) in _READ:
            return self._read(event)
        if type(event) not in EVENTS:
            raise no_event(self._name, event)
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


def whole(text: str) -> Any:
    """The JSON value that `text` is. Raises ``ValidationError("invalid_output")``, whose metadata keeps the text."""
    try:
        return msgspec.json.decode(unfenced(text))
    except Exception as error:  # half a surrogate is no DecodeError
        raise no_answer(f"the answer is not JSON: {error}", text) from error


def no_answer(why: str, text: str, **kept: Any) -> ValidationError:
    return ValidationError("invalid_output", why, metadata={"text": text, **kept})
