"""The journal of a run: what its last producers have noted, and notes for the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import msgspec
from reactivex import Observable, throw

from rxllm import LLMError, RunError, Stream, StreamCollector, ToolCall, ToolRecord, from_async_iter, serializer
from rxllm.durable._store import Record
from rxllm.durable._writer import Writer
from rxllm.events import Event

LEFT_SECONDS = 30.0
"""How much longer than before an answer may be listened to that was left before its end."""

DIVERGED = (
    "the run cannot go on: its factory builds another request than before, whose tools would run again; "
    "give a new version of a factory a new name while runs of the old one are open"
)


class Left(msgspec.Struct, frozen=True):
    """An answer that was left before its end, `seconds` after it was asked for; `events` is the JSON of its events."""

    seconds: float
    events: str


class StoredJournal:
    """An `rxllm.Journal` that begins with `records`, and gives its notes to `writer`.

    A response is noted when it has ended, and committed soon after; the notes of tools are committed when `begin` and
    `finish` return. A response that the stream itself has left, as a guard does, or a race the slower one, is noted
    too: its events come again, and then nothing, so that the same is left, and the same has won.

    A request that is not noted, while tools of its chat are that have not come again, is another one than before: it
    is not made, since its answer would run those tools once more. `diverged` is that error.
    """

    def __init__(self, records: Iterable[Record], writer: Writer) -> None:
        self._writer = writer
        self._known: defaultdict[tuple[str, str], deque[bytes]] = defaultdict(deque)
        for record in records:
            self._known[record.kind, record.key].append(record.data)
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._is_closed = False
        self.diverged: RunError | None = None

    def close(self) -> None:
        """Note no more: what is left from now on, is left by the producer, and not by the stream."""
        self._is_closed = True

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        key = self._numbered(_place(path, key))
        if (known := self._take("response", key)) is not None:
            return _replayed(known)
        if (known := self._take("left", key)) is not None:
            return _replayed_left(msgspec.json.decode(known, type=Left))
        if self._has_tools(path):
            self.diverged = RunError("diverged", DIVERGED)
            return throw(self.diverged)
        return self._noted(key, events)

    def _has_tools(self, path: Sequence[str]) -> bool:
        """Return whether tools of the chat at `path` are noted that have not come again."""
        chat = _place(path, "")
        return any(
            known and kind in ("begin", "finish") and key.rpartition("/")[0] + "/" == chat
            for (kind, key), known in self._known.items()
        )

    def _noted(self, key: str, events: Observable[Event]) -> Observable[Event]:
        state, began, has_ended = StreamCollector(), time.monotonic(), False

        def see(event: Event) -> None:
            nonlocal state
            state = state.apply_event(event)

        def complete() -> None:
            nonlocal has_ended
            has_ended = True
            self._note("response", key, serializer.to_json(state.to_events()))

        def fail(error: Exception) -> None:
            nonlocal has_ended
            has_ended = True
            # Other errors are of the caller's code, or, when the loop ends, of nobody: the model is asked again.
            if isinstance(error, LLMError) and error.reason != "cancelled":
                self._note("response", key, serializer.to_json(error))

        def leave() -> None:
            if not has_ended:
                left = Left(time.monotonic() - began, serializer.to_json(state.to_events()))
                self._note("left", key, msgspec.json.encode(left).decode())

        return Stream.of(events).do_action(see, fail, complete).finally_action(leave)

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        key = _place(path, key)
        call, events = self._take("begin", key), self._take("finish", key)
        if call is None and events is None:
            return None
        begun = None if call is None else serializer.from_json(call, ToolCall)
        return ToolRecord(begun, None if events is None else serializer.from_json(events))

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        self._writer.record(Record("begin", _place(path, key), serializer.to_json(call).encode()))
        await self._writer.flush()

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        self._writer.record(Record("finish", _place(path, key), serializer.to_json([*events]).encode()))
        await self._writer.flush()

    def _note(self, kind: str, key: str, data: str) -> None:
        if not self._is_closed:
            self._writer.record(Record(kind, key, data.encode()))

    def _numbered(self, key: str) -> str:
        """Return the key with how often it has been asked before: of a hedge's two, each gets its own answer again."""
        with self._guard:
            self._counts[key] += 1
            return f"{key}/{self._counts[key]}"

    def _take(self, kind: str, key: str) -> bytes | None:
        known = self._known.get((kind, key))
        return known.popleft() if known else None


def _place(path: Sequence[str], key: str) -> str:
    return "/".join(("", *path, key))


def _replayed(known: bytes) -> Observable[Event]:
    outcome = serializer.from_json(known)
    return throw(outcome) if isinstance(outcome, LLMError) else _emitted(outcome)


def _replayed_left(left: Left) -> Observable[Event]:
    async def wait() -> None:
        await asyncio.sleep(left.seconds + LEFT_SECONDS)
        message = "the run listens to an answer that it had left before: its factory builds another stream than it did"
        raise RunError("diverged", message)

    return _emitted(serializer.from_json(left.events), wait)


def _emitted(known: Sequence[Event], then: Callable[[], Awaitable[None]] | None = None) -> Observable[Event]:
    async def events() -> AsyncIterator[Event]:
        for event in known:
            yield event
        if then is not None:
            await then()

    return from_async_iter(events)  # not at once: a chat of a hundred steps would be a hundred calls deep
