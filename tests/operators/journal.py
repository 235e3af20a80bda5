"""A journal in memory, whose entries are JSON, as those of a store are."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from reactivex import Observable, from_iterable, throw

from rxllm import LLMError, Stream, StreamCollector, serializer
from rxllm.events import Event, MessageCompleted
from rxllm.runtime import ToolRecord
from rxllm.values import ToolCall

Entry = tuple[str, Any, str]


class MemoryJournal:
    """Notes `entries`, and answers from those that it `starts_with`."""

    def __init__(self, starts_with: Sequence[Entry] = ()) -> None:
        self.entries: list[Entry] = list(starts_with)
        self.log: list[str] = []  # what happened in this run
        self.fails: Exception | None = None  # what the next note of a tool fails with
        self._answers: dict[Any, deque[str]] = defaultdict(deque)
        self._calls: dict[str, deque[str]] = defaultdict(deque)
        self._outcomes: dict[str, deque[str]] = defaultdict(deque)
        queues = {"response": self._answers, "begin": self._calls, "finish": self._outcomes}
        for kind, key, text in starts_with:
            queues[kind][key].append(text)

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        known = self._answers[tuple(path), key]
        if known:
            self.log.append("replayed")
            found = serializer.from_json(known.popleft())
            return throw(found) if isinstance(found, LLMError) else from_iterable(found)
        state = StreamCollector()

        def see(event: Event) -> None:
            nonlocal state
            state = state.apply_event(event)

        def note(result: Any) -> None:
            self.log.append("answered")
            self.entries.append(("response", (tuple(path), key), serializer.to_json(result)))

        return Stream.of(events).do_action(see, note, lambda: note(state.to_events()))

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        calls, outcomes = self._calls[key], self._outcomes[key]
        if not calls and not outcomes:
            return None
        call = serializer.from_json(calls.popleft(), ToolCall) if calls else None
        return ToolRecord(call, serializer.from_json(outcomes.popleft()) if outcomes else None)

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        await self._note("begin", key, call.name, serializer.to_json(call))

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        await self._note("finish", key, "", serializer.to_json(list(events)))

    async def _note(self, kind: str, key: str, name: str, text: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.log.append(f"{kind} {name}".strip())
        self.entries.append((kind, key, text))


class KeepingJournal(MemoryJournal):
    """A journal that also keeps events, and drops the records of calls whose response was discarded."""

    def __init__(self, starts_with: Sequence[Entry] = ()) -> None:
        valid: list[Entry] = []
        for kind, key, text in starts_with:
            if kind == "void":
                valid = [entry for entry in valid if entry[1] != key]
            elif kind != "kept":
                valid.append((kind, key, text))
        super().__init__(valid)
        self.entries = list(starts_with)
        self._kept: dict[str, deque[str]] = defaultdict(deque)
        for kind, key, text in starts_with:
            if kind == "kept":
                self._kept[key].append(text)
            elif kind == "response" and not isinstance(whole := serializer.from_json(text), LLMError):
                for known in self._kept.values():
                    used = list(known)[-1:] == list(known)[-2:-1]
                    if known and not used and _calls_of(serializer.from_json(known[-1])) <= _calls_of(whole):
                        known.append("[]")

    @property
    def left(self) -> int:
        """The number of records of tools that this run has not used."""
        return sum(map(len, (*self._calls.values(), *self._outcomes.values())))

    def has_response(self, path: Sequence[str], key: str) -> bool:
        return bool(self._answers[tuple(path), key])

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        return serializer.from_json(self._kept[key].popleft()) if self._kept[key] else None

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        self.entries.append(("kept", key, serializer.to_json([*events])))

    def void(self, path: Sequence[str], key: str) -> None:
        self.entries.append(("void", key, ""))


def _calls_of(events: Sequence[Event]) -> set[str]:
    return {call.id for event in events if isinstance(event, MessageCompleted) for call in event.message.tool_calls}
