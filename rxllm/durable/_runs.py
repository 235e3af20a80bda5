"""Start, watch, cancel and recover runs by their ids, from any process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from secrets import token_hex
from typing import Any, Self, TypeVar, cast, get_args

from rxllm import (
    ChatResult,
    LLMError,
    Response,
    RunError,
    Session,
    StepResult,
    Stream,
    StreamCollector,
    from_async_iter,
    serializer,
)
from rxllm.durable._log import Tail
from rxllm.durable._producer import Factory, Producer, Suspects
from rxllm.durable._sessions import (
    SavedSession,
    begin_turn,
    cancel_turn,
    check_session,
    delete_session,
    load_session,
    save_session,
)
from rxllm.durable._sqlite import SQLiteStore
from rxllm.durable._store import LONGEST_LEASE, Run, Status, Store, reading
from rxllm.events import Custom, Event
from rxllm.serializer import from_data, to_data
from rxllm.values.argument_checks import (
    check,
    check_count,
    check_function,
    check_instance,
    check_seconds,
    did_you_mean,
    invalid_option,
    is_count,
    is_name,
    is_positive,
    shown,
)

log = logging.getLogger("rxllm")
T = TypeVar("T")


def open_runs(
    store: str | os.PathLike[str] | Store,
    factories: Mapping[str, Factory],
    *,
    flush_after: float = 0.05,
    lease: float = 15.0,
    max_attempts: int = 10,
) -> Runs:
    """Return the runs in a store: a SQLite file for a path, Redis for ``"redis://..."``.

    >>> import rxllm, tempfile
    >>> from rxllm.durable import open_runs
    >>> def build_greeting(name): return rxllm.stream(rxllm.Fake(f"Hello {name}!"), "Greet them.")
    >>> with tempfile.TemporaryDirectory() as folder, open_runs(f"{folder}/runs.db", {"greet": build_greeting}) as runs:
    ...     id = runs.start("greet", "Ada").run()
    ...     runs.result(id).run()
    ChatResult('Hello Ada!', completed, 1 steps, 0 tokens)

    Each of the `factories` builds a run's whole event stream, with its engine, operators and tools, from the run's
    input. Another process that continues the run calls the factory with the same name. That factory must build the same
    requests from the same input, so requests must not depend on a clock or on random numbers.

    Events are committed within `flush_after` seconds, and at once where something depends on them. After a process
    dies, its runs are blocked for at most `lease` seconds. A run fails with ``RunError("too_many_attempts")`` if
    `max_attempts` processes in a row have died at the same place. From a third of that number on, such runs take turns,
    so that a run that kills its process takes few others down with it. A run that does not repeat its committed steps
    fails with ``RunError("diverged")``.

    Raises ``ValidationError("invalid_option")`` for wrong arguments.
    """
    check_instance("factories", factories, Mapping, "a mapping of names to functions")
    for name, factory in factories.items():
        check_instance("factories", name, str, "a mapping whose keys are names")
        check_function(f"factories[{name!r}]", factory)
    fits = is_positive(lease) and lease <= LONGEST_LEASE
    check("lease", lease, fits, f"a number of seconds above 0, at most {LONGEST_LEASE:g}")
    check_count("max_attempts", max_attempts)
    check_seconds("flush_after", flush_after)
    return Runs(open_store(store), dict(factories), flush_after, lease, max_attempts)


class Runs:
    """The runs in a store, made by `open_runs`. Every method returns a Stream: await it, or call its ``run()``.

    =====================  =============================================================================================
    method                 does
    =====================  =============================================================================================
    `start`                store a new run and, unless ``here=False``, produce it here
    `watch`, `result`      emit the committed events, or their fold; a watcher that leaves does not stop the run
    `cancel`               end a run, whichever process produces it
    `session`              emit a conversation, with the committed part of its open turn; `start` begins a turn
    `save_session`         store a session that was made or changed elsewhere
    `delete_session`       delete a session
    `get`, `list`          emit a run's status, or the newest runs
    `expire`               delete runs that ended long ago
    `recover`              continue here the runs that no process produces, once or repeatedly
    `close`                stop producing; other processes may continue the runs
    =====================  =============================================================================================
    """

    def __init__(
        self, store: Store, factories: Mapping[str, Factory], flush_after: float, lease: float, max_attempts: int
    ) -> None:
        self._store, self._factories, self._flush_after, self._lease_seconds = store, factories, flush_after, lease
        self._max_attempts, self._suspects = max_attempts, Suspects()
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._producers: dict[str, Producer] = {}
        self._tails: dict[tuple[asyncio.AbstractEventLoop, str], Tail] = {}
        self._claims: set[Future[None]] = set()  # one per pending claim, done once it has succeeded or failed
        self._is_closed = False

    def __repr__(self) -> str:
        names = ", ".join(self._factories) or "no factories"
        return f"Runs({self._store!r}, {names}; {len(self._producers)} produced here)"

    @property
    def produced(self) -> tuple[str, ...]:
        """The ids of the runs that this object produces."""
        return tuple(self._producers)

    def start(
        self,
        factory: str,
        input: Any = None,
        *,
        id: str | None = None,
        session: SavedSession | None = None,
        here: bool = True,
    ) -> Stream[str]:
        """Store a new run of a factory, begin to produce it, and emit its id.

        `input` is anything that `rxllm.serializer` can write, even inside dicts and lists: a text, a `Thread`, a
        `ChatResult`. Anyone with the id can watch and cancel the run; the default id cannot be guessed. With
        ``here=False`` the run waits for a worker.

        With a `session`, as `Runs.session` emits it, the run is the session's next turn. The factory takes the session
        as its second argument, and however the run ends, the session is saved with the run's events.

        Raises ``RunError("unknown_factory")`` and ``ValidationError`` at the call. Fails with ``RunError("exists")`` if
        another run has the id, and with ``RunError("conflict")`` if the session has another version or an open turn; no
        request is sent then.
        """
        check_instance("id", id, str | None, "text, or None for a new one")
        check("id", id, id is None or is_name(id), "text, or None for a new one")
        if session is not None:
            check_instance("session", session, SavedSession, "a SavedSession, as Runs.session emits it")
            check_session(session.session)
            check("id", id, id is None, "omitted with a session, whose turn gets an id of its own")
        if factory not in self._factories:
            guess, known = did_you_mean(str(factory), self._factories), ", ".join(self._factories) or "none"
            raise RunError("unknown_factory", f"there is no factory {factory!r}{guess}; there are: {known}")
        data = serializer.to_json(Custom("input", input)).encode()
        _check_text(input)

        async def start() -> str:
            if session is not None:
                new = await begin_turn(self._store, factory, input, session)
            else:
                new = id or token_hex(16)
                await self._store.create(Run(new, factory, data))
            if here:
                await self._take(new, factory)
            return new

        return _once(start)

    def watch(self, id: str, after: int = 0, *, folded: bool = False) -> Stream[Event]:
        """Emit the events of a run: the committed ones from number ``after + 1``, then live ones.

        Events are numbered from 1, so a watcher that has received n of them resumes with ``after=n``. With `folded`,
        `after` is ignored, and the committed events are replaced by the fewest that fold to the same state, as in
        ``ops.share_folded``.

        Completes when the run does. Fails with the run's error if the run fails, with ``RunError("cancelled")`` if it
        is cancelled, and with ``RunError("unknown_run")`` or ``RunError("store_unavailable")``.
        """
        _check_id(id)
        is_number = is_count(after) or after == 0
        check("after", after, is_number, "the number of the last event received, 0 or more")

        async def events() -> AsyncIterator[Event]:
            key = asyncio.get_running_loop(), id
            tail = self._tails.setdefault(key, Tail(self._store, id))
            tail.watchers += 1
            try:
                number = after
                if folded:
                    state, number = await tail.folded()
                    for event in state.to_events():
                        yield event
                elif after and (count := (await self._store.load(id)).events) < after:
                    raise invalid_option("after", f"is {after}, but the run {id} has {count} events so far")
                while page := await tail.after(number):
                    for event in page:
                        yield event
                    number += len(page)
                _raise_error(tail.run)
            finally:
                tail.watchers -= 1
                if not tail.watchers:
                    tail.close()
                    self._tails.pop(key, None)

        return from_async_iter(events)

    def result(self, id: str, *, response_format: Any = None) -> Stream[ChatResult | StepResult | Response]:
        """Emit the fold of the run's events once it ends: a `ChatResult`, `StepResult` or `Response`.

        The log does not hold `parsed`: pass the call's `response_format` to get that value. Fails as `watch` does.
        """
        result = self.watch(id, folded=True).reduce(StreamCollector.apply_event, StreamCollector()).map(_result)
        if response_format is None:
            return result
        return result.map(lambda value: from_data(to_data(value), response_format=response_format))

    def cancel(self, id: str) -> Stream[None]:
        """Request the end of a run, whichever process produces it: its connections close, and it ends ``cancelled``.

        A run that has ended does not change. Fails with ``RunError("unknown_run")``.
        """
        _check_id(id)

        async def cancel() -> None:
            run = await self._store.load(id)
            if await cancel_turn(self._store, run, self._owner, self._lease_seconds):
                return
            await self._store.cancel(id)
            if id in self._producers:
                self._producers[id].cancel()

        return _once(cancel)

    def session(self, id: str) -> Stream[SavedSession]:
        """Emit the committed session with this id, or an empty one if there is none.

        While a turn is open, `SavedSession.run` is the id to watch; `start` begins the next turn after that run ends.
        """
        _check_id(id)
        return _once(lambda: load_session(self._store, id))

    def save_session(self, session: Session, version: int = 0) -> Stream[SavedSession]:
        """Replace version `version` of the stored session, 0 for a new one, with `session`, and emit the result.

        Fails with ``RunError("conflict")`` if the store has another version, or a turn is open.
        """
        check_session(session)
        check("version", version, is_count(version) or version == 0, "the version of the saved session, 0 or more")
        return _once(lambda: save_session(self._store, session, version))

    def delete_session(self, id: str) -> Stream[None]:
        """Delete the session with this id. Fails with ``RunError("conflict")`` while a turn is open."""
        _check_id(id)
        return _once(lambda: delete_session(self._store, id))

    def get(self, id: str) -> Stream[Run]:
        """Emit the run with its current status. Fails with ``RunError("unknown_run")``."""
        _check_id(id)
        return _once(lambda: self._store.load(id))

    def list(self, status: Status | None = None, limit: int = 1000) -> Stream[Sequence[Run]]:
        """Emit the most recent runs, newest first, limited to `status` if it is given."""
        known = get_args(Status)
        check("status", status, status is None or status in known, f"None or one of {', '.join(known)}")
        check_count("limit", limit)
        return _once(lambda: self._store.runs(status, limit))

    def expire(self, seconds: float) -> Stream[int]:
        """Delete the runs that ended at least `seconds` ago, and emit their number."""
        check_seconds("seconds", seconds)
        return _once(lambda: self._store.expire(seconds))

    def recover(self, limit: int = 100, every: float | None = None) -> Stream[tuple[str, ...]]:
        """Continue here up to `limit` runs of these factories that no process produces, and emit their ids.

        With `every`, repeat this at that interval, in seconds, until disposed or closed. Ids are emitted whenever there
        are any, and a store that is unavailable is tried again.
        """
        check_count("limit", limit)
        check("every", every, every is None or is_positive(every), "None or a number of seconds above 0")

        async def recover() -> tuple[str, ...]:
            ids = await self._store.claimable([*self._factories], limit)
            return tuple([id for id in ids if await take(id)])

        async def take(id: str) -> bool:
            try:
                return await self._take(id, (await self._store.load(id)).factory)
            except RunError as error:
                if error.reason != "unknown_run":  # it ended after the first read, and has expired
                    raise
                return False

        async def rounds(seconds: float) -> AsyncIterator[tuple[str, ...]]:
            while not self._is_closed:
                try:
                    if ids := await recover():
                        yield ids
                except RunError as error:
                    log.warning("no runs can be recovered now: %s", error)
                await asyncio.sleep(seconds)

        return _once(recover) if every is None else from_async_iter(lambda: rounds(every))

    def close(self) -> Stream[None]:
        """Stop producing, release the leases, and close the store. Other processes may `recover` the runs.

        If the store stalls, this waits as long as a lease lasts and then abandons the runs, which can be recovered once
        their leases expire.
        """

        async def close() -> None:
            self._is_closed = True
            producers = [*self._producers.values()]
            for producer in producers:
                producer.stop()
            if pending := [*(producer.ended for producer in producers), *self._claims]:  # on loops that may have ended
                await asyncio.wait([asyncio.wrap_future(future) for future in pending], timeout=self._lease_seconds)
            for producer in producers:
                producer.abandon()
            await self._store.close()

        return _once(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close().run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _take(self, id: str, factory: str) -> bool:
        """Produce a run here unless another process does; return whether it is produced here."""
        if self._is_closed:
            return False
        claimed: Future[None] = Future()
        self._claims.add(claimed)
        try:
            lease = await self._store.claim(id, self._owner, self._lease_seconds)
            if lease is not None and self._is_closed:  # closed during the claim
                await self._store.release(lease)
                return False
        finally:
            self._claims.remove(claimed)
            claimed.set_result(None)
        if lease is None:
            return False
        options = self._flush_after, self._max_attempts, self._suspects
        producer = Producer(self._store, lease, self._factories[factory], *options)
        self._producers[id] = producer

        def forget(_: object) -> None:
            if self._producers.get(id) is producer:
                del self._producers[id]

        producer.start().add_done_callback(forget)
        return True


def open_store(store: str | os.PathLike[str] | Store) -> Store:
    """Return a store: in a SQLite file for a path, in Redis for ``"redis://..."``, or a `Store` itself.

    It connects on first use. Raises ``ValidationError("invalid_option")`` for anything else, and
    ``EngineError("missing_dependency")`` for Redis without ``rxllm[redis]``.
    """
    if isinstance(store, str) and store.startswith(("redis://", "rediss://", "unix://")):
        from rxllm.durable._redis import RedisStore  # redis-py is an extra

        return RedisStore(store)
    if isinstance(store, str | os.PathLike):
        path = os.fspath(store)
        if "://" in path:  # it is not shown, as it may contain a password
            raise invalid_option("store", 'must be a path, "redis://..." or a Store, not another kind of address')
        check("store", path, bool(path) and not path.startswith(":memory:"), "the path of a file")
        return SQLiteStore(path)
    methods = [name for name in vars(Store) if not name.startswith("_")]
    is_store = not isinstance(store, type) and all(callable(getattr(store, name, None)) for name in methods)
    check("store", store, is_store, 'a path, "redis://..." or a Store')
    return cast(Any, store)


def _check_id(id: Any) -> None:
    check("id", id, is_name(id), "the id of a run, as start emits it")


def _check_text(item: Any) -> None:
    """Raise for a lone surrogate in plain data; inside values, a model or a tool may have written it."""
    match item:
        case str() if item and not is_name(item):
            fault = f"has half a surrogate pair: got {shown(item)}; pass text that can be encoded"
            raise invalid_option("input", fault)
        case Mapping():
            for entry in cast(Mapping[Any, Any], item).items():
                _check_text(entry)
        case list() | tuple():
            for entry in cast(Sequence[Any], item):
                _check_text(entry)
        case _:
            pass


def _once(call: Callable[[], Awaitable[T]]) -> Stream[T]:
    """Return a Stream that calls `call` per subscription, and emits its result."""

    async def items() -> AsyncIterator[T]:
        yield await call()

    return from_async_iter(items)


def _raise_error(run: Run | None) -> None:
    """Raise the error of a run that has failed or was cancelled."""
    if run is not None and run.status == "cancelled":
        raise RunError("cancelled", run_id=run.id)
    if run is not None and run.status == "failed":
        if not run.error:
            raise RunError("lease_lost", run_id=run.id)
        with reading("its error", run.id):
            error = serializer.from_json(run.error, LLMError)
        error.is_logged = True  # the producer has logged it with its traceback
        raise error


def _result(state: StreamCollector) -> ChatResult | StepResult | Response:
    if state.chat_result is not None:
        return state.chat_result
    return state.to_step_result() if state.steps else state.to_response()
