"""The events of a run in its store, and the tail that all its watchers on one loop share.

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

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from rxllm import ChatResult, LLMError, Message, RunError, StepResult, StreamCollector, serializer
from rxllm.durable._store import Run, Store, reading
from rxllm.events import (
    EVENT_CLASSES,
    ChatCompleted,
    ErrorEvent,
    Event,
    Nested,
    StepCompleted,
    ToolExecutionCompleted,
)

T = TypeVar("T")


VERSION = 2

PAGE = 256
"""How many events are read at once."""


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


WINDOW = 1024
"""How many events are kept; a watcher that is further behind reads the log itself."""

WAIT_SECONDS = 30.0


class Tail:
    """The events of the run `id` from number `_start` + 1 to `_end`. `watchers` counts those who read them."""

    def __init__(self, store: Store, id: str) -> None:
        self.watchers = 0
        self.run: Run | None = None  # once it has ended and everything has been read
        self._store, self._id, self._log = store, id, Log(store, id)
        self._start = self._end = -1
        self._is_at_end = False  # when it was last read
        self._events: list[Event] = []
        self._reading: asyncio.Task[None] | None = None

    async def after(self, number: int) -> Sequence[Event]:
        """Return events behind number `number`, as soon as there are any; none at the end of the run."""
        while True:
            if self._start <= number < self._end:
                return self._events[number - self._start : number - self._start + PAGE]
            if number < self._start:
                return await self._read(number)
            if self.run is not None:
                return ()
            if number > self._end:  # whoever is ahead sets the pace
                self._start = self._end = number
                self._events = []
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_on(number))
                self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # or nobody reads on
            reading = self._reading  # another one may follow before this watcher goes on
            await asyncio.wait({reading})
            reading.result()

    async def folded(self) -> tuple[StreamCollector, int]:
        """Return the fold of what is committed, and how many events that is."""
        state, number = StreamCollector(), 0
        while events := await self._read(number):
            number += len(events)
            for event in events:
                state = state.apply_event(event)
        return state, number

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, number: int) -> list[Event]:
        return await self._log.page(number)

    async def _read_on(self, number: int) -> None:
        while True:
            if self._is_at_end:
                await self._store.wait(self._id, number, WAIT_SECONDS)
            events = await self._read(number)
            self._is_at_end = len(events) < PAGE
            if events:
                break
            run = await self._store.load(self._id)
            if run.events < number:
                why = (
                    f"the store has lost events: {number} had been read, and it has {run.events}; watch from the first"
                )
                raise RunError("rolled_back", why, run_id=self._id)
            if run.ended_at is not None and run.events <= number:
                self.run = run
                return
        if number == self._end:  # nobody has gone ahead meanwhile
            self._events = [*self._events, *events][-WINDOW:]
            self._end += len(events)
            self._start = self._end - len(self._events)
