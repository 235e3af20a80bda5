"""Read and write a run's event log.

A `StepCompleted` contains the whole thread, and a `ChatCompleted` contains all steps. If the log stored these two
events in full, it would grow quadratically. It therefore stores only what is new in them. In this module, either of
these two events is called an end.

==========  ======================================================================================================
field       content
==========  ======================================================================================================
``v``       the version of the format, `VERSION`
``before``  the number of the previous end in the same chat or inner agent, or 0 if there is none
``kept``    how many messages are omitted from the start of the thread
``steps``   how many of the chat's last steps are omitted from a `ChatCompleted`
``event``   the event without the omitted messages and steps, encoded by `rxllm.serializer`
==========  ======================================================================================================

Other events are stored in full, as all events were in version 1. An entry's ``at`` is its time in seconds since 1970.
Entries in older logs have no ``at``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
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
from rxllm.values import Timed

T = TypeVar("T")

VERSION = 2

PAGE = 256
"""The maximum number of events to read from the store at a time."""

WINDOW = 1024
"""The maximum number of events that a tail keeps in memory."""

WAIT_SECONDS = 30.0


class _End(NamedTuple):
    """The result in a `StepCompleted` or `ChatCompleted` event.

    `before` is the number of the previous such event in the same chat or inner agent, or 0 if there is none.
    """

    before: int
    result: StepResult | ChatResult


class Log:
    """Reads a run's events in pages, and encodes new events."""

    def __init__(self, store: Store, id: str) -> None:
        self._store, self._id = store, id
        self._ends: dict[int, _End] = {}
        # By path: the number of the latest `StepCompleted` or `ChatCompleted` event in the chat or inner agent.
        self._last: dict[tuple[str, ...], int] = {}
        self._at = 0.0  # the time of the latest event that has been read

    async def page(self, after: int) -> list[Timed[Event]]:
        """Return up to `PAGE` events after number `after`.

        The page ends before the first event that cannot be decoded. An event that has no time gets the time of the
        previous event.

        Raises ``RunError("unreadable")`` if event number ``after + 1`` cannot be decoded.
        """
        events: list[Timed[Event]] = []
        for number, data in enumerate(await self._store.events(self._id, after, PAGE), after + 1):
            try:
                entry, before = self._parse(number, data)
                await self._find(before)
                events.append(Timed(self._time_of(number, entry), self._decode(number, entry)))
            except RunError as error:
                if not events or error.reason != "unreadable":
                    raise
                break
        return events

    async def events(self, count: int | None = None) -> AsyncGenerator[Event]:
        """Yield all events. If `count` is given, stop after the page that contains event number `count`.

        Raises the same errors as `page`.
        """
        number = 0
        while page := await self.page(number) if count is None or number < count else ():
            number += len(page)
            for timed in page:
                yield timed.item

    def encode(self, number: int, event: Event) -> bytes:
        path, end = _unnest(event)
        if not isinstance(end, StepCompleted | ChatCompleted):
            return f'{serializer.to_json(event)[:-1]}, "at": {_now()}}}'.encode()
        before = self._last.get(path, 0)
        kept = _count_equal(self._messages(before), end.result.thread.messages)
        result = replace(end.result, thread=replace(end.result.thread, messages=end.result.thread.messages[kept:]))
        steps = 0
        if isinstance(result, ChatResult):
            steps = _count_equal(self._steps(before), reversed(result.steps))
            result = replace(result, steps=result.steps[: len(result.steps) - steps])
        self._remember(number, path, _End(before, end.result))
        text = serializer.to_json(_nest(path, _completion(result)))
        entry = f'"v": {VERSION}, "before": {before}, "kept": {kept}, "steps": {steps}, "at": {_now()}, "event": {text}'
        return f"{{{entry}}}".encode()

    def _parse(self, number: int, text: bytes) -> tuple[dict[str, Any], int]:
        """Return an entry's data and its ``before`` number, which is 0 if the entry has none."""
        with reading(f"event {number}", self._id):
            data = json.loads(text)
            if "type" in data:
                return data, 0
            if data["v"] != VERSION:
                raise ValueError(
                    f"its format version is {data['v']!r}, but this version of rxllm reads versions up to {VERSION}"
                )
            if not 0 <= data["before"] < number:
                raise ValueError(f"it refers to event {data['before']!r}, which is not an earlier event")
            return data, data["before"]

    def _time_of(self, number: int, data: dict[str, Any]) -> float:
        with reading(f"event {number}", self._id):
            self._at = float(data.pop("at", self._at))
        return self._at

    async def _find(self, number: int) -> None:
        """Add event `number`, and the earlier events that it builds on, to `_ends`.

        Events that are already in `_ends` are not loaded again.
        """
        unknown: list[tuple[int, dict[str, Any]]] = []
        while number and number not in self._ends:
            (text,) = await self._store.events(self._id, number - 1, 1)
            data, before = self._parse(number, text)
            unknown.append((number, data))
            number = before
        for number, data in reversed(unknown):
            self._decode(number, data)

    def _decode(self, number: int, data: dict[str, Any]) -> Event:
        with reading(f"event {number}", self._id):
            is_entry = "type" not in data
            event: Event = serializer.from_data(data["event"] if is_entry else data, local_files=True)
            path, end = _unnest(event)
            if not isinstance(end, EVENT_CLASSES):
                raise TypeError(f"it is a {type(end).__name__}")
            if error := error_in(end):
                error.is_logged = True  # the producer has logged it with the traceback
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
            return _nest(path, _completion(result))

    def _remember(self, number: int, path: tuple[str, ...], end: _End) -> None:
        self._ends[number], self._last[path] = end, number
        if path and isinstance(end.result, ChatResult):  # a chat can have thousands of finished agents
            del self._last[path]
            while number:
                number = self._ends.pop(number).before if number in self._ends else 0

    def _messages(self, number: int) -> tuple[Message, ...]:
        return self._ends[number].result.thread.messages if number else ()

    def _steps(self, number: int) -> tuple[StepResult, ...]:
        """Return the steps up to event `number`, newest first."""
        steps: list[StepResult] = []
        while number and isinstance(result := self._ends[number].result, StepResult):
            steps.append(result)
            number = self._ends[number].before
        return tuple(steps)


def error_in(event: Event) -> LLMError | None:
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


def _now() -> float:
    return round(time.time(), 6)


def _unnest(event: Event) -> tuple[tuple[str, ...], Event]:
    return (event.path, event.event) if type(event) is Nested else ((), event)


def _nest(path: tuple[str, ...], event: Event) -> Event:
    return Nested(path, event) if path else event


def _completion(result: StepResult | ChatResult) -> StepCompleted | ChatCompleted:
    return StepCompleted(result) if isinstance(result, StepResult) else ChatCompleted(result)


def _count_equal(old: Iterable[T], new: Iterable[T]) -> int:
    return sum(1 for _ in takewhile(bool, (a is b or a == b for a, b in zip(old, new, strict=False))))


class Tail:
    """The latest events of a run, shared by all its watchers on one event loop."""

    def __init__(self, store: Store, id: str) -> None:
        self.watchers = 0
        self.run: Run | None = None  # set once the run has ended and all its events have been read
        self._store, self._id, self._log = store, id, Log(store, id)
        self._start = self._end = -1
        self._is_at_end = False  # whether the last read reached the end of the log
        self._events: list[Timed[Event]] = []
        self._reading: asyncio.Task[None] | None = None

    async def after(self, number: int) -> Sequence[Timed[Event]]:
        """Wait for events after event `number`, and return them.

        Once the run has ended and has no more events, return an empty sequence.
        """
        while True:
            if self._start <= number < self._end:
                return self._events[number - self._start : number - self._start + PAGE]
            if number < self._start:
                return await self._log.page(number)
            if self.run is not None:
                return ()
            if number > self._end:  # the tail follows the watcher that is furthest ahead
                self._start = self._end = number
                self._events = []
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_on(number))
                self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            reading = self._reading  # the attribute may change while this call waits
            await asyncio.wait({reading})
            reading.result()

    async def folded(self) -> tuple[StreamCollector, int]:
        state, number = StreamCollector(), 0
        async for event in self._log.events():
            state, number = state.apply_event(event), number + 1
        return state, number

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read_on(self, number: int) -> None:
        while True:
            if self._is_at_end:
                await self._store.wait(self._id, number, WAIT_SECONDS)
            events = await self._log.page(number)
            self._is_at_end = len(events) < PAGE
            if events:
                break
            run = await self._store.load(self._id)
            if run.events < number:
                lost = f"{number} have been read, but it now has only {run.events}"
                why = f"the store has lost events: {lost}; watch the run again from its first event"
                raise RunError("rolled_back", why, run_id=self._id)
            if run.ended_at is not None and run.events <= number:
                self.run = run
                return
        if number == self._end:  # no watcher moved the tail during the read
            self._events = [*self._events, *events][-WINDOW:]
            self._end += len(events)
            self._start = self._end - len(self._events)
