"""Sessions in a store.

A session's document contains the session or its open turn. Each document has a version, so if several turns are started
at once, only one of them can begin. The input of a turn's run is a copy of the document. Once the run has stopped, the
session is updated with the turn's events, and the updated session replaces the turn in the document.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from typing import Any

import msgspec

from rxllm import LLMError, RunError, Session, from_async_iter, serializer
from rxllm import operators as ops
from rxllm.durable._log import Log
from rxllm.durable._store import Ending, Run, Store, reading
from rxllm.events import Custom, ErrorEvent, Event
from rxllm.runtime import off_loop
from rxllm.session import SavedSession, session_size
from rxllm.values.argument_checks import check, check_instance, is_name


class OpenTurn(msgspec.Struct, frozen=True):
    run: str
    factory: str
    session: Session
    input: Any


_HEAD = serializer.to_json(Custom("turn")).removesuffix(', "v": 1}').encode()
"""The start of every turn's JSON, by which even a damaged turn can be recognized."""


def is_turn(data: bytes) -> bool:
    return data.startswith(_HEAD)


def turn_of(data: bytes) -> OpenTurn:
    """Decode a turn.

    Raises ``RunError("unreadable")`` if that fails.
    """
    with reading("the turn"):
        turn = OpenTurn(**serializer.from_json(data, local_files=True).data)
        check_session(turn.session)
    return turn


def check_session(session: Any) -> None:
    check_instance("session", session, Session, "a Session")
    check("session.id", session.id, is_name(session.id), 'text, as in Session(id="ada")')


async def load_session(store: Store, id: str) -> SavedSession:
    """Load a session. If it has an open turn whose run has ended, settle the turn."""
    while True:
        version, data = await store.read(_key(id)) or (0, b"")
        with reading(f"the session {id!r}", remedy="delete_session deletes it"):
            if not is_turn(data):
                if not data:
                    return SavedSession(Session(id=id), version)
                read = partial(serializer.from_json, data, Session, local_files=True)
                return SavedSession(await off_loop(len(data), read), version)
            turn = await off_loop(len(data), turn_of, data)
        run = await _run(store, turn, data)
        if run.ended_at is None:
            return SavedSession(await _session_after(store, turn), version, turn.run, turn.session)
        await settle(store, data, run.error)


async def open_run(store: Store, id: str) -> str | None:
    """Return the run of the session's open turn, or None. The session is read only if its turn has just ended."""
    _, data = await store.read(_key(id)) or (0, b"")
    if not is_turn(data):
        return None
    try:
        run: str = _RUN.decode(data).data.run
        if (await store.load(run)).ended_at is None:
            return run
    except (msgspec.MsgspecError, RunError):  # a turn that is damaged, or whose run was never created
        pass
    return (await load_session(store, id)).run


class _Run(msgspec.Struct):
    run: str


class _Turn(msgspec.Struct):
    data: _Run


_RUN = msgspec.json.Decoder(_Turn)


async def save_session(store: Store, session: Session, version: int) -> SavedSession:
    if (await load_session(store, str(session.id))).run is not None:
        raise _open_turn(session.id)
    data = (await off_loop(session_size(session), serializer.to_json, session)).encode()
    return SavedSession(session, await store.write(_key(session.id), version, data))


async def delete_session(store: Store, id: str) -> None:
    version, _ = await store.read(_key(id)) or (0, b"")
    with _ignoring("unreadable"):
        saved = await load_session(store, id)
        if saved.run is not None:
            raise _open_turn(id)
        version = saved.version
    if version:  # a turn that starts from the deleted session must cause a conflict
        await store.write(_key(id), version, b"")


async def begin_turn(store: Store, factory: str, input: Any, saved: SavedSession) -> str:
    """Store a new turn, create its run, and return the run's id.

    Raises ``RunError("conflict")`` if another turn is open or the session has changed.
    """
    if saved.run is not None:
        raise _open_turn(saved.session.id)
    turn = OpenTurn(token_hex(16), factory, saved.session, input)
    size = session_size(saved.session)
    data = (await off_loop(size, serializer.to_json, Custom("turn", msgspec.structs.asdict(turn)))).encode()
    await store.write(_key(saved.session.id), saved.version, data)
    await _run(store, turn, data)
    return turn.run


async def cancel_turn(store: Store, run: Run, owner: str, seconds: float) -> bool:
    """Cancel a turn that no process is producing. Return whether the turn was cancelled.

    The session is saved before the run is ended. Otherwise, the ended run could expire while the session's document
    still contains the turn. Loading the session would then start the turn again.
    """
    lease = await store.claim(run.id, owner, seconds) if is_turn(run.input) else None
    if lease is None:
        return False
    await store.cancel(run.id)
    await settle(store, run.input)
    with _ignoring("lease_lost"):  # the new holder ends the run the same way
        await store.append(lease, [], ending=Ending("cancelled"))
    return True


async def settle(store: Store, data: bytes, error: bytes | None = None) -> None:
    """Store the updated session in place of the open turn that `data` encodes.

    The turn's run must have stopped. `error` is the run's error as JSON.
    """
    with _ignoring("unreadable", "conflict"):  # damaged, or settled by another process
        turn = await off_loop(len(data), turn_of, data)
        found = await store.read(_key(turn.session.id))
        if found is not None and found[1] == data:
            session = await _session_after(store, turn, error)
            text = await off_loop(session_size(session), serializer.to_json, session)
            await store.write(_key(session.id), found[0], text.encode())


async def _run(store: Store, turn: OpenTurn, data: bytes) -> Run:
    """Load a turn's run. If a process died before it created the run, create it now."""
    with _ignoring("unknown_run"):
        return await store.load(turn.run)
    with _ignoring("exists"):
        await store.create(Run(turn.run, turn.factory, data))
    return await store.load(turn.run)


async def _session_after(store: Store, turn: OpenTurn, error: bytes | None = None) -> Session:
    """Return the turn's session, updated with the turn's events and then with the run's error.

    If an event is unreadable, it is ignored, along with all later events and the error.
    """
    number = 0

    async def events() -> AsyncIterator[Event]:
        nonlocal number
        with _ignoring("unreadable"):
            async for event in Log(store, turn.run).events():
                number += 1
                yield event
            if error is not None and number:
                with reading("the run's error"):
                    failure = ErrorEvent(serializer.from_json(error, LLMError))
                yield failure

    folded = await from_async_iter(events).pipe(ops.to_session(turn.session, keep_partial=True))
    return folded.session if number else turn.session


def _key(id: str | None) -> str:
    return f"session:{id}"


def _open_turn(id: str | None) -> RunError:
    return RunError("conflict", f"the session {id!r} has an open turn; wait for its run to end, or cancel the run")


@contextmanager
def _ignoring(*reasons: str) -> Generator[None]:
    try:
        yield
    except RunError as error:
        if error.reason not in reasons:
            raise
