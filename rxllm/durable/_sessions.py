"""Sessions in a store: the document of a session has the session itself, or its open turn, a run that goes on.

The document of an open turn is the input of its run. Writing it is what begins the turn, so of several that begin at
the same time one does. It is the session again as the run ends: the one before, and what the run's log adds to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import msgspec

from rxllm import RunError, Session, from_async_iter, serializer
from rxllm import operators as ops
from rxllm.durable._log import Log
from rxllm.durable._store import Ending, Run, Store, reading
from rxllm.events import Custom, Event
from rxllm.values.argument_checks import check, check_instance, is_name


class SavedSession(msgspec.Struct, frozen=True):
    """A session as the store has it.

    `version` counts its changes; a new one has version 0. `run` is the id of the run whose turn is open, None without
    one. The session then has what is committed of it: the user's message, the completed steps, and the answer so far in
    a message whose ``metadata["partial"]`` is ``"cancelled"``.
    """

    session: Session
    version: int = 0
    run: str | None = None


class OpenTurn(msgspec.Struct, frozen=True):
    """What the run of a turn begins with: `input` is the caller's."""

    run: str
    factory: str
    session: Session
    input: Any

    def to_json(self) -> bytes:
        return serializer.to_json(Custom("turn", msgspec.structs.asdict(self))).encode()


_HEAD = serializer.to_json(Custom("turn")).removesuffix(', "v": 1}').encode()
"""What the JSON of every turn begins with; it is there in one that is damaged further on."""


def is_turn(data: bytes) -> bool:
    """Return whether `data`, the input of a run or a document, is that of a turn."""
    return data.startswith(_HEAD)


def turn_of(data: bytes) -> OpenTurn:
    """Raises ``RunError("unreadable")``."""
    with reading("the turn"):
        turn = OpenTurn(**serializer.from_json(data, local_files=True).data)
        check_session(turn.session)
    return turn


def check_session(session: Any) -> None:
    check_instance("session", session, Session, "a Session")
    check("session.id", session.id, is_name(session.id), 'text, such as in Session(id="ada")')


async def load_session(store: Store, id: str) -> SavedSession:
    """Return the session as it is committed; that of an ended turn is written, so that it outlives the run."""
    while True:
        version, data = await store.read(_key(id)) or (0, b"")
        with reading(f"the session {id!r}", remedy="delete_session forgets it"):
            if not is_turn(data):
                read = serializer.from_json(data, Session, local_files=True) if data else Session(id=id)
                return SavedSession(read, version)
            turn = turn_of(data)
        run = await _run(store, turn, data)
        if run.ended_at is None:
            return SavedSession(await _session_after(store, turn), version, turn.run)
        await settle(store, data)


async def save_session(store: Store, session: Session, version: int) -> SavedSession:
    if (await load_session(store, str(session.id))).run is not None:
        raise _open_turn(session.id)
    data = serializer.to_json(session).encode()
    return SavedSession(session, await store.write(_key(session.id), version, data))


async def delete_session(store: Store, id: str) -> None:
    version, _ = await store.read(_key(id)) or (0, b"")
    with _ignoring("unreadable"):
        saved = await load_session(store, id)
        if saved.run is not None:
            raise _open_turn(id)
        version = saved.version
    if version:  # nothing is kept but the version: whoever has seen the session before may not go on with it
        await store.write(_key(id), version, b"")


async def begin_turn(store: Store, factory: str, input: Any, saved: SavedSession) -> str:
    """Keep the run of a new turn, and return its id. Raises ``RunError("conflict")``."""
    turn = OpenTurn(token_hex(16), factory, saved.session, input)
    if saved.run is not None:
        raise _open_turn(saved.session.id)
    data = turn.to_json()
    await store.write(_key(saved.session.id), saved.version, data)
    await _run(store, turn, data)
    return turn.run


async def cancel_turn(store: Store, run: Run, owner: str, seconds: float) -> bool:
    """Cancel the turn of a run if nobody produces it; return whether it is so.

    The session is written before the run has ended and may expire: a turn whose run is gone would begin once more.
    """
    lease = await store.claim(run.id, owner, seconds) if is_turn(run.input) else None
    if lease is None:
        return False
    await store.cancel(run.id)
    await settle(store, run.input)
    with _ignoring("lease_lost"):  # whoever has it now ends the run in the same way
        await store.append(lease, [], ending=Ending("cancelled"))
    return True


async def settle(store: Store, data: bytes) -> None:
    """Write the session of the turn whose run has the input `data`, if it is open: nothing comes any more."""
    with _ignoring("unreadable", "conflict"):  # there is nothing to be kept, or somebody else has done it
        turn = turn_of(data)
        found = await store.read(_key(turn.session.id))
        if found is not None and found[1] == data:
            session = await _session_after(store, turn)
            await store.write(_key(session.id), found[0], serializer.to_json(session).encode())


async def _run(store: Store, turn: OpenTurn, data: bytes) -> Run:
    """Return the run of an open turn; it is created here if whoever began the turn has not come to it."""
    with _ignoring("unknown_run"):
        return await store.load(turn.run)
    with _ignoring("exists"):
        await store.create(Run(turn.run, turn.factory, data))
    return await store.load(turn.run)


async def _session_after(store: Store, turn: OpenTurn) -> Session:
    """Return the session with what is committed of its open turn, as far as that can be read."""
    number = 0

    async def events() -> AsyncIterator[Event]:
        nonlocal number
        log = Log(store, turn.run)
        with _ignoring("unreadable"):
            while page := await log.page(number):
                number += len(page)
                for event in page:
                    yield event

    folded = await from_async_iter(events).pipe(ops.to_session(turn.session, keep_partial=True))
    return folded.session if number else turn.session


def _key(id: str | None) -> str:
    return f"session:{id}"


def _open_turn(id: str | None) -> RunError:
    return RunError("conflict", f"a turn of the session {id!r} is open; wait for its run to end, or cancel that")


@contextmanager
def _ignoring(*reasons: str) -> Generator[None]:
    """Suppress a ``RunError`` of one of these reasons."""
    try:
        yield
    except RunError as error:
        if error.reason not in reasons:
            raise
