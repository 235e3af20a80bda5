"""The journal of a run: what its last producers have noted, and notes for the next."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence

from reactivex import Observable, throw

from rxllm import LLMError, Stream, StreamCollector, ToolCall, ToolRecord, from_async_iter, serializer
from rxllm.durable._store import Record
from rxllm.durable._writer import Writer
from rxllm.events import Event


class StoredJournal:
    """An `rxllm.Journal` that begins with `records`, and gives its notes to `writer`.

    A response is noted when it has ended, and committed soon after; the notes of tools are committed when `begin` and
    `finish` return.
    """

    def __init__(self, records: Iterable[Record], writer: Writer) -> None:
        self._writer = writer
        self._known: defaultdict[tuple[str, str], deque[bytes]] = defaultdict(deque)
        for record in records:
            self._known[record.kind, record.key].append(record.data)

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        key = "/".join((*path, key))
        known = self._take("response", key)
        if known is not None:
            return _replayed(known)
        state = StreamCollector()

        def see(event: Event) -> None:
            nonlocal state
            state = state.apply_event(event)

        def note(outcome: LLMError | list[Event]) -> None:
            self._writer.record(Record("response", key, serializer.to_json(outcome).encode()))

        def fail(error: Exception) -> None:
            # Other errors are of the caller's code, or, when the loop ends, of nobody: the model is asked again.
            if isinstance(error, LLMError) and error.reason != "cancelled":
                note(error)

        return Stream.of(events).do_action(see, fail, lambda: note(state.to_events()))

    def tool(self, key: str) -> ToolRecord | None:
        call, events = self._take("begin", key), self._take("finish", key)
        if call is None and events is None:
            return None
        begun = None if call is None else serializer.from_json(call, ToolCall)
        return ToolRecord(begun, None if events is None else serializer.from_json(events))

    async def begin(self, key: str, call: ToolCall) -> None:
        self._writer.record(Record("begin", key, serializer.to_json(call).encode()))
        await self._writer.flush()

    async def finish(self, key: str, events: Sequence[Event]) -> None:
        self._writer.record(Record("finish", key, serializer.to_json([*events]).encode()))
        await self._writer.flush()

    def _take(self, kind: str, key: str) -> bytes | None:
        known = self._known.get((kind, key))
        return known.popleft() if known else None


def _replayed(known: bytes) -> Observable[Event]:
    outcome = serializer.from_json(known)
    if isinstance(outcome, LLMError):
        return throw(outcome)

    async def events() -> AsyncIterator[Event]:
        for event in outcome:
            yield event

    return from_async_iter(events)  # not at once: a chat of a hundred steps would be a hundred calls deep
