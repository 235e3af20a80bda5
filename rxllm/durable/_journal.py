"""The writer that commits a run's events and renews its lease, and the journal used to replay a run."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from reactivex import Observable, concat, throw

from rxllm import LLMError, RunError, Stream, StreamCollector, ToolCall, from_async_iter, serializer
from rxllm.durable._store import Ending, Lease, Record, Store, reading
from rxllm.events import EVENT_CLASSES, Event, MessageCompleted
from rxllm.runtime import ToolRecord, current_scope, scoped

log = logging.getLogger("rxllm")

BATCH = 256
"""The number of waiting events that triggers an immediate commit."""

MOST = 1024
"""The number of events that may queue up for a slow store before the stream is paused."""

APPENDING_SECONDS = 0.25
"""The number of seconds by which a renewal is delayed if an append has just checked for cancel requests."""

FOREVER = 2**53
"""An event number that no run ever reaches."""

LEFT_SECONDS = 30.0
"""The number of extra seconds given to a replayed response. If it has not been disposed by then, the run fails."""

QUIET_SECONDS = 5.0
"""The time limit for a stalled replay, in seconds. After that, requests and tools no longer wait for recorded tools."""

LOOK_SECONDS = 0.01
"""The number of seconds between checks while a request or tool waits for recorded tools."""

DIVERGED = (
    "the run cannot continue: its factory now builds a different request or tool call, so tools would run twice; "
    "if you change a factory while it has unfinished runs, give the new version a new name"
)


class Writer:
    """Appends batches of events and records to the run that `lease` belongs to.

    A batch is committed at most `flush_after` seconds after its first event. `event`, `record` and `flush` can be
    called from any thread or event loop, all other methods only on the loop that runs `run`. Calls to an unavailable
    store are retried until the lease expires.
    """

    def __init__(self, store: Store, lease: Lease, flush_after: float) -> None:
        self._store, self._lease, self._flush_after = store, lease, flush_after
        self.run_id = lease.run_id
        self.noted = 0  # the number of records so far
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._until = self._loop.time() + lease.seconds
        self._guard = threading.Lock()
        self._events: list[bytes] = []
        self._records: list[Record] = []
        self._ending: Ending | None = None
        self._waiting: list[Future[None]] = []
        self._some, self._urgent, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._batches = 0
        self._error: RunError | None = None
        self.is_cancelled: asyncio.Future[None] = self._loop.create_future()

    def event(self, data: bytes) -> None:
        with self._guard:
            self._events.append(data)
            count = len(self._events)
        if count == 1 or count == BATCH:
            self._wake(count == BATCH)

    def record(self, record: Record) -> None:
        with self._guard:
            self._records.append(record)
            self.noted += 1
        self._wake(True)  # a lost response would have to be requested, and paid for, again

    async def flush(self, ending: Ending | None = None) -> None:
        """Commit everything added so far, including the run's `ending` if there is one.

        Raises ``RunError`` if the commit fails.
        """
        committed: Future[None] = Future()
        with self._guard:
            if self._error is not None:
                raise self._error
            self._ending = self._ending or ending
            self._waiting.append(committed)
        self._wake(True)
        await asyncio.wrap_future(committed)

    @property
    def is_full(self) -> bool:
        return len(self._events) >= MOST

    async def room(self) -> None:
        """Wait until there is room for more events."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Append batches to the log until this task is cancelled. Raises ``RunError`` if appending fails."""
        try:
            while True:
                await self._some.wait()
                timer = self._loop.call_later(self._flush_after, self._urgent.set)
                await self._urgent.wait()
                timer.cancel()
                await self._append()
        except RunError as error:
            self._fail(error)
            raise
        finally:
            self._fail(RunError("lease_lost", run_id=self._lease.run_id))

    async def keep_lease(self) -> None:
        """Keep renewing the lease, and watch for cancel requests. Raises ``RunError`` if either fails."""
        while True:
            # Start waiting first, so that no cancel request is missed. The renewal reports any earlier ones.
            batches = self._batches
            waiting = asyncio.create_task(self._store.wait(self._lease.run_id, FOREVER, self._lease.seconds / 3))
            waiting.add_done_callback(lambda task: task.cancelled() or task.exception())  # ignore failures
            try:
                await asyncio.sleep(0)
                self._note(await self._retry(partial(self._store.renew, self._lease)))
                await waiting
                if self._batches != batches:  # our own append ended the wait, and checked for cancel requests
                    await asyncio.sleep(APPENDING_SECONDS)
            except RunError as error:
                if error.reason != "store_unavailable" or self._loop.time() > self._until:
                    raise
                await asyncio.sleep(self._lease.seconds / 10)
            finally:
                waiting.cancel()

    async def _append(self) -> None:
        with self._guard:
            self._some.clear()
            self._urgent.clear()
            events, self._events = self._events, []
            records, self._records = self._records, []
            waiting, self._waiting = self._waiting, []
            ending = self._ending
        if events or records or ending:
            self._batches += 1
            token = f"{self._lease.epoch}-{self._batches}"
            try:
                append = partial(self._store.append, self._lease, events, records, ending, token)
                self._note(await self._retry(append))
            except BaseException:
                self._waiting += waiting
                raise
        self._room.set()
        _settle(waiting, None)

    async def _retry(self, call: Callable[[], Awaitable[bool]]) -> bool:
        pause = 0.05
        while True:
            began = self._loop.time()
            try:
                result = await call()
            except RunError as error:
                if error.reason != "store_unavailable" or self._loop.time() + pause > self._until:
                    raise
                log.warning("run %s is waiting for its store to become available: %s", self._lease.run_id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
            else:
                self._until = began + self._lease.seconds
                return result

    def _note(self, is_cancelled: bool) -> None:
        if is_cancelled and not self.is_cancelled.done():
            self.is_cancelled.set_result(None)

    def _fail(self, error: RunError) -> None:
        with self._guard:
            self._error = self._error or error
            waiting, self._waiting = self._waiting, []
        _settle(waiting, self._error)

    def _wake(self, is_urgent: bool) -> None:
        if threading.get_ident() == self._thread:
            self._set(is_urgent)
            return
        with suppress(RuntimeError):  # the loop is closed, so the run has ended
            self._loop.call_soon_threadsafe(self._set, is_urgent)

    def _set(self, is_urgent: bool) -> None:
        self._some.set()
        if is_urgent or not self._flush_after:
            self._urgent.set()


def _settle(waiting: Sequence[Future[None]], error: RunError | None) -> None:
    for future in waiting:
        if not future.set_running_or_notify_cancel():  # the caller has stopped waiting
            continue
        future.set_result(None) if error is None else future.set_exception(error)


class Left(msgspec.Struct, frozen=True):
    """A response that was disposed after `seconds`, before it had ended. Its `events` are stored as JSON."""

    seconds: float
    events: str


class StoredJournal:
    """A journal (see `rxllm.runtime.Journal`) that replays `records` and passes new records to `writer`.

    A response is recorded when it ends, and committed soon afterwards. A tool call's records are committed before
    `begin` or `finish` returns. If the stream disposes a response early, for example because a guard has tripped or a
    race was won, the events so far are recorded. The replay stays open after these events, so the guard trips again and
    the same competitor wins the race.

    After a new request, the model could call tools that have already run. The request therefore waits until all
    recorded tool calls of its chat have been replayed. A request waits if it differs from the recorded one, or if a
    tool runs two chats at once. If the replay stops too early, the request fails without being sent. The run fails
    too, unless something else, such as `fallback`, replays the tools. In the same way, a new tool call waits for a
    recorded call with the same id in its chat.
    """

    def __init__(self, records: Iterable[Record], writer: Writer) -> None:
        self._writer = writer
        self._known: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)
        beginnings: dict[str, deque[Any]] = {}  # the responses that were kept when a tool started early, by chat
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
        self._is_closed = False
        self.is_handed_over = False
        self._taken_at = time.monotonic()
        self._awaited: set[Sequence[str]] = set()

    def close(self, *, is_cancelled: bool = False) -> None:
        """Stop recording. Call this before you dispose the stream, so that open responses are not recorded.

        Unless the run is cancelled, another process will read the answers that the providers keep.
        """
        self._is_closed = True
        self.is_handed_over = not is_cancelled

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        key = self._number_key(_place(path, key))
        if (known := self._take("response", key)) is not None:
            return throw(known) if isinstance(known, LLMError) else _emit(known)
        if (known := self._take("left", key)) is not None:
            return _replay_left(*known)
        scope = current_scope.get()
        noted = self._record_response(key, scoped(events, replace(scope, bookmark=_StoredBookmark(self, key))))
        if not self._is_early(path):
            return noted
        self._awaited.add(tuple(path))
        return concat(from_async_iter(lambda: self._wait_for_tools(path)), noted)

    def check(self) -> None:
        """Raise if any chat had to wait for recorded tools that still have not been replayed."""
        if any(map(self._has_tools, tuple(self._awaited))):
            raise RunError("diverged", DIVERGED)

    def _is_early(self, path: Sequence[str]) -> bool:
        """Whether a request in the chat at `path` must wait until recorded tool calls have been replayed.

        The recorded calls of every chat that has had to wait so far must be replayed, too. An inner agent may have
        given up on its calls, and the model may have read about this failure.
        """
        return any(map(self._has_tools, (path, *self._awaited)))

    async def _wait_for_tools(self, path: Sequence[str]) -> AsyncIterator[Event]:
        """Emit nothing, and complete when the chat at `path` may send a request."""
        await self._until(path, lambda: not self._is_early(path))
        for event in ():
            yield event

    async def _until(self, path: Sequence[str], is_replayed: Callable[[], bool]) -> None:
        """Wait until ``is_replayed()`` is True. Raises ``RunError("diverged")`` if the replay stops first."""
        began = time.monotonic()
        while not is_replayed():
            self._awaited.add(tuple(path))
            if time.monotonic() - max(began, self._taken_at) >= QUIET_SECONDS:
                raise RunError("diverged", DIVERGED)
            await asyncio.sleep(LOOK_SECONDS)

    def _has_tools(self, path: Sequence[str]) -> bool:
        """Whether the chat at `path` has recorded tool calls that have not been replayed."""
        return any(known for _, known in self._tools(path))

    def _has_call(self, path: Sequence[str], id: str) -> bool:
        """Whether the start of tool call `id` in the chat at `path` is recorded but has not been replayed."""
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
            # Other errors, such as a closed loop, are not recorded, so the request will be sent again.
            if isinstance(error, LLMError) and error.reason != "cancelled":
                self._note("response", key, serializer.to_json(error))

        def leave() -> None:
            if not has_ended:
                left = Left(time.monotonic() - began, serializer.to_json(state.to_events()))
                self._note("left", key, msgspec.json.encode(left).decode())

        return Stream.of(events).do_action(see, fail, complete).finally_action(leave)

    def take_answer(self, key: str) -> str | None:
        """Return the last note about the kept answer to the request with this key, if there is one."""
        notes = self._known.pop(("answer", key), None)
        return notes[-1].decode() if notes else None

    def put_answer(self, key: str, note: str) -> None:
        """Record `note` about the kept answer to the request with this key."""
        self._note("answer", key, note)

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        key = _place(path, key)
        call, events = self._take("begin", key), self._take("finish", key)
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
        """Return `key` with a number, because a hedge sends the same request twice and gets two responses."""
        with self._guard:
            self._counts[key] += 1
            return f"{key}/{self._counts[key]}"

    def _take(self, kind: str, key: str) -> Any:
        known = self._known.get((kind, key))
        if not known:
            return None
        self._taken_at = time.monotonic()
        return known.popleft()


class _StoredBookmark:
    """The bookmark (see `rxllm.runtime.Bookmark`) for the answer to the request with the key `key`."""

    def __init__(self, journal: StoredJournal, key: str) -> None:
        self._journal = journal
        self._key = key

    def take(self) -> str | None:
        return self._journal.take_answer(self._key)

    def put(self, note: str) -> None:
        self._journal.put_answer(self._key, note)

    def is_handed_over(self) -> bool:
        return self._journal.is_handed_over


def _place(path: Sequence[str], key: str) -> str:
    # Tool call ids are chosen by the model, so they can contain lone surrogates, which no store accepts.
    return "/".join(("", *path, key)).encode(errors="backslashreplace").decode()


def _read(run_id: str, record: Record) -> Any:
    """Decode a record. Raises ``RunError("unreadable")`` if that fails."""
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
    """Append an empty list to `kept` if the recorded response `outcome` contains all tool calls that were kept last.

    The process may have died before it recorded this list. A beginning that was kept twice has been used in place of
    its response, so it stays.
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
        message = "the stream differs from an earlier attempt, which disposed this response early"
        raise RunError("diverged", message)

    return _emit(events, wait)


def _emit(known: Sequence[Event], then: Callable[[], Awaitable[None]] | None = None) -> Observable[Event]:
    async def events() -> AsyncIterator[Event]:
        for event in known:
            yield event
        if then is not None:
            await then()

    return from_async_iter(events)  # a synchronous replay would nest calls deeper with every step
