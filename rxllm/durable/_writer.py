"""The writer that commits a run's events and journal records in batches, and renews the lease on the run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from rxllm import RunError
from rxllm.durable._store import Ending, Lease, Record, Store

log = logging.getLogger("rxllm")

BATCH = 256
"""The number of waiting events that triggers an immediate commit."""

MOST = 1024
"""The number of events that may queue up for a slow store before the stream is paused."""

APPENDING_SECONDS = 0.25
"""The number of seconds by which an append delays the next renewal. The append itself checks for cancel requests."""

FOREVER = 2**53
"""An event number that no run ever reaches."""


class Writer:
    """Appends batches of events and records to the run that `lease` belongs to.

    A batch is committed at most `flush_after` seconds after its first event. `event`, `record` and `flush` can be
    called from any thread or event loop. All other methods must be called on the loop that runs `run`. Calls to an
    unavailable store are retried until the lease expires.
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
        """Append batches until this task is cancelled.

        Raises ``RunError`` if a batch cannot be appended.
        """
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
        """Keep renewing the lease, and watch for cancel requests.

        Raises ``RunError`` if either fails.
        """
        while True:
            # Start waiting before renewing, so that no cancel request is missed. The renewal reports earlier requests.
            batches = self._batches
            waiting = asyncio.create_task(self._store.wait(self._lease.run_id, FOREVER, self._lease.seconds / 3))
            # Retrieve the exception, because asyncio might otherwise log it.
            waiting.add_done_callback(lambda task: task.cancelled() or task.exception())
            try:
                await asyncio.sleep(0)
                self._note(await self._retry(partial(self._store.renew, self._lease)))
                await waiting
                # If our own append ended the wait, that append has checked for cancel requests.
                if self._batches != batches:
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
