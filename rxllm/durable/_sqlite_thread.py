"""Run jobs in a thread that has its own SQLite connection."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from rxllm import RunError

T = TypeVar("T")

Job = Callable[[sqlite3.Connection], T]
_Call = tuple["asyncio.Future[Any]", Job[Any]]
_Outcome = tuple[Any, Exception | None]

CALL_SECONDS = 15.0
"""The timeout for a call, in seconds."""

QUEUE = 10_000
"""The maximum number of pending calls."""

GROUP = 64
"""The maximum number of writes in one transaction."""

POLL_SECONDS = 0.02


class SQLiteThread:
    """Runs jobs one after another on its own thread.

    If `writes` is true, pending jobs share a transaction, and a job that raises ``RunError`` must not have changed
    anything. While ``is_polling()`` is true, `poll` is called regularly with the connection, or with None after an
    error.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        unavailable: Callable[[str | BaseException], RunError],
        *,
        writes: bool = False,
        is_polling: Callable[[], bool] = lambda: False,
        poll: Callable[[sqlite3.Connection | None], None] = lambda connection: None,
    ) -> None:
        self._connect, self._unavailable, self._writes = connect, unavailable, writes
        self._is_polling, self._poll, self._next_poll = is_polling, poll, 0.0
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._is_closed = False
        self._ended: Future[None] = Future()

    async def call(self, job: Job[T]) -> T:
        """Run `job` on the thread and return its result.

        Raises ``RunError("store_unavailable")`` if the database fails or the job takes too long.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._guard:
            self._check_open()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rxllm-store", daemon=True)
                self._thread.start()
            self._calls.put((future, job))
        timer = loop.call_later(CALL_SECONDS, self._time_out, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Finish the pending calls, close the connection, and end the thread."""
        with self._guard:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put(None)
            if self._thread is None or self._process != os.getpid():
                return
        done, _ = await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=CALL_SECONDS)
        if done:
            self._thread.join()  # the thread has nothing left to do

    def _time_out(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(self._unavailable(f"there was no answer within {CALL_SECONDS:g} s"))

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._unavailable("it is closed; open it again")
        if self._process != os.getpid():
            raise self._unavailable("it was opened before this process was forked; open it again in this process")
        if self._calls.qsize() >= QUEUE:
            raise self._unavailable(f"{QUEUE} calls are pending; make fewer calls at a time")

    def _run(self) -> None:
        is_open = True
        while is_open:
            calls, is_open = self._next_calls()
            calls = [call for call in calls if not call[0].done()]  # skip calls whose callers have given up
            if calls:
                _settle(calls, self._execute(calls))
            if self._is_polling() and time.monotonic() >= self._next_poll:
                self._execute_poll()
        self._disconnect()
        self._ended.set_result(None)

    def _next_calls(self) -> tuple[list[_Call], bool]:
        """Wait until there are calls or a poll is due. Return the calls, and whether the thread should keep running."""
        calls: list[_Call] = []
        try:
            call = self._calls.get(timeout=POLL_SECONDS if self._is_polling() else None)
            while call is not None:
                calls.append(call)
                if not self._writes or len(calls) == GROUP or self._calls.empty():
                    return calls, True
                call = self._calls.get()
        except queue.Empty:
            return calls, True
        return calls, False

    def _execute(self, calls: Sequence[_Call]) -> Sequence[_Outcome]:
        try:
            connection = self._connected()
            if self._writes:
                connection.execute("BEGIN IMMEDIATE")
        except Exception as error:  # fail all calls now instead of one by one
            self._disconnect()
            return [(None, self._unavailable(error)) for _ in calls]
        try:
            outcomes = [_outcome(job, connection) for _, job in calls]
            if self._writes:
                connection.execute("COMMIT")
        except Exception as error:
            self._disconnect()  # rolls back the transaction
            if len(calls) == 1:
                return [(None, self._unavailable(error) if isinstance(error, sqlite3.Error) else error)]
            # Perhaps only one job is at fault, so run each job by itself.
            return [outcome for call in calls for outcome in self._execute([call])]
        return outcomes

    def _execute_poll(self) -> None:
        try:
            self._poll(self._connected())
        except Exception:  # the waiters that are woken will read the store and raise the error
            self._disconnect()
            self._poll(None)
        self._next_poll = time.monotonic() + POLL_SECONDS

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _outcome(job: Job[Any], connection: sqlite3.Connection) -> _Outcome:
    try:
        return job(connection), None
    except RunError as refusal:
        return None, refusal


def _settle(calls: Sequence[_Call], outcomes: Sequence[_Outcome]) -> None:
    """Set the results of the calls' futures. Wake each loop only once, because waking a loop is slow."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = {}
    for (future, _), outcome in zip(calls, outcomes, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, settled in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_settle_here, settled)


def _settle_here(settled: Sequence[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for future, (result, error) in settled:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)
