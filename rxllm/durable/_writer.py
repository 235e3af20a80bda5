"""The writer of a run: it appends events and records in batches, and keeps the lease."""

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
"""How many events are committed at the latest, whatever the delay."""

MOST = 1024
"""How many events may wait for a slow store; then the stream waits too."""

APPENDING_SECONDS = 0.25
"""How long it does not ask for requests for the end after an append, which tells of them."""

FOREVER = 2**53
"""The number of an event that never comes."""


class Writer:
    """Appends to the run of `lease`, `flush_after` seconds after the first event of a batch at the latest.

    Events, records and the wait for a commit come from any thread and loop; all else is for the loop of `run`. A store
    that is away is tried again as long as the lease lasts.
    """

    def __init__(self, store: Store, lease: Lease, flush_after: float) -> None:
        self._store, self._lease, self._flush_after = store, lease, flush_after
        self.run_id = lease.run_id
        self.noted = 0  # how many records there have been
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
        self._wake(True)  # soon: what is lost is asked for, and paid, again

    async def flush(self) -> None:
        """Wait until everything so far is committed. Raises ``RunError`` if that fails."""
        committed: Future[None] = Future()
        with self._guard:
            if self._error is not None:
                raise self._error
            self._waiting.append(committed)
        self._wake(True)
        await asyncio.wrap_future(committed)

    async def finish(self, ending: Ending) -> None:
        """Commit what is left together with the end of the run."""
        self._ending = ending
        await self.flush()

    @property
    def is_full(self) -> bool:
        return len(self._events) >= MOST

    async def room(self) -> None:
        """Wait while it is full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Append batch after batch, until it is cancelled. Raises ``RunError`` when it may not or cannot go on."""
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
        """Renew the lease, and learn of a request for the end. Raises ``RunError`` as `run` does."""
        while True:
            # It waits before it renews, which tells of earlier requests, so that none is missed in between.
            batches = self._batches
            waiting = asyncio.create_task(self._store.wait(self._lease.run_id, FOREVER, self._lease.seconds / 3))
            waiting.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may fail unheard
            try:
                await asyncio.sleep(0)
                self._note(await self._retried(partial(self._store.renew, self._lease)))
                await waiting
                if self._batches != batches:  # that may be all that it has been woken by; appends tell of requests too
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
                self._note(await self._retried(append))
            except BaseException:
                self._waiting += waiting
                raise
        self._room.set()
        _settle(waiting, None)

    async def _retried(self, call: Callable[[], Awaitable[bool]]) -> bool:
        pause = 0.05
        while True:
            began = self._loop.time()
            try:
                result = await call()
            except RunError as error:
                if error.reason != "store_unavailable" or self._loop.time() + pause > self._until:
                    raise
                log.warning("the run %s waits for its store: %s", self._lease.run_id, error)
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
        with suppress(RuntimeError):  # the loop has ended, and the run with it
            self._loop.call_soon_threadsafe(self._set, is_urgent)

    def _set(self, is_urgent: bool) -> None:
        self._some.set()
        if is_urgent or not self._flush_after:
            self._urgent.set()


def _settle(waiting: Sequence[Future[None]], error: RunError | None) -> None:
    for future in waiting:
        if not future.set_running_or_notify_cancel():  # nobody waits any more
            continue
        future.set_result(None) if error is None else future.set_exception(error)
