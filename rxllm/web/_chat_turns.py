"""The interface for running the turns of a chat endpoint, and an implementation that keeps the runs in memory.

===========================  ==========================================  ==============================================
event                        in memory                                   durable
===========================  ==========================================  ==============================================
a turn begins                The session is saved with the new message.  The store begins the turn.
a turn begins twice          The second attempt fails with               The second attempt fails with
                             ``RunError("conflict")``.                   ``RunError("conflict")``.
a turn ends for any reason   The session is saved again.                 The store saves the session.
a turn's process dies        Only the new message has been saved.        A process that watches the turn continues it.
===========================  ==========================================  ==============================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import reactivex
from msgspec.structs import replace
from reactivex import Observable

from rxllm import Event, LLMError, RunError, Session, Stream
from rxllm import operators as ops
from rxllm.session import SavedSession, SessionStore
from rxllm.values import Turn
from rxllm.web._openai_errors import RefusedError
from rxllm.web._runs import Runs

log = logging.getLogger("rxllm")
T = TypeVar("T")

STORE_SECONDS = 10.0
"""The number of seconds that a store may take to answer before it is considered unavailable."""

Build = Callable[[Mapping[str, Any], Session], Stream[Event]]
"""A function that returns the next turn of a session.

Its first argument contains the answers to the session's pending calls, and the client's tools. Its second argument is
the session.
"""


class SessionRuns(Protocol):
    """The interface for running the turns of sessions. ``durable.Runs`` implements it, and documents the methods."""

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def produced(self) -> tuple[str, ...]: ...

    def add_factory(self, name: str, factory: Build) -> None: ...

    def start(self, factory: str, input: Any, *, session: SavedSession) -> Awaitable[str]: ...

    def watch(self, id: str, *, folded: bool) -> Stream[Event]: ...

    def cancel(self, id: str) -> Awaitable[None]: ...

    def recover(self, *, every: float) -> Observable[Any]: ...


class MemoryTurns:
    """Implements `SessionRuns` with a `Runs` and any session store. A turn is open until its session has been saved."""

    def __init__(self, runs: Runs, store: SessionStore) -> None:
        self._runs, self._store = runs, store
        self._open: dict[
            str, tuple[str, Session]
        ] = {}  # session id -> (run of the open turn, session that the turn began with)
        self.sessions: Any = self

    @property
    def produced(self) -> tuple[str, ...]:
        return tuple(run for run, _ in self._open.values())

    def add_factory(self, name: str, factory: Build) -> None:
        self._build = factory

    async def open_run(self, id: str) -> str | None:
        return self._open[id][0] if id in self._open else None

    async def load(self, id: str) -> SavedSession:
        saved = await self._store.load(id)
        run, begun = self._open.get(id, (None, None))
        return replace(saved, run=run, begun=begun)

    async def start(self, factory: str, input: Any, *, session: SavedSession) -> str:
        id, run = str(session.session.id), token_hex(16)
        if self._open.setdefault(id, (run, session.session))[0] != run:
            raise RunError("conflict")

        async def keep(turn: Turn, outcome: str) -> None:
            try:
                await in_time(self._store.save(turn.session, begun.version))
            finally:
                del self._open[id]

        try:
            begun = await self._store.save(session.session, session.version)
            kept = ops.finally_result(keep, ops.to_session(session.session, keep_partial=True))
            events = self._runs.start(run, self._build(input, session.session).pipe(kept))
        except BaseException:
            del self._open[id]
            raise
        events.subscribe(on_error=lambda error: None)  # a watcher that never leaves
        return run

    def watch(self, id: str, *, folded: bool) -> Stream[Event]:
        return self._runs.watch(id) or Stream.of(reactivex.throw(RunError("unknown_run", run_id=id)))

    async def cancel(self, id: str) -> None:
        self._runs.cancel(id)

    def recover(self, *, every: float) -> Observable[Any]:
        return reactivex.never()


async def open_run(store: SessionStore, id: str) -> str | None:
    """Return the run of the session's open turn, or None. The session is read only if `store` has no ``open_run``."""
    find = getattr(store, "open_run", None)
    return (await in_time(store.load(id))).run if find is None else await in_time(find(id))


async def in_time(work: Awaitable[T]) -> T:
    """Await a store operation.

    Raises ``RunError("store_unavailable")`` if the operation takes longer than `STORE_SECONDS`. Exceptions that a store
    is not supposed to raise are logged and converted to a `RefusedError`.
    """
    try:
        async with asyncio.timeout(STORE_SECONDS):
            return await work
    except TimeoutError:
        raise RunError("store_unavailable", f"the store did not answer within {STORE_SECONDS:g} s") from None
    except (LLMError, RefusedError):
        raise
    except Exception as error:
        log.error("web.chat: the store failed", exc_info=error)
        raise RefusedError(500, "this server's store has failed", "store_failed") from error
