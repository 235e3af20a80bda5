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
from rxllm.durable._store import Run, Store
from rxllm.events import EVENT_CLASSES, Custom, Event
from rxllm.values.argument_checks import check, check_instance

PAGE = 256
"""How many events of a log are read at once."""


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


class _Named(msgspec.Struct):
    """The name of an input, without the rest of it."""

    name: str = ""


def is_turn(data: bytes) -> bool:
    """Return whether `data`, the input of a run or a document, is that of a turn."""
    return bool(data) and msgspec.json.decode(data, type=_Named).name == "turn"


def turn_of(data: bytes) -> OpenTurn:
    return OpenTurn(**serializer.from_json(data).data)


def check_session(session: Any) -> None:
    check_instance("session", session, Session, "a Session")
    check("session.id", session.id, bool(session.id), 'text, such as in Session(id="ada")')


async def load_session(store: Store, id: str) -> SavedSession:
    """Return the session as it is committed; that of an ended turn is written, so that it outlives the run."""
    while True:
        version, data = await store.read(_key(id)) or (0, b"")
        if not is_turn(data):
            return SavedSession(serializer.from_json(data, Session) if data else Session(id=id), version)
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
    saved = await load_session(store, id)
    if saved.run is not None:
        raise _open_turn(id)
    if saved.version:  # nothing is kept but the version: whoever has seen the session before may not go on with it
        await store.write(_key(id), saved.version, b"")


async def begin_turn(store: Store, factory: str, input: Any, saved: SavedSession) -> str:
    """Keep the run of a new turn, and return its id. Raises ``RunError("conflict")``."""
    turn = OpenTurn(token_hex(16), factory, saved.session, input)
    if saved.run is not None:
        raise _open_turn(saved.session.id)
    data = turn.to_json()
    await store.write(_key(saved.session.id), saved.version, data)
    await _run(store, turn, data)
    return turn.run


async def settle(store: Store, data: bytes) -> None:
    """Write the session of the turn whose run has the input `data`, if it is open: nothing comes any more."""
    turn = turn_of(data)
    found = await store.read(_key(turn.session.id))
    if found is not None and found[1] == data:
        session = await _session_after(store, turn)
        with _ignoring("conflict"):  # somebody else has done it
            await store.write(_key(session.id), found[0], serializer.to_json(session).encode())


async def _run(store: Store, turn: OpenTurn, data: bytes) -> Run:
    """Return the run of an open turn; it is created here if whoever began the turn has not come to it."""
    with _ignoring("unknown_run"):
        return await store.load(turn.run)
    with _ignoring("exists"):
        await store.create(Run(turn.run, turn.factory, data))
    return await store.load(turn.run)


async def _session_after(store: Store, turn: OpenTurn) -> Session:
    """Return the session with what is committed of its open turn."""
    number = 0

    async def events() -> AsyncIterator[Event]:
        nonlocal number
        while page := await store.events(turn.run, number, PAGE):
            number += len(page)
            for event in map(serializer.from_json, page):
                if isinstance(event, EVENT_CLASSES):
                    yield event

    folded = await from_async_iter(events).pipe(ops.to_session(turn.session, keep_partial=True))
    return folded.session if number else turn.session


def _key(id: str | None) -> str:
    return f"session:{id}"


def _open_turn(id: str | None) -> RunError:
    return RunError("conflict", f"a turn of the session {id!r} is open; wait for its run to end, or cancel that")


@contextmanager
def _ignoring(reason: str) -> Generator[None]:
    """Suppress a ``RunError`` of this reason."""
    try:
        yield
    except RunError as error:
        if error.reason != reason:
            raise
