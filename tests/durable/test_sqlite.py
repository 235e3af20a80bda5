"""The store in a SQLite file: its faults, its permissions, its threads, and other processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rxllm import RunError, ValidationError
from rxllm.durable import Ending, Lease, Record, Run, Store, _sqlite, _sqlite_thread, open_store
from rxllm.durable._sqlite import SQLiteStore
from tests.programs import python
from tests.waiting import PATIENCE, turns, until

RUN = Run("run", "factory", b"1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def with_store(path: Path | str, main: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        store = open_store(path)
        try:
            return await main(store)
        finally:
            await store.close()

    return asyncio.run(run())


def refusal(path: Path | str) -> RunError:
    """What a store says that cannot be opened."""
    with pytest.raises(RunError) as error:
        with_store(path, lambda store: store.create(RUN))
    assert error.value.reason == "store_unavailable"
    return error.value


async def claimed(store: Store, id: str = "run") -> Lease:
    await store.create(Run(id, "factory", b"1"))
    lease = await store.claim(id, "owner", 60)
    assert lease is not None
    return lease


def run_python(code: str) -> str:
    program = python("-c", code)
    assert program.stderr == ""
    return program.stdout


# The file


def test_the_file_is_its_owners_alone_and_complete_after_close(path: Path) -> None:
    async def main(store: Store) -> list[int]:
        await claimed(store)
        return [stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()]

    mask = os.umask(0)
    try:
        assert with_store(path, main) == [0o600] * 3  # beside it the log and its index
    finally:
        os.umask(mask)
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    store = SQLiteStore(path)
    with_store(path, lambda store: store.create(RUN))
    connection = store._connect()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="reads the locks of Linux")
def test_another_store_of_the_process_ends_no_lock(path: Path) -> None:
    def locks() -> int:
        file = f":{path.stat().st_ino} "
        return sum(file in line for line in Path("/proc/locks").read_text().splitlines())

    async def main(store: Store) -> None:
        await store.create(RUN)
        before = locks()
        assert before >= 1
        for other in (open_store(path), open_store(path)):
            await other.load("run")
            assert locks() >= before
            await other.close()

    with_store(path, main)


def test_nothing_happens_before_the_first_call(path: Path) -> None:
    assert repr(open_store(path)) == f"SQLiteStore({str(path)!r})"
    asyncio.run(open_store(path).close())
    assert not path.exists()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("no/such/folder.db", "it cannot be opened; check its folder and permissions"),
        ("file/runs.db", "it cannot be opened; check its folder and permissions"),
        (".", "it cannot be opened"),
        ("file", "it is not a SQLite database; use another path"),
    ],
)
def test_a_path_that_cannot_be_opened_is_an_error_that_says_what_to_do(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").write_text("something else, and long enough to be read as a header of a database" * 9)
    error = refusal(tmp_path / place)
    assert words in error.message
    assert str(tmp_path / place) in error.message
    assert isinstance(error.__cause__, OSError | sqlite3.Error)


@pytest.mark.skipif(sys.platform == "win32", reason="needs users")
def test_a_file_that_cannot_be_written_is_an_error(path: Path) -> None:
    with_store(path, lambda store: store.create(RUN))
    path.chmod(0o444)
    if os.getuid():
        assert "it cannot be written to; change the permissions" in refusal(path).message
    else:  # root may write everything but what is sealed, so the database itself is told to be read only
        error = SQLiteStore(path)._unavailable(_error_of(path))
        assert "it cannot be written to; change the permissions" in error.message


def _error_of(path: Path) -> sqlite3.Error:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        with pytest.raises(sqlite3.Error) as error:
            connection.execute("DELETE FROM runs")
    finally:
        connection.close()
    return error.value


def test_another_schema_is_an_error_that_names_both_versions(path: Path) -> None:
    with_store(path, lambda store: store.create(RUN))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    message = refusal(path).message
    assert (
        "its schema version is 7, but this version of rxllm reads only version 1; use the rxllm version that wrote it"
        in message
    )


def test_a_database_of_something_else_stays_as_it_is(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    assert "it is another program's database; use another path" in refusal(path).message
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


def test_a_damaged_file_is_an_error(path: Path) -> None:
    with_store(path, lambda store: store.create(RUN))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    assert "it is damaged; restore it from a backup" in refusal(path).message


@pytest.mark.parametrize("place", ["", ":memory:", 7, None, object, "postgres://me:secret@host"])
def test_an_invalid_store_is_refused_at_the_call(place: Any) -> None:
    with pytest.raises(ValidationError, match="store must be ") as error:
        open_store(place)
    assert "secret" not in str(error.value)


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def create(path: Path, id: str) -> None:
        together.wait(PATIENCE)
        with_store(path, lambda store: store.create(Run(id, "factory", b"1")))

    for path in (tmp_path / f"{number}.db" for number in range(10)):
        with ThreadPoolExecutor(8) as threads:
            [*threads.map(partial(create, path), "abcdefgh")]
        ids = with_store(path, lambda store: store.claimable(["factory"]))
        assert sorted(ids) == [*"abcdefgh"]


@pytest.mark.judges
def test_a_file_that_another_process_fills_while_it_is_opened_is_not_foreign(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, rows = 0, _sqlite._rows

    def rows_while_another_opens(db: sqlite3.Connection, query: str, *values: Any) -> list[Any]:
        nonlocal queries
        if "sqlite_master" in query and (queries := queries + 1) == 1:  # the file's number was read, its tables not
            run_python(f"import asyncio, rxllm.durable as d; asyncio.run(d.open_store({str(path)!r}).claimable(['f']))")
        return rows(db, query, *values)

    monkeypatch.setattr(_sqlite, "_rows", rows_while_another_opens)
    with_store(path, lambda store: store.create(RUN))
    assert queries == 1


# The disk is full


@pytest.mark.judges
def test_a_full_disk_is_an_error_and_leaves_the_log_whole(small_disk: Path) -> None:
    path, filler = small_disk / "runs.db", small_disk / "filler"

    async def main(store: Store) -> None:
        lease = await claimed(store)
        filler.write_bytes(bytes(200_000))
        big, record, acknowledged = [bytes(10_000)] * 2, Record("a", "b"), 0
        error: RunError | None = None
        while error is None:
            try:
                await store.append(lease, big, [record])
                acknowledged += 2
            except RunError as refusal:
                error = refusal
        assert error.reason == "store_unavailable"
        assert "the disk is full; free some space" in error.message
        assert (await store.load("run")).events == len(await store.events("run")) == acknowledged
        filler.unlink()
        await store.append(lease, [b"1"], ending=Ending("completed"))
        assert len(await store.events("run")) == acknowledged + 1
        assert len(await store.records("run")) == acknowledged / 2

    with_store(path, main)


@pytest.mark.judges
def test_a_file_that_may_not_grow_is_an_error_and_leaves_the_log_whole(path: Path) -> None:
    pytest.importorskip("resource")
    program = f"""
import asyncio, resource
from rxllm import RunError
from rxllm.durable import *
async def main():
    store = open_store({str(path)!r})
    await store.create(Run("run", "factory", b"1"))
    lease = await store.claim("run", "owner", 60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    count = 0
    try:
        for _ in range(100):
            await store.append(lease, [bytes(10_000), bytes(10_000)])
            count += 2
    except RunError as error:
        print(error.reason, (await store.load("run")).events == count > 0)
    await store.close()
asyncio.run(main())
"""
    assert run_python(program) == "store_unavailable True\n"


def test_one_write_that_fails_spoils_no_other_in_its_transaction(path: Path) -> None:
    async def main(store: Store) -> None:
        leases = [await claimed(store, str(number)) for number in range(4)]
        stale = Lease("1", "nobody", 9, 60)
        calls = [
            *(store.append(lease, [b"1"]) for lease in leases),
            store.append(stale, [b"2"]),
            store.write("key", 0, "\ud800"),  # type: ignore[arg-type]  # no text for a database
            *(store.append(lease, [b"3"]) for lease in leases),
        ]
        errors = [outcome for outcome in await asyncio.gather(*calls, return_exceptions=True) if outcome]
        assert [type(error) for error in errors] == [RunError, UnicodeEncodeError]
        assert [await store.events(lease.run_id) for lease in leases] == [[b"1", b"3"]] * 4

    with_store(path, main)


# Locks, bounds and threads


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection writes, which keeps all others from that."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_a_lock_of_another_process_blocks_no_loop_and_no_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite, "BUSY_SECONDS", PATIENCE)
    monkeypatch.setattr(_sqlite_thread, "CALL_SECONDS", PATIENCE)

    async def main(store: Store) -> None:
        lease = await claimed(store)
        with locked(path):
            appends = [asyncio.create_task(store.append(lease, [b"1"])) for _ in range(20)]
            for _ in range(10):
                assert (await store.load("run")).events == 0
            assert not any(append.done() for append in appends)
        await asyncio.gather(*appends)
        assert await store.events("run") == [b"1"] * 20

    with_store(path, main)


def test_a_lock_of_another_process_is_an_error_in_time_for_all_that_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite, "BUSY_SECONDS", 1.0)

    async def main(store: SQLiteStore) -> None:
        lease = await claimed(store)
        tries: list[int] = []
        execute = store._writer._execute
        store._writer._execute = lambda calls: tries.append(len(calls)) or execute(calls)
        with locked(path):
            appends = [store.append(lease, [b"1"]) for _ in range(20)]
            for error in await asyncio.gather(*appends, return_exceptions=True):
                assert isinstance(error, RunError)
                assert error.reason == "store_unavailable"
                assert "another process has kept it locked" in error.message
        assert sum(tries) == 20
        assert len(tries) <= 2  # not one after the other
        await store.append(lease, [b"1"])
        assert await store.events("run") == [b"1"]

    with_store(path, main)


async def hang(store: SQLiteStore, until: threading.Event) -> asyncio.Task[object]:
    """Return a call that hangs in the store's thread for writes."""
    hangs = threading.Event()
    hung = asyncio.create_task(store._writer.call(lambda connection: (hangs.set(), until.wait(PATIENCE))))
    await asyncio.to_thread(hangs.wait, PATIENCE)
    return hung


def test_calls_that_wait_are_bounded_in_time_and_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_thread, "QUEUE", 5)

    async def main(store: SQLiteStore) -> None:
        lease = await claimed(store)
        monkeypatch.setattr(_sqlite_thread, "CALL_SECONDS", 1.0)
        hung = await hang(store, released := threading.Event())
        appends = [asyncio.create_task(store.append(lease, [b"1"])) for _ in range(7)]
        outcomes = await asyncio.gather(hung, *appends, return_exceptions=True)
        monkeypatch.undo()
        released.set()
        messages = [str(error).partition("is unavailable: ")[2] for error in outcomes]
        late, many = "there was no answer within 1 s", "5 calls are pending; make fewer calls at a time"
        assert messages == [late] * 6 + [many] * 2
        await store.renew(lease)  # comes after them
        assert await store.events("run") == []  # whoever waits no longer has not written

    with_store(path, main)  # type: ignore[arg-type]


def test_writes_that_wait_together_share_a_transaction(path: Path) -> None:
    async def main(store: SQLiteStore) -> None:
        leases = [await claimed(store, str(number)) for number in range(50)]
        reading = sqlite3.connect(path)
        version = reading.execute("PRAGMA data_version").fetchone()
        first = await hang(store, released := threading.Event())
        appends = [asyncio.create_task(store.append(lease, [b"1"])) for lease in leases]
        await turns()
        assert reading.execute("PRAGMA data_version").fetchone() == version
        size = Path(f"{path}-wal").stat().st_size
        released.set()
        await asyncio.gather(first, *appends)
        # Apart, each would have written some pages of 4 KB; together they write few pages more than one.
        assert Path(f"{path}-wal").stat().st_size - size < 50 * 4096
        reading.close()

    with_store(path, main)  # type: ignore[arg-type]


def test_closing_leaves_no_thread_and_no_file_open(path: Path) -> None:
    def left() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("counts open files in /proc")
    before = left()
    for _ in range(3):
        with_store(path, lambda store: store.load("run")) if path.exists() else with_store(
            path, lambda store: store.create(RUN)
        )
        assert left() == before


def test_all_waits_share_one_poll_and_without_waits_there_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each `POLL_SECONDS`, which go by here when they are told to."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(_sqlite_thread, "time", clock)

    async def main(store: SQLiteStore) -> None:
        lease, polls = await claimed(store), []
        poll = store._reader._poll
        store._reader._poll = lambda connection: polls.append(1) or poll(connection)
        waits = [asyncio.create_task(store.wait("run", 0, PATIENCE)) for _ in range(200)]
        for count in range(1, 6):
            await until(lambda count=count: len(polls) == count)
            for _ in range(10):
                await store.load("run")
            assert len(polls) == count
            clock.now += _sqlite_thread.POLL_SECONDS
        await store.append(lease, [b"1"])
        await asyncio.gather(*waits)
        await store.load("run")
        polls.clear()
        for _ in range(10):
            clock.now += _sqlite_thread.POLL_SECONDS
            await store.load("run")
        assert polls == []

    with_store(path, main)  # type: ignore[arg-type]


@pytest.mark.judges
def test_a_forked_process_is_told_to_open_the_file_itself(path: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    program = f"""
import asyncio, os, warnings
from rxllm import RunError
from rxllm.durable import *
store = open_store({str(path)!r})
asyncio.run(store.create(Run("run", "factory", b"1")))
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside the threads of the store, from Python 3.12 on
if os.fork() == 0:
    try:
        asyncio.run(store.load("run"))
    except RunError as error:
        print(error.message.partition("is unavailable: ")[2], flush=True)
    os._exit(0)
os.wait()  # run_python bounds it
asyncio.run(store.close())
"""
    assert run_python(program) == "it was opened before this process was forked; open it again in this process\n"


@pytest.mark.parametrize("begun", ["created", "released", "held by a dead process"])
def test_a_clock_that_is_set_back_an_hour_keeps_nobody_from_a_run(path: Path, begun: str) -> None:
    async def main() -> None:
        store = open_store(path)
        await store.create(Run("run", "factory", b"1"))
        if begun != "created" and (lease := await store.claim("run", "owner", 60)) and begun == "released":
            await store.release(lease)
        with sqlite3.connect(path) as db:  # which is what an hour back is to it
            db.execute("UPDATE runs SET leased_until = leased_until + 3600")
        db.close()
        assert (await store.load("run")).status == "waiting"
        assert await store.claimable(["factory"]) == ["run"]
        taken = await store.claim("run", "other", 60)
        assert taken is not None
        assert await store.claim("run", "third", 60) is None
        assert (await store.load("run")).status == "running"
        assert not await store.renew(taken)
        await store.close()

    asyncio.run(main())


def test_a_run_is_cancelled_at_once_when_the_clock_was_set_back(path: Path) -> None:
    async def main() -> None:
        store = open_store(path)
        await store.create(Run("run", "factory", b"1"))
        await store.claim("run", "owner", 60)
        with sqlite3.connect(path) as db:
            db.execute("UPDATE runs SET leased_until = leased_until + 3600")
        db.close()
        await store.cancel("run")
        assert (await store.load("run")).status == "cancelled"
        await store.close()

    asyncio.run(main())


@pytest.mark.judges
def test_a_process_that_ends_without_closing_loses_nothing(path: Path) -> None:
    program = f"""
import asyncio
from rxllm.durable import *
store = open_store({str(path)!r})
asyncio.run(store.create(Run("run", "factory", b"1")))
"""
    assert run_python(program) == ""
    assert with_store(path, lambda store: store.load("run")).id == "run"
