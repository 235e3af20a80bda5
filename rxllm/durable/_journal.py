"""The journal of a run: what its last producers have noted, and notes for the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
from reactivex import Observable, concat, throw

from rxllm import LLMError, RunError, Stream, StreamCollector, ToolCall, from_async_iter, serializer
from rxllm.durable._reading import reading
from rxllm.durable._store import Record
from rxllm.durable._writer import Writer
from rxllm.events import EVENT_CLASSES, Event
from rxllm.runtime import ToolRecord

LEFT_SECONDS = 30.0
"""How much longer than before an answer may be listened to that was left before its end."""

QUIET_SECONDS = 5.0
"""How long what might run tools again waits for their notes, while none at all comes again."""

LOOK_SECONDS = 0.01
"""How often it looks whether they have."""

DIVERGED = (
    "the run cannot go on: its factory builds another request or tool call than before, and tools would run again; "
    "give a new version of a factory a new name while runs of the old one are open"
)


class Left(msgspec.Struct, frozen=True):
    """An answer that was left before its end, `seconds` after it was asked for; `events` is the JSON of its events."""

    seconds: float
    events: str


class StoredJournal:
    """An `rxllm.runtime.Journal` that begins with `records`, and gives its notes to `writer`.

    A response is noted when it has ended, and committed soon after; the notes of tools are committed when `begin` and
    `finish` return. A response that the stream itself has left, as a guard does, or a race the slower one, is noted
    too: its events come again, and then nothing, so that the same is left, and the same has won.

    A request that is not noted, while tools of its chat are that have not come again, may be another one than before,
    whose answer would run those tools once more; or there are two chats, as in a tool that runs some at once. So it
    waits until they have come again. If nothing comes any more, it fails and is not made, and the run fails unless
    something else brings them, as `fallback` does. A tool waits in the same way for the notes of a call with its id.
    """

    def __init__(self, records: Iterable[Record], writer: Writer) -> None:
        self._writer = writer
        self._known: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)
        for record in records:
            self._known[record.kind, record.key].append(_read(writer.run_id, record))
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._is_closed = False
        self._taken_at = time.monotonic()
        self._awaited: set[Sequence[str]] = set()

    def close(self) -> None:
        """Note no more: what is left from now on, is left by the producer, and not by the stream."""
        self._is_closed = True

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        key = self._numbered(_place(path, key))
        if (known := self._take("response", key)) is not None:
            return _replayed(known)
        if (known := self._take("left", key)) is not None:
            return _replayed_left(*known)
        noted = self._noted(key, events)
        if not self._is_early(path):
            return noted
        self._awaited.add(tuple(path))
        return concat(from_async_iter(lambda: self._waiting(path)), noted)

    def check(self) -> None:
        """Raise if tools have not come again that something has waited for: the chat is about to go on without them."""
        if any(map(self._has_tools, tuple(self._awaited))):
            raise RunError("diverged", DIVERGED)

    def _is_early(self, path: Sequence[str]) -> bool:
        """Return whether a request of the chat at `path` is to wait for tools.

        It is so for those of an agent too that has waited in vain, and has failed with words for the model.
        """
        return any(map(self._has_tools, (path, *self._awaited)))

    async def _waiting(self, path: Sequence[str]) -> AsyncIterator[Event]:
        """Emit nothing, and complete when a request of the chat at `path` may be made."""
        await self._until(path, lambda: not self._is_early(path))
        for event in ():
            yield event

    async def _until(self, path: Sequence[str], has_come: Callable[[], bool]) -> None:
        """Wait for tools at `path` to come again. Raise ``RunError("diverged")`` when nothing comes any more."""
        began = time.monotonic()
        while not has_come():
            self._awaited.add(tuple(path))
            if time.monotonic() - max(began, self._taken_at) >= QUIET_SECONDS:
                raise RunError("diverged", DIVERGED)
            await asyncio.sleep(LOOK_SECONDS)

    def _has_tools(self, path: Sequence[str]) -> bool:
        """Return whether tools of the chat at `path` are noted that have not come again."""
        return any(known for _, known in self._tools(path))

    def _has_call(self, path: Sequence[str], id: str) -> bool:
        """Return whether the tool call `id` of the chat at `path` is noted to have begun, and has not come again."""
        calls = (call for kind, known in self._tools(path) if kind == "begin" for call in [*known])
        return any(call.id == id for call in calls)

    def _tools(self, path: Sequence[str]) -> Iterator[tuple[str, deque[Any]]]:
        chat = _place(path, "")
        for (kind, key), known in self._known.items():
            if kind in ("begin", "finish") and key.rpartition("/")[0] + "/" == chat:
                yield kind, known

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
        return ToolRecord(call, events)

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        await self._until(path, lambda: not self._has_call(path, call.id))
        self._writer.record(Record("begin", _place(path, key), serializer.to_json(call).encode()))
        await self._writer.flush()

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        self._writer.record(Record("finish", _place(path, key), serializer.to_json([*events]).encode()))
        await self._writer.flush()

    def has_response(self, path: Sequence[str], key: str) -> bool:
        place = _place(path, key)
        place = f"{place}/{self._counts[place] + 1}"
        return any(self._known.get((kind, place)) for kind in ("response", "left"))

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        return self._take("kept", _place(path, key))

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        self._note("kept", _place(path, key), serializer.to_json([*events]))

    def _note(self, kind: str, key: str, data: str) -> None:
        if not self._is_closed:
            self._writer.record(Record(kind, key, data.encode()))

    def _numbered(self, key: str) -> str:
        """Return the key with how often it has been asked before: of a hedge's two, each gets its own answer again."""
        with self._guard:
            self._counts[key] += 1
            return f"{key}/{self._counts[key]}"

    def _take(self, kind: str, key: str) -> Any:
        known = self._known.get((kind, key))
        if not known:
            return None
        self._taken_at = time.monotonic()
        return known.popleft()


def _place(path: Sequence[str], key: str) -> str:
    # The ids of calls are the model's, and may have halves of surrogate pairs, which no store takes.
    return "/".join(("", *path, key)).encode(errors="backslashreplace").decode()


def _read(run_id: str, record: Record) -> Any:
    """Return what is noted. Raises ``RunError("unreadable")``."""
    with reading(f"the note {record.kind!r} of {record.key!r}", run_id):
        match record.kind:
            case "begin":
                return serializer.from_json(record.data, ToolCall, local_files=True)
            case "finish" | "kept":
                return _events(serializer.from_json(record.data, local_files=True))
            case "response":
                outcome = serializer.from_json(record.data, local_files=True)
                return outcome if isinstance(outcome, LLMError) else _events(outcome)
            case "left":
                left = msgspec.json.decode(record.data, type=Left)
                return left.seconds, _events(serializer.from_json(left.events, local_files=True))
            case _:
                return record.data


def _events(items: Any) -> Sequence[Event]:
    if not isinstance(items, list) or not all(isinstance(item, EVENT_CLASSES) for item in cast(list[Any], items)):
        raise TypeError("it is not a list of events")
    return cast(list[Event], items)


def _replayed(outcome: LLMError | Sequence[Event]) -> Observable[Event]:
    return throw(outcome) if isinstance(outcome, LLMError) else _emitted(outcome)


def _replayed_left(seconds: float, events: Sequence[Event]) -> Observable[Event]:
    async def wait() -> None:
        await asyncio.sleep(seconds + LEFT_SECONDS)
        message = "the run listens to an answer that it had left before: its factory builds another stream than it did"
        raise RunError("diverged", message)

    return _emitted(events, wait)


def _emitted(known: Sequence[Event], then: Callable[[], Awaitable[None]] | None = None) -> Observable[Event]:
    async def events() -> AsyncIterator[Event]:
        for event in known:
            yield event
        if then is not None:
            await then()

    return from_async_iter(events)  # not at once: a chat of a hundred steps would be a hundred calls deep
