"""The journal that records a run's responses and tool calls, and replays them in the next process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from reactivex import Observable, concat, throw

from rxllm import LLMError, RunError, Stream, StreamCollector, ToolCall, from_async_iter, serializer
from rxllm.durable._store import Record, reading
from rxllm.durable._writer import Writer
from rxllm.events import EVENT_CLASSES, Event, MessageCompleted
from rxllm.runtime import ToolRecord, current_scope, scoped

LEFT_SECONDS = 30.0
"""The extra time, in seconds, that a replay gets if the original response was disposed early.

Such a replay should be disposed early too. If it is still open after the duration of the original response plus this
extra time, the run fails.
"""

QUIET_SECONDS = 5.0
"""The number of seconds without progress after which a replay counts as stopped.

Any request or tool call that is waiting for recorded tool calls then fails.
"""

LOOK_SECONDS = 0.01
"""The number of seconds between checks while a request or tool call is waiting for recorded tool calls."""

DIVERGED = (
    "the run cannot continue: its factory now builds a different request or tool call, so tools would run twice; "
    "if you change a factory while it has unfinished runs, give the new version a new name"
)


class Left(msgspec.Struct, frozen=True):
    """A response that was disposed early, after `seconds`. `events` holds its events up to that point, as JSON."""

    seconds: float
    events: str


class StoredJournal:
    """A journal (see `rxllm.runtime.Journal`) that replays `records` and passes new records to `writer`.

    A response is recorded when it ends, and committed soon afterwards. A tool call's records are committed before
    `begin` or `finish` returns. If the stream disposes of a response early, for example because a guard has tripped or
    a competitor has won a race, the events received up to that point are recorded. The replay of the response stays
    open after these events, so the guard trips again and the same competitor wins the race.

    A request that is not recorded waits until all recorded tool calls of its chat have been replayed. If a tool runs
    two chats at once, the chats share their records, so a request of one chat may have to wait for calls that the other
    replays. If there is no progress for `QUIET_SECONDS`, the factory has built a different request than before, and the
    model might call tools that have already run. The request then fails without being sent. The run fails too, unless
    something else, such as `fallback`, replays the tool calls. Similarly, if a recorded call of the same chat has the
    same id as a new tool call, the new call waits until the recorded call has been replayed.

    `only_stops` means that the run has been cancelled. The replay then stops the answers that providers may still be
    generating for the run. It sends nothing else and records nothing. It runs a tool again only if a provider may still
    be generating an answer to a request that the tool sent.
    """

    def __init__(self, records: Iterable[Record], writer: Writer, *, only_stops: bool = False) -> None:
        self._writer = writer
        self.only_stops = only_stops
        self._known: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)
        beginnings: dict[str, deque[Any]] = {}  # for each chat, partial responses whose tools started early
        records = list(records)
        self._kept = kept_answers(records)
        for record in records:
            if record.kind == "void":
                self._known.pop(("begin", record.key), None)
                self._known.pop(("finish", record.key), None)
                continue
            entry, known = _read(writer.run_id, record), self._known[record.kind, record.key]
            known.append(entry)
            place, _, name = record.key.rpartition("/")
            if record.kind == "kept" and name.startswith("eager "):
                beginnings[place] = known
            elif record.kind == "response":
                _settle_beginning(beginnings.get(place.rpartition("/")[0], deque[Any]()), entry)
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._is_closed = only_stops
        self.is_handed_over = False
        self._taken_at = time.monotonic()
        self._awaited: set[Sequence[str]] = set()

    def close(self, *, is_cancelled: bool = False) -> None:
        """Stop recording. Call this before you dispose of the stream, so that open responses are not recorded.

        Answers that providers are still generating are left for another process to read, unless `is_cancelled` is True.
        """
        self._is_closed = True
        self.is_handed_over = not is_cancelled

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        key = self._number_key(_place(path, key))
        if (known := self._take("response", key)) is not None:
            return throw(known) if isinstance(known, LLMError) else _emit(known)
        if (known := self._take("left", key)) is not None:
            return _replay_left(*known)
        if self.only_stops and key not in self._kept:
            return throw(RunError("cancelled", run_id=self._writer.run_id))
        scope = current_scope.get()
        noted = self._record_response(key, scoped(events, replace(scope, bookmark=_StoredBookmark(self, key))))
        if not self._is_early(path):
            return noted
        self._awaited.add(tuple(path))
        return concat(from_async_iter(lambda: self._wait_for_tools(path)), noted)

    def check(self) -> None:
        """Raise an error if any chat has had to wait for recorded tool calls that still have not been replayed."""
        if any(map(self._has_tools, tuple(self._awaited))):
            raise RunError("diverged", DIVERGED)

    def _is_early(self, path: Sequence[str]) -> bool:
        """Return whether a request in the chat at `path` must wait for recorded tool calls to be replayed.

        The request must also wait for the recorded calls of every other chat that has had to wait so far. Such a chat
        may belong to an inner agent that has failed because its calls were not replayed. The request could then contain
        this failure as the result of a tool.
        """
        return not self.only_stops and any(map(self._has_tools, (path, *self._awaited)))

    async def _wait_for_tools(self, path: Sequence[str]) -> AsyncIterator[Event]:
        """Wait until the chat at `path` may send a request. This generator yields no events."""
        await self._until(path, lambda: not self._is_early(path))
        for event in ():
            yield event

    async def _until(self, path: Sequence[str], is_replayed: Callable[[], bool]) -> None:
        """Wait until ``is_replayed()`` is True.

        Raises ``RunError("diverged")`` if the replay stops first.
        """
        began = time.monotonic()
        while not is_replayed():
            self._awaited.add(tuple(path))
            if time.monotonic() - max(began, self._taken_at) >= QUIET_SECONDS:
                raise RunError("diverged", DIVERGED)
            await asyncio.sleep(LOOK_SECONDS)

    def _has_tools(self, path: Sequence[str]) -> bool:
        """Return whether any recorded tool calls of the chat at `path` have not been replayed."""
        return any(known for _, known in self._tools(path))

    def _has_call(self, path: Sequence[str], id: str) -> bool:
        """Return whether the start of tool call `id` is recorded for the chat at `path` but has not been replayed."""
        return any(call.id == id for kind, known in self._tools(path) if kind == "begin" for call in [*known])

    def _tools(self, path: Sequence[str]) -> Iterator[tuple[str, deque[Any]]]:
        chat = _place(path, "")
        for (kind, key), known in self._known.items():
            if kind in ("begin", "finish") and key.rpartition("/")[0] + "/" == chat:
                yield kind, known

    def _record_response(self, key: str, events: Observable[Event]) -> Observable[Event]:
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
            # An LLMError is recorded, unless it is a cancellation. After an error that is not recorded, such as the one
            # that a closed loop raises, a replay sends the request again.
            if isinstance(error, LLMError) and error.reason != "cancelled":
                self._note("response", key, serializer.to_json(error))

        def leave() -> None:
            if not has_ended:
                left = Left(time.monotonic() - began, serializer.to_json(state.to_events()))
                self._note("left", key, msgspec.json.encode(left).decode())

        return Stream.of(events).do_action(see, fail, complete).finally_action(leave)

    def take_answer(self, key: str) -> str | None:
        """Remove and return the latest note about a provider's stored answer to the request `key`.

        Return None if there is no such note.
        """
        return self._kept.pop(key, None)

    @property
    def unread_answers(self) -> Sequence[str]:
        """Notes that earlier processes left about answers stored by providers. A note is removed when it is taken."""
        return [*self._kept.values()]

    def _has_answer(self, path: Sequence[str]) -> bool:
        return any(key.startswith(_place(path, "")) for key in self._kept)

    def put_answer(self, key: str, note: str) -> None:
        """Record a note about the provider's stored answer to the request `key`."""
        self._note("answer", key, note)

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        key = _place(path, key)
        call, events = self._take("begin", key), self._take("finish", key)
        if self.only_stops and events is None and not (call and self._has_answer((*path, call.id))):
            return ToolRecord(None, ())
        return None if call is None and events is None else ToolRecord(call, events)

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

    def void(self, path: Sequence[str], key: str) -> None:
        self._note("void", _place(path, key), "")

    def _note(self, kind: str, key: str, data: str) -> None:
        if not self._is_closed:
            self._writer.record(Record(kind, key, data.encode()))

    def _number_key(self, key: str) -> str:
        """Append a number to `key`, because a hedge sends the same request twice and gets two responses."""
        with self._guard:
            self._counts[key] += 1
            return f"{key}/{self._counts[key]}"

    def _take(self, kind: str, key: str) -> Any:
        known = self._known.get((kind, key))
        if not known:
            return None
        self._taken_at = time.monotonic()
        return known.popleft()


def kept_answers(records: Iterable[Record]) -> dict[str, str]:
    """Return the latest note about each answer that a provider may still be generating.

    The keys of the dict are the keys of the requests.
    """
    notes: dict[str, str] = {}
    for record in records:
        if record.kind == "answer":
            notes[record.key] = record.data.decode(errors="replace")
        elif record.kind in ("response", "left"):
            notes.pop(record.key, None)
    return notes


class _StoredBookmark:
    """The bookmark (see `rxllm.runtime.Bookmark`) for the answer to the request `key`."""

    def __init__(self, journal: StoredJournal, key: str) -> None:
        self._journal = journal
        self._key = key
        self._is_late = False

    def take(self) -> str | None:
        return self._journal.take_answer(self._key)

    def put(self, note: str) -> None:
        self._is_late = self._journal.is_handed_over  # if so, the note is dropped, and no process will find the answer
        self._journal.put_answer(self._key, note)

    def is_handed_over(self) -> bool:
        return self._journal.is_handed_over and not self._is_late

    def is_cancelled(self) -> bool:
        return self._journal.only_stops


def _place(path: Sequence[str], key: str) -> str:
    # Tool call ids are chosen by the model, so they can contain lone surrogates, which no store accepts.
    return "/".join(("", *path, key)).encode(errors="backslashreplace").decode()


def _read(run_id: str, record: Record) -> Any:
    """Decode a record.

    Raises ``RunError("unreadable")`` if that fails.
    """
    with reading(f"the {record.kind!r} record for {record.key!r}", run_id):
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


def _settle_beginning(kept: deque[Any], outcome: Any) -> None:
    """Settle the last partial response in `kept` if the recorded response contains all tool calls of the partial one.

    A partial response is settled by an empty list that follows it. The process may have died after it recorded the
    whole response but before it recorded this list, so the list is added here. A partial response that was kept twice
    is not settled, because an earlier process has already used it in place of the whole response.
    """
    if kept and kept[-1] and not (len(kept) > 1 and kept[-1] == kept[-2]) and not isinstance(outcome, LLMError):
        calls = _calls_of(outcome)
        if all(call in calls for call in _calls_of(kept[-1])):
            kept.append([])


def _calls_of(events: Sequence[Event]) -> tuple[ToolCall, ...]:
    return tuple(call for event in events if isinstance(event, MessageCompleted) for call in event.message.tool_calls)


def _events(items: Any) -> Sequence[Event]:
    if not isinstance(items, list) or not all(isinstance(item, EVENT_CLASSES) for item in cast(list[Any], items)):
        raise TypeError("it is not a list of events")
    return cast(list[Event], items)


def _replay_left(seconds: float, events: Sequence[Event]) -> Observable[Event]:
    async def wait() -> None:
        await asyncio.sleep(seconds + LEFT_SECONDS)
        message = (
            "an earlier attempt disposed of this response before it ended; "
            "a factory must build the same stream every time"
        )
        raise RunError("diverged", message)

    return _emit(events, wait)


def _emit(known: Sequence[Event], then: Callable[[], Awaitable[None]] | None = None) -> Observable[Event]:
    async def events() -> AsyncIterator[Event]:
        for event in known:
            yield event
        if then is not None:
            await then()

    return from_async_iter(events)  # a synchronous replay would nest calls deeper with every step
