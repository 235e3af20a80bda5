"""The events of a run in its store: an end refers to the end before it, so the log grows with what each step adds.

`StepCompleted` holds the whole thread, and `ChatCompleted` every step. Written in full, they would make the log grow
with the square of its steps. The end of a step or a chat is therefore an entry of its own, whose `event` is the rest:

==========  ======================================================================================================
field       meaning
==========  ======================================================================================================
``v``       the version of the entry, `VERSION`
``before``  the number of the previous end of the same chat, or of the agent at the same path; 0 if there is none
``kept``    how many messages, counted from the first, its thread shares with the thread of that end; they are omitted
``steps``   how many of a chat's steps, counted from the last, are the results of the ends before it; they are omitted
``event``   the event, as `rxllm.serializer` writes it
==========  ======================================================================================================

Every other event is written by `rxllm.serializer` alone, as all events were in version 1, which is still read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from rxllm import ChatResult, LLMError, Message, RunError, StepResult, serializer
from rxllm.durable._reading import reading
from rxllm.durable._store import Store
from rxllm.events import (
    EVENT_CLASSES,
    ChatCompleted,
    ErrorEvent,
    Event,
    Nested,
    StepCompleted,
    ToolExecutionCompleted,
)

VERSION = 2

PAGE = 256
"""How many events are read at once."""

T = TypeVar("T")


class _End(NamedTuple):
    """The result of a step or a chat, and the number of the end before it."""

    before: int
    result: StepResult | ChatResult


class Log:
    """The events of the run `id`: they are read in pages, and encoded one after the other. It remembers the ends."""

    def __init__(self, store: Store, id: str) -> None:
        self._store, self._id = store, id
        self._ends: dict[int, _End] = {}
        self._last: dict[tuple[str, ...], int] = {}  # the number of the last end, by the path of its agent

    async def page(self, after: int) -> list[Event]:
        """Return the events that follow number `after`, at most `PAGE`, and those before one that cannot be read.

        Raises ``RunError("unreadable")`` if that is the first.
        """
        events: list[Event] = []
        for number, data in enumerate(await self._store.events(self._id, after, PAGE), after + 1):
            try:
                events.append(await self._read(number, data))
            except RunError as error:
                if not events or error.reason != "unreadable":
                    raise
                break
        return events

    def encode(self, number: int, event: Event) -> bytes:
        """Return what the log has of `event`, which is to have this number."""
        path, end = _unnested(event)
        if not isinstance(end, StepCompleted | ChatCompleted):
            return serializer.to_json(event).encode()
        before = self._last.get(path, 0)
        kept = _count_equal(self._messages(before), end.result.thread.messages)
        result = replace(end.result, thread=replace(end.result.thread, messages=end.result.thread.messages[kept:]))
        steps = 0
        if isinstance(result, ChatResult):
            steps = _count_equal(self._steps(before), reversed(result.steps))
            result = replace(result, steps=result.steps[: len(result.steps) - steps])
        self._remember(number, path, _End(before, end.result))
        text = serializer.to_json(_nested(path, _completed(result)))
        return f'{{"v": {VERSION}, "before": {before}, "kept": {kept}, "steps": {steps}, "event": {text}}}'.encode()

    async def _read(self, number: int, text: bytes) -> Event:
        """Return the event of this number, whose JSON is `text`."""
        data, before = self._parse(number, text)
        await self._find(before)
        return self._decode(number, data)

    def _parse(self, number: int, text: bytes) -> tuple[dict[str, Any], int]:
        """Return the data of an event, and the number of the end that it refers to."""
        with reading(f"the event {number}", self._id):
            data = json.loads(text)
            return data, _before(number, data)

    async def _find(self, number: int) -> None:
        """Read the end with this number, and those before it, unless they are known."""
        unknown: list[tuple[int, dict[str, Any]]] = []
        while number and number not in self._ends:
            (text,) = await self._store.events(self._id, number - 1, 1)
            data, before = self._parse(number, text)
            unknown.append((number, data))
            number = before
        for number, data in reversed(unknown):
            self._decode(number, data)

    def _decode(self, number: int, data: dict[str, Any]) -> Event:
        with reading(f"the event {number}", self._id):
            return self._decoded(number, data)

    def _decoded(self, number: int, data: dict[str, Any]) -> Event:
        is_entry = "type" not in data
        event: Event = serializer.from_data(data["event"] if is_entry else data, local_files=True)
        path, end = _unnested(event)
        if not isinstance(end, EVENT_CLASSES):
            raise TypeError(f"it is a {type(end).__name__}")
        if error := error_in(end):
            error.is_logged = True  # by the producer, which has its traceback
        if not isinstance(end, StepCompleted | ChatCompleted):
            return event
        before, result = 0, end.result
        if is_entry:
            before, kept, steps = data["before"], data["kept"], data["steps"]
            messages = self._messages(before)[:kept] + result.thread.messages
            result = replace(result, thread=replace(result.thread, messages=messages))
            if isinstance(result, ChatResult):
                result = replace(result, steps=result.steps + self._steps(before)[:steps][::-1])
        self._remember(number, path, _End(before, result))
        return _nested(path, _completed(result))

    def _remember(self, number: int, path: tuple[str, ...], end: _End) -> None:
        self._ends[number], self._last[path] = end, number
        if path and isinstance(end.result, ChatResult):  # an agent is called once, and a run may call thousands
            del self._last[path]
            while number:
                number = self._ends.pop(number).before if number in self._ends else 0

    def _messages(self, number: int) -> tuple[Message, ...]:
        return self._ends[number].result.thread.messages if number else ()

    def _steps(self, number: int) -> tuple[StepResult, ...]:
        """Return the steps of the chat whose last end has this number, the last one first."""
        steps: list[StepResult] = []
        while number and isinstance(result := self._ends[number].result, StepResult):
            steps.append(result)
            number = self._ends[number].before
        return tuple(steps)


def error_in(event: Event) -> LLMError | None:
    """Return the error that `event` reports."""
    match event:
        case (
            ErrorEvent(error=error)
            | ToolExecutionCompleted(error=error)
            | ChatCompleted(result=ChatResult(error=error))
        ):
            return error
        case Nested(event=inner):
            return error_in(inner)
        case _:
            return None


def _before(number: int, data: Mapping[str, Any]) -> int:
    """Return the number of the end that the event of this number refers to, 0 for none. Raises ``ValueError``."""
    if "type" in data:
        return 0
    if data["v"] != VERSION:
        raise ValueError(f"it was written in version {data['v']!r}; this rxllm reads version {VERSION}")
    if not 0 <= data["before"] < number:
        raise ValueError(f"it refers to the event {data['before']!r}, which is not before it")
    return data["before"]


def _unnested(event: Event) -> tuple[tuple[str, ...], Event]:
    return (event.path, event.event) if type(event) is Nested else ((), event)


def _nested(path: tuple[str, ...], event: Event) -> Event:
    return Nested(path, event) if path else event


def _completed(result: StepResult | ChatResult) -> StepCompleted | ChatCompleted:
    return StepCompleted(result) if isinstance(result, StepResult) else ChatCompleted(result)


def _count_equal(old: Iterable[T], new: Iterable[T]) -> int:
    """Return how many of the first items are equal."""
    return sum(1 for _ in takewhile(bool, (a is b or a == b for a, b in zip(old, new, strict=False))))
