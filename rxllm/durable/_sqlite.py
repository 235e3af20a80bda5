"""Store runs in a SQLite file, so that processes on one machine can share them.

Every commit is flushed to disk. Pending writes share a transaction. The machine's clock is used for all times.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rxllm import RunError
from rxllm.durable._sqlite_thread import SQLiteThread
from rxllm.durable._store import LONGEST_LEASE, Ending, Lease, Record, Run, Status

VERSION = 1
"""The version of the database schema."""

APPLICATION = 0x72786C6C
"""The application id in the header of a run store's file: "rxll" in ASCII."""

BUSY_SECONDS = 5.0
"""The maximum number of seconds to wait for another process's transaction."""

_NOW = "((julianday('now') - 2440587.5) * 86400.0)"  # unixepoch('subsec') needs SQLite 3.42

_SCHEMA = """
CREATE TABLE runs (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, factory TEXT NOT NULL, input BLOB NOT NULL,
    events INTEGER NOT NULL DEFAULT 0, created_at REAL NOT NULL, ended_at REAL, ending TEXT, error BLOB,
    is_cancelled INTEGER NOT NULL DEFAULT 0, owner TEXT, epoch INTEGER NOT NULL DEFAULT 0,
    leased_until REAL NOT NULL, token TEXT NOT NULL DEFAULT '');
CREATE INDEX open_runs ON runs (factory, leased_until) WHERE ending IS NULL;
CREATE INDEX ended_runs ON runs (ended_at) WHERE ending IS NOT NULL;
CREATE TABLE events (run INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run, number))
    WITHOUT ROWID;
CREATE TABLE records (
    n INTEGER PRIMARY KEY, run INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX records_of_run ON records (run);
CREATE TABLE documents (key TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;
"""

# If the end of a lease is more than `LONGEST_LEASE` away, the clock must have been set back. Such a lease counts as
# expired.
_IS_LEASED = f"(owner IS NOT NULL AND leased_until > {_NOW} AND leased_until <= {_NOW} + {LONGEST_LEASE})"
_STATUS = f"coalesce(ending, CASE WHEN {_IS_LEASED} THEN 'running' ELSE 'waiting' END)"
_RUN = (
    f"SELECT id, factory, CAST(input AS BLOB), {_STATUS}, events, created_at, ended_at, is_cancelled, error FROM runs"
)
_HELD = "id = ? AND owner = ? AND epoch = ? AND ending IS NULL"

# SQLite would make the file readable by all users, so `_connect` creates it. Closing the file drops all SQLite locks
# that this process holds on it, so `_creating` keeps other threads out.
_creating = threading.Lock()

_FAULTS = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_BUSY: f"another process has kept it locked for more than {BUSY_SECONDS:g} s; stop that process",
    sqlite3.SQLITE_LOCKED: "it is locked; stop the process that is using it",
    sqlite3.SQLITE_READONLY: "it cannot be written to; change the permissions of the file or its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check its folder and permissions",
    sqlite3.SQLITE_IOERR: "the disk failed, or a quota was reached; check the disk and your quota",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; use another path",
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a backup",
}


class SQLiteStore:
    """A store in the file at `path`. A new file can be read only by its owner."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._waiters: dict[str, set[_Waiter]] = {}
        self._guard = threading.Lock()
        self._data_version: int | None = None
        self._writer = SQLiteThread(self._connect, self._unavailable, writes=True)
        self._reader = SQLiteThread(
            self._connect_reader, self._unavailable, is_polling=lambda: bool(self._waiters), poll=self._poll
        )

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._path)!r})"

    async def create(self, run: Run) -> None:
        def job(db: sqlite3.Connection) -> None:
            if _rows(db, "SELECT 1 FROM runs WHERE id = ?", run.id):
                raise RunError("exists", run_id=run.id)
            new = f"INSERT INTO runs (id, factory, input, created_at, leased_until) VALUES (?, ?, ?, {_NOW}, {_NOW})"
            db.execute(new, (run.id, run.factory, run.input))

        await self._writer.call(job)

    async def load(self, id: str) -> Run:
        rows = await self._read(f"{_RUN} WHERE id = ?", id)
        if not rows:
            raise RunError("unknown_run", run_id=id)
        return _run(rows[0])

    async def runs(self, status: Status | None = None, limit: int = 1000) -> Sequence[Run]:
        query = f"{_RUN} WHERE coalesce({_STATUS} = ?, 1) ORDER BY n DESC LIMIT ?"  # NULL matches every run
        return [_run(row) for row in await self._read(query, status, limit)]

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        rows = await self._write(
            f"UPDATE runs SET owner = ?, epoch = epoch + 1, leased_until = {_NOW} + ?, token = '' "
            f"WHERE id = ? AND ending IS NULL AND NOT {_IS_LEASED} RETURNING epoch",
            *(owner, seconds, id),
        )
        return Lease(id, owner, rows[0][0], seconds) if rows else None

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        rows = await self._read(
            "SELECT id FROM runs WHERE ending IS NULL AND factory IN (SELECT value FROM json_each(?)) "
            f"AND NOT {_IS_LEASED} ORDER BY leased_until, n LIMIT ?",
            *(json.dumps([*factories]), limit),
        )
        return [id for (id,) in rows]

    async def renew(self, lease: Lease) -> bool:
        update = f"UPDATE runs SET leased_until = {_NOW} + ? WHERE {_HELD} RETURNING is_cancelled"
        rows = await self._write(update, lease.seconds, *_holder(lease))
        return bool((rows or _lost(lease))[0][0])

    async def release(self, lease: Lease) -> None:
        await self._write(f"UPDATE runs SET owner = NULL, leased_until = {_NOW} WHERE {_HELD}", *_holder(lease))

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        number, is_cancelled = await self._writer.call(lambda db: _append(db, lease, events, records, ending, token))
        self._wake([lease.run_id], number if ending is None else None)
        return is_cancelled

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        rows = await self._read(
            "SELECT data FROM events WHERE run = (SELECT n FROM runs WHERE id = ?) AND number > ? "
            "ORDER BY number LIMIT ?",
            *(id, after, limit),
        )
        if not rows:
            await self.load(id)
        return [data for (data,) in rows]

    async def records(self, id: str) -> Sequence[Record]:
        query = "SELECT kind, key, data FROM records WHERE run = (SELECT n FROM runs WHERE id = ?) ORDER BY n"
        rows = await self._read(query, id)
        if not rows:
            await self.load(id)
        return [Record(*row) for row in rows]

    async def wait(self, id: str, after: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        waiter = _Waiter(after)
        with self._guard:
            self._waiters.setdefault(id, set()).add(waiter)
        try:
            rows = await self._read("SELECT events, ending, is_cancelled FROM runs WHERE id = ?", id)
            if rows and not waiter.is_due(*rows[0]):
                await asyncio.wait([waiter.future], timeout=max(0.0, deadline - time.monotonic()))
        finally:
            with self._guard:
                self._waiters[id].discard(waiter)
                if not self._waiters[id]:
                    del self._waiters[id]

    async def cancel(self, id: str) -> None:
        rows = await self._write(
            f"UPDATE runs SET is_cancelled = 1, ending = CASE WHEN NOT {_IS_LEASED} THEN 'cancelled' END, "
            f"ended_at = CASE WHEN NOT {_IS_LEASED} THEN {_NOW} END WHERE id = ? AND ending IS NULL RETURNING 1",
            id,
        )
        if not rows:
            await self.load(id)
        self._wake([id])

    async def expire(self, seconds: float) -> int:
        deleted = 0
        # Runs are deleted in small batches to let other writes through.
        while count := await self._writer.call(lambda db: _expire(db, seconds)):
            deleted += count
        return deleted

    async def read(self, key: str) -> tuple[int, bytes] | None:
        rows = await self._read("SELECT version, CAST(data AS BLOB) FROM documents WHERE key = ?", key)
        return rows[0] if rows else None

    async def write(self, key: str, version: int, data: bytes) -> int:
        def job(db: sqlite3.Connection) -> int:
            rows = _rows(db, "SELECT version FROM documents WHERE key = ?", key)
            if (current := rows[0][0] if rows else 0) != version:
                raise RunError("conflict", f"the document {key!r} has version {current}, not {version}; read it again")
            db.execute("REPLACE INTO documents VALUES (?, ?, ?)", (key, version + 1, data))
            return version + 1

        return await self._writer.call(job)

    async def close(self) -> None:
        await self._reader.close()
        self._wake([*self._waiters])
        await self._writer.close()  # closed last, so that SQLite cleans up

    async def _read(self, query: str, *values: Any) -> list[Any]:
        return await self._reader.call(lambda db: _rows(db, query, *values))

    async def _write(self, statement: str, *values: Any) -> list[Any]:
        return await self._writer.call(lambda db: _rows(db, statement, *values))

    def _wake(self, ids: Sequence[str], number: int | None = None) -> None:
        """Wake the calls that are waiting for these runs.

        If `number` is given, a call that has already seen event `number` keeps waiting.
        """
        with self._guard:
            for waiter in [waiter for id in ids for waiter in self._waiters.get(id, ())]:
                if number is None or number > waiter.after:
                    waiter.wake()

    def _poll(self, db: sqlite3.Connection | None) -> None:
        """Wake the waiters whose runs have changed, or all waiters if `db` is None."""
        with self._guard:
            waiters = {id: [*waiting] for id, waiting in self._waiters.items()}
        states: dict[str, Any] = {}
        if db is not None:
            version = _rows(db, "PRAGMA data_version")[0][0]
            if version == self._data_version:
                return
            self._data_version = version
            query = "SELECT id, events, ending, is_cancelled FROM runs WHERE id IN (SELECT value FROM json_each(?))"
            states = {id: state for id, *state in _rows(db, query, json.dumps([*waiters]))}
        for id, waiting in waiters.items():
            for waiter in waiting:
                if id not in states or waiter.is_due(*states[id]):
                    waiter.wake()

    def _connect_reader(self) -> sqlite3.Connection:
        self._data_version = None  # data versions of different connections cannot be compared
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        with _creating, suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            _open(db, self._unavailable)
        except BaseException:
            db.close()
            raise
        return db

    def _unavailable(self, error: str | BaseException) -> RunError:
        if isinstance(error, RunError):
            return error
        is_file = isinstance(error, OSError)
        fault = _FAULTS.get(sqlite3.SQLITE_CANTOPEN if is_file else getattr(error, "sqlite_errorcode", 0) & 0xFF)
        why = f"{fault} ({error})" if fault else str(error)
        unavailable = RunError("store_unavailable", f"the run store {str(self._path)!r} is unavailable: {why}")
        unavailable.__cause__ = error if isinstance(error, BaseException) else None
        return unavailable


class _Waiter:
    def __init__(self, after: int) -> None:
        self.after = after
        self.is_cancelled: int | None = None
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def is_due(self, events: int, ending: str | None, is_cancelled: int) -> bool:
        was_cancelled, self.is_cancelled = self.is_cancelled, is_cancelled
        return events > self.after or ending is not None or was_cancelled not in (None, is_cancelled)

    def wake(self) -> None:
        """End the wait. This method can be called from any thread."""
        with suppress(RuntimeError):  # the waiter's loop is closed
            self._loop.call_soon_threadsafe(lambda: self.future.done() or self.future.set_result(None))


def _append(
    db: sqlite3.Connection,
    lease: Lease,
    events: Sequence[bytes],
    records: Sequence[Record],
    ending: Ending | None,
    token: str,
) -> tuple[int, bool]:
    query = "SELECT n, events, token, is_cancelled, ending FROM runs WHERE id = ? AND owner = ? AND epoch = ?"
    run, count, last_token, is_cancelled, ended = (_rows(db, query, *_holder(lease)) or _lost(lease))[0]
    if token and token == last_token:
        return count, bool(is_cancelled)
    if ended is not None:
        _lost(lease)
    numbered = ((run, number, data) for number, data in enumerate(events, count + 1))
    db.executemany("INSERT INTO events VALUES (?, ?, ?)", numbered)
    entries = [(run, record.kind, record.key, record.data) for record in records]
    db.executemany("INSERT INTO records (run, kind, key, data) VALUES (?, ?, ?, ?)", entries)
    db.execute(
        f"UPDATE runs SET events = ?, token = ?, leased_until = {_NOW} + ? WHERE n = ?",
        (count + len(events), token, lease.seconds, run),
    )
    if ending is not None:
        end = f"UPDATE runs SET ending = ?, error = ?, ended_at = {_NOW} WHERE n = ?"
        db.execute(end, (ending.status, ending.error, run))
    return count + len(events), bool(is_cancelled)


def _expire(db: sqlite3.Connection, seconds: float) -> int:
    query = f"SELECT n FROM runs WHERE ending IS NOT NULL AND ended_at <= {_NOW} - ? ORDER BY ended_at LIMIT 20"
    rows = _rows(db, query, seconds)
    for table, column in (("events", "run"), ("records", "run"), ("runs", "n")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", rows)
    return len(rows)


def _open(db: sqlite3.Connection, unavailable: Callable[[str], RunError]) -> None:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = _rows(db, "PRAGMA journal_mode = WAL")[0][0]
            break
        except sqlite3.OperationalError as error:  # SQLite does not wait while another connection opens the new file
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise unavailable(
            f"its file system does not support write-ahead logging (journal_mode {mode}); use a path on a local disk"
        )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN")  # another connection may be creating the tables
    has_tables = _has_tables(db, unavailable)
    db.execute("COMMIT")
    if not has_tables:
        db.execute("BEGIN IMMEDIATE")
        if not _has_tables(db, unavailable):  # another connection may have created the tables
            pragmas = f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {VERSION}"
            for statement in (*_SCHEMA.split(";")[:-1], *pragmas):
                db.execute(statement)
        db.execute("COMMIT")


def _has_tables(db: sqlite3.Connection, unavailable: Callable[[str], RunError]) -> bool:
    application, version = _rows(db, "PRAGMA application_id")[0][0], _rows(db, "PRAGMA user_version")[0][0]
    if application == APPLICATION and version != VERSION:
        raise unavailable(
            f"its schema version is {version}, but this version of rxllm reads only version {VERSION}; "
            "use the rxllm version that wrote it, or another path"
        )
    if application != APPLICATION and _rows(db, "SELECT 1 FROM sqlite_master LIMIT 1"):
        raise unavailable("it is another program's database; use another path")
    return application == APPLICATION


def _rows(db: sqlite3.Connection, query: str, *values: Any) -> list[Any]:
    return db.execute(query, values).fetchall()


def _run(row: Sequence[Any]) -> Run:
    *start, is_cancelled, error = row
    return Run(*start, is_cancelled=bool(is_cancelled), error=error)


def _holder(lease: Lease) -> tuple[str, str, int]:
    return lease.run_id, lease.owner, lease.epoch


def _lost(lease: Lease) -> Any:
    raise RunError("lease_lost", run_id=lease.run_id)
