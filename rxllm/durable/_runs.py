"""Start, watch, cancel and recover runs by id, from any process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, Self, TypeVar, cast, get_args, overload

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
from rxllm.durable._journal import kept_answers
from rxllm.durable._log import Tail
from rxllm.durable._producer import Factory
from rxllm.durable._producers import Producers
from rxllm.durable._sessions import (
    begin_turn,
    cancel_turn,
    check_session,
    delete_session,
    load_session,
    open_run,
    save_session,
)
from rxllm.durable._sqlite import SQLiteStore
from rxllm.durable._store import LONGEST_LEASE, Run, Status, Store, reading
from rxllm.events import Custom, Event
from rxllm.serializer import from_data, to_data
from rxllm.session import SavedSession, SessionStore
from rxllm.values import Timed
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
    """Open the runs in a store.

    >>> import rxllm, tempfile
    >>> from rxllm.durable import open_runs
    >>> def build_greeting(name): return rxllm.stream(rxllm.Fake(f"Hello {name}!"), "Greet them.")
    >>> with tempfile.TemporaryDirectory() as folder, open_runs(f"{folder}/runs.db", {"greet": build_greeting}) as runs:
    ...     id = runs.start("greet", "Ada").run()
    ...     runs.result(id).run()
    ChatResult('Hello Ada!', completed, 1 steps, 0 tokens)

    `store` is the path of a SQLite file, a ``"redis://..."`` URL, or a `Store`. A factory takes a run's input, and
    builds the run's whole event stream. If another process continues the run, that process calls the factory with the
    same name in its own `factories`. Both factories must build the same requests from the same input. Requests must not
    depend on a clock or on random numbers. If the steps of a continued run differ from its committed steps, the run
    fails with ``RunError("diverged")``.

    Events are committed within `flush_after` seconds, or immediately if a response ends or a tool runs. If a process
    dies, others can continue its runs after at most `lease` seconds. If `max_attempts` processes in a row die at the
    same point in a run, the run fails with ``RunError("too_many_attempts")``. Once the number of these processes
    reaches a third of `max_attempts` (rounded down, but at least 1), the run is considered suspect. A process continues
    its suspect runs one at a time.

    Raises ``ValidationError("invalid_option")`` if an argument is invalid.
    """
    check_instance("factories", factories, Mapping, "a mapping of names to functions")
    for name, factory in factories.items():
        _check_factory(name, factory)
    fits = is_positive(lease) and lease <= LONGEST_LEASE
    check("lease", lease, fits, f"a positive number of seconds, at most {LONGEST_LEASE:g}")
    check_count("max_attempts", max_attempts)
    check_seconds("flush_after", flush_after)
    return Runs(open_store(store), dict(factories), flush_after, lease, max_attempts)


class Runs:
    """The runs in a store, opened by `open_runs`.

    Most methods return a Stream. Await it, or call its ``run()``.

    =====================  =============================================================================================
    method                 purpose
    =====================  =============================================================================================
    `start`                Store a new run and execute it in this process, or leave it to a worker with ``here=False``.
    `watch`                Follow the events of a run. The run continues when a watcher leaves.
    `result`               Wait for a run to end, and get its result.
    `cancel`               End a run, no matter which process executes it.
    `session`              Load a conversation. To begin its next turn, call `start`.
    `open_run`             See whether a conversation has an open turn, without loading it.
    `save_session`         Store a session that was created or changed outside these runs.
    `delete_session`       Delete a session.
    `sessions`             A property. It offers the four methods above as a ``rxllm.session.SessionStore``.
    `add_factory`          Register another factory, as ``web.chat`` does.
    `get`                  Load a run, including its current status.
    `list`                 Load the newest runs.
    `expire`               Delete runs that ended long ago.
    `recover`              Continue runs that no process is executing, once or repeatedly.
    `close`                Stop executing runs here, so that other processes can continue them.
    =====================  =============================================================================================
    """

    def __init__(
        self, store: Store, factories: Mapping[str, Factory], flush_after: float, lease: float, max_attempts: int
    ) -> None:
        self._store, self._factories = store, factories
        self._here = Producers(store, flush_after, lease, max_attempts)
        self._tails: dict[tuple[asyncio.AbstractEventLoop, str], Tail] = {}
        self._sessions = _Sessions(self)

    def __repr__(self) -> str:
        names = ", ".join(self._factories) or "no factories"
        return f"Runs({self._store!r}, {names}; {len(self.produced)} produced here)"

    @property
    def produced(self) -> tuple[str, ...]:
        """The ids of the runs that this object is executing."""
        return self._here.ids

    def start(
        self,
        factory: str,
        input: Any = None,
        *,
        id: str | None = None,
        session: SavedSession | None = None,
        here: bool = True,
    ) -> Stream[str]:
        """Start a new run of `factory`, and emit its id.

        `input` can be anything that `rxllm.serializer` can write, such as a string, a `Thread` or a list. Anyone who
        knows the id can watch and cancel the run. The default id cannot be guessed. With ``here=False``, the run is
        stored for a worker to recover.

        With a `session` (from `Runs.session`), the run is the session's next turn. The factory receives the session as
        its second argument. The run's events are saved in the session, even if the run fails.

        Raises ``RunError("unknown_factory")`` or ``ValidationError`` immediately. If the id is taken, the stream fails
        with ``RunError("exists")``. If the session has changed or has an open turn, the stream fails with
        ``RunError("conflict")``. In these cases, no request is sent.
        """
        check_instance("id", id, str | None, "a non-empty string, or None for a new id")
        check("id", id, id is None or is_name(id), "a non-empty string, or None for a new id")
        if session is not None:
            check_instance("session", session, SavedSession, "a SavedSession from Runs.session")
            check_session(session.session)
            check("id", id, id is None, "omitted if you pass a session, because each turn gets its own id")
        if factory not in self._factories:
            guess, known = did_you_mean(str(factory), self._factories), ", ".join(self._factories) or "none"
            raise RunError("unknown_factory", f"there is no factory {factory!r}{guess}; the factories are: {known}")
        data = serializer.to_json(Custom("input", input)).encode()
        _check_text(input)

        async def start() -> str:
            if session is not None:
                new = await begin_turn(self._store, factory, input, session)
            else:
                new = id or token_hex(16)
                await self._store.create(Run(new, factory, data))
            if here:
                await self._here.take(new, self._factories[factory])
            return new

        return _once(start)

    @overload
    def watch(self, id: str, after: int = 0, *, folded: bool = False) -> Stream[Event]: ...
    @overload
    def watch(self, id: str, after: int = 0, *, timed: Literal[True]) -> Stream[Timed[Event]]: ...
    def watch(self, id: str, after: int = 0, *, folded: bool = False, timed: bool = False) -> Stream[Any]:
        """Emit the events of a run after event number `after`.

        Live events follow committed events. Events are numbered from 1. If you have received n events, pass ``after=n``
        to get the later ones. With `folded`, committed events are condensed to the fewest events that give the same
        state, and `after` is ignored. With `timed`, each event is wrapped in a `Timed`, whose time is in seconds since
        the run was created. ``rxllm.timeline`` can draw such events.

        The stream completes or fails as the run does. A cancelled run fails with ``RunError("cancelled")``. The stream
        can also fail with ``RunError("unknown_run")`` or ``RunError("store_unavailable")``.
        """
        _check_id(id)
        is_number = is_count(after) or after == 0
        check("after", after, is_number, "the number of the last event received, or 0")
        check("timed", timed, not (timed and folded), "False if `folded` is True, because folded events have no times")

        async def events() -> AsyncIterator[Any]:
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
                    raise invalid_option("after", f"is {after}, but run {id} has only {count} events")
                began = (await self._store.load(id)).created_at if timed else 0.0
                while page := await tail.after(number):
                    for event in page:
                        yield Timed(max(0.0, event.at - began), event.item) if timed else event.item
                    number += len(page)
                _raise_error(tail.run)
            finally:
                tail.watchers -= 1
                if not tail.watchers:
                    tail.close()
                    self._tails.pop(key, None)

        return from_async_iter(events)

    def result(self, id: str, *, response_format: Any = None) -> Stream[ChatResult | StepResult | Response]:
        """Emit the result of a run when it ends.

        To get a `parsed` value, pass the `response_format` that the run's factory used. The stream fails in the same
        way as `watch`.
        """
        result = self.watch(id, folded=True).reduce(StreamCollector.apply_event, StreamCollector()).map(_result)
        if response_format is None:
            return result
        return result.map(lambda value: from_data(to_data(value), response_format=response_format))

    def cancel(self, id: str) -> Stream[None]:
        """Ask a run's producer to cancel the run and close its connections.

        If no process is executing the run, a provider may still be generating an answer for it. If this process has the
        run's factory, it then asks the provider to stop. To find the answer, this process calls the factory, and
        replays the run from its journal.

        A run that has already ended is left unchanged. Fails with ``RunError("unknown_run")`` if there is no such run.
        """
        _check_id(id)

        async def cancel() -> None:
            run = await self._store.load(id)
            answers = kept_answers(await self._store.records(id)) if run.status == "waiting" else {}
            factory = self._factories.get(run.factory)
            if answers and factory is not None and await self._here.take(id, factory, cancels=True):
                return
            if answers:
                log.warning(
                    "run %s is ending, but these answers were not stopped and may still cost money: %s",
                    id,
                    ", ".join(answers.values()),
                )
            if await cancel_turn(self._store, run, self._here.owner, self._here.lease_seconds):
                return
            await self._store.cancel(id)
            self._here.cancel(id)

        return _once(cancel)

    def session(self, id: str) -> Stream[SavedSession]:
        """Emit the last committed session with this id, or an empty session if there is none.

        During a turn, `SavedSession.run` is the id of the turn's run. You can watch that run, and start the next turn
        when it has ended.
        """
        _check_id(id)
        return _once(lambda: load_session(self._store, id))

    def open_run(self, id: str) -> Stream[str | None]:
        """Emit the `run` of the session with this id, or None, without reading the session."""
        _check_id(id)
        return _once(lambda: open_run(self._store, id))

    def save_session(self, session: Session, version: int = 0) -> Stream[SavedSession]:
        """Save `session` if the stored session is at this `version`.

        For a new session, pass 0. The stream emits the `SavedSession`. It fails with ``RunError("conflict")`` if the
        stored version is different or a turn is open.
        """
        check_session(session)
        check("version", version, is_count(version) or version == 0, "the version of the saved session, or 0")
        return _once(lambda: save_session(self._store, session, version))

    def delete_session(self, id: str) -> Stream[None]:
        """Delete the session with this id. Fails with ``RunError("conflict")`` if a turn is open."""
        _check_id(id)
        return _once(lambda: delete_session(self._store, id))

    @property
    def sessions(self) -> SessionStore:
        """A ``SessionStore`` that uses this object's methods for sessions."""
        return self._sessions

    def add_factory(self, name: str, factory: Factory) -> None:
        """Add a factory.

        Raises ``ValidationError("invalid_option")`` if an argument is invalid or the name is taken.
        """
        _check_factory(name, factory)
        check("name", name, name not in self._factories, "a name that no other factory has")
        self._factories = {**self._factories, name: factory}  # another thread may be reading the old dict

    def get(self, id: str) -> Stream[Run]:
        """Emit the run with this id, including its current status.

        Fails with ``RunError("unknown_run")`` if there is no such run.
        """
        _check_id(id)
        return _once(lambda: self._store.load(id))

    def list(self, status: Status | None = None, limit: int = 1000) -> Stream[Sequence[Run]]:
        """Emit up to `limit` runs, newest first. If `status` is given, emit only runs with that status."""
        known = get_args(Status)
        check("status", status, status is None or status in known, f"None or one of {', '.join(known)}")
        check_count("limit", limit)
        return _once(lambda: self._store.runs(status, limit))

    def expire(self, seconds: float) -> Stream[int]:
        """Delete runs that ended at least `seconds` ago, and emit how many were deleted."""
        check_seconds("seconds", seconds)
        return _once(lambda: self._store.expire(seconds))

    def recover(self, limit: int = 100, every: float | None = None) -> Stream[tuple[str, ...]]:
        """Continue up to `limit` runs that no process is executing, and emit their ids.

        Only runs of this object's factories are continued. If `every` is given, repeat this after a pause of `every`
        seconds, until `close` is called or the stream is disposed. A round that finds no runs emits nothing. If the
        store is unavailable in one round, the next round tries again.
        """
        check_count("limit", limit)
        check("every", every, every is None or is_positive(every), "None or a positive number of seconds")

        async def recover() -> tuple[str, ...]:
            ids = await self._store.claimable([*self._factories], limit)
            return tuple([id for id in ids if await take(id)])

        async def take(id: str) -> bool:
            try:
                factory = (await self._store.load(id)).factory
                return await self._here.take(id, self._factories[factory])
            except RunError as error:
                if error.reason != "unknown_run":  # the run has ended and expired in the meantime
                    raise
                return False

        async def rounds(seconds: float) -> AsyncIterator[tuple[str, ...]]:
            while not self._here.is_closed:
                try:
                    if ids := await recover():
                        yield ids
                except RunError as error:
                    log.warning("no runs can be recovered at the moment: %s", error)
                await asyncio.sleep(seconds)

        return _once(recover) if every is None else from_async_iter(lambda: rounds(every))

    def close(self) -> Stream[None]:
        """Stop executing runs here, and close the store.

        Other processes can then `recover` the runs. If the store does not respond in time, the runs can be recovered
        once their leases have expired.
        """

        return _once(self._here.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close().run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class _Sessions:
    def __init__(self, runs: Runs) -> None:
        self.load, self.save, self.delete = runs.session, runs.save_session, runs.delete_session
        self.open_run = runs.open_run


def open_store(store: str | os.PathLike[str] | Store) -> Store:
    """Return the store at a SQLite path or a ``"redis://..."`` URL.

    If `store` is a `Store`, return it unchanged. The store connects on first use. Raises
    ``ValidationError("invalid_option")`` if `store` is invalid. Raises ``EngineError("missing_dependency")`` if `store`
    is a Redis URL but ``rxllm[redis]`` is not installed.
    """
    if isinstance(store, str) and store.startswith(("redis://", "rediss://", "unix://")):
        from rxllm.durable._redis import RedisStore  # redis-py is an extra

        return RedisStore(store)
    if isinstance(store, str | os.PathLike):
        path = os.fspath(store)
        if "://" in path:  # not shown, because it could contain a password
            raise invalid_option("store", 'must be a path, "redis://..." or a Store, not any other kind of URL')
        check("store", path, bool(path) and not path.startswith(":memory:"), "a file path")
        return SQLiteStore(path)
    methods = [name for name in vars(Store) if not name.startswith("_")]
    is_store = not isinstance(store, type) and all(callable(getattr(store, name, None)) for name in methods)
    check("store", store, is_store, 'a path, "redis://..." or a Store')
    return cast(Any, store)


def _check_factory(name: Any, factory: Any) -> None:
    check_instance("factories", name, str, "a mapping whose keys are names")
    check_function(f"factories[{name!r}]", factory)


def _check_id(id: Any) -> None:
    check("id", id, is_name(id), "a non-empty string, such as the id that start() emits")


def _check_text(item: Any) -> None:
    """Raise a ``ValidationError`` if `item` contains a lone surrogate."""
    match item:
        case str() if item and not is_name(item):
            fault = f"contains a lone surrogate: got {shown(item)}; pass text that can be encoded in UTF-8"
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
    async def items() -> AsyncIterator[T]:
        yield await call()

    return from_async_iter(items)


def _raise_error(run: Run | None) -> None:
    if run is not None and run.status == "cancelled":
        raise RunError("cancelled", run_id=run.id)
    if run is not None and run.status == "failed":
        if not run.error:
            raise RunError("lease_lost", run_id=run.id)
        with reading("its error", run.id):
            error = serializer.from_json(run.error, LLMError)
        error.is_logged = True  # the producer has logged it with the traceback
        raise error


def _result(state: StreamCollector) -> ChatResult | StepResult | Response:
    if state.chat_result is not None:
        return state.chat_result
    return state.to_step_result() if state.steps else state.to_response()
