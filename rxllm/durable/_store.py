"""The protocol for run stores, and the values that it uses.

* A run's log contains its events, numbered from 1 without gaps.
* Its journal contains the records that a new producer needs to continue.
* A producer needs a lease to append. Each claim creates a lease with a higher `epoch`.
* Appends with an older lease are rejected, so two producers never write to the same run.
* An expired lease still works until another process claims the run.
* All times are read from the store's clock.

``rxllm.durable.testing`` checks that a store follows these rules.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from rxllm import RunError

LONGEST_LEASE = 600.0
"""The maximum length of a lease, in seconds."""

Status = Literal["waiting", "running", "completed", "halted", "failed", "cancelled"]


class Record(msgspec.Struct, frozen=True):
    """An entry in a run's journal. Its `data` is JSON or empty.

    An entry whose `kind` is ``"begin"`` means that the tool call `key` has started.
    """

    kind: str
    key: str
    data: bytes = b""


class Run(msgspec.Struct, frozen=True):
    """A run as it is stored.

    `factory` names the function that builds the run's stream from the JSON `input`. `status` is ``"running"`` while a
    process holds a valid lease, and ``"waiting"`` without one. An ended run's `status` shows how it ended. ``"halted"``
    means that a tool call or a question in the chat has not been answered yet. `events` is the number of the last
    event. `created_at` and `ended_at` are in seconds since 1970. `is_cancelled` is True after a cancel request. `error`
    is a failed run's error as JSON.
    """

    id: str
    factory: str
    input: bytes
    status: Status = "waiting"
    events: int = 0
    created_at: float = 0.0
    ended_at: float | None = None
    is_cancelled: bool = False
    error: bytes | None = None


class Lease(msgspec.Struct, frozen=True):
    """The right to append to a run. It expires `seconds` after it was created or last extended."""

    run_id: str
    owner: str
    epoch: int
    seconds: float


class Ending(msgspec.Struct, frozen=True):
    """The end of a run, which is committed with the run's last events. `error` is JSON."""

    status: Literal["completed", "halted", "failed", "cancelled"]
    error: bytes | None = None


class Store(Protocol):
    """A store for runs.

    Its methods can be called on any event loop, and never block the loop. If the store is unavailable, any method can
    raise ``RunError("store_unavailable")``, and must do so within a limited time. The error's ``__cause__`` is the
    reason. A call that failed or was cancelled may still have taken effect.
    """

    async def create(self, run: Run) -> None:
        """Store a new run, which then waits for a producer.

        Only its id, factory and input are used. Raises ``RunError("exists")`` if the id is taken.
        """
        ...

    async def load(self, id: str) -> Run:
        """Return the run with this id.

        Raises ``RunError("unknown_run")`` if there is no such run.
        """
        ...

    async def runs(self, status: Status | None = None, limit: int = 1000) -> Sequence[Run]:
        """Return up to `limit` runs, newest first. If `status` is given, return only runs with that status."""
        ...

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        """Lease a run. Return None if the run is unknown, has ended, or already has a valid lease."""
        ...

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        """Return the ids of the claimable runs of `factories`, longest-waiting first.

        A run is claimable if it has not ended and has no valid lease.
        """
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease, and return whether cancellation was requested.

        Raises ``RunError("lease_lost")`` if the lease was lost.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """End the lease now. This does nothing if the lease was lost."""
        ...

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        """Atomically commit the events, records and ending, and extend the lease.

        Return whether cancellation was requested. If `token` is the same as in the lease's last append, nothing is
        changed. You can therefore repeat an append that raised ``"store_unavailable"``. Raises
        ``RunError("lease_lost")`` if the lease was lost or the run has ended. Raises ``RunError("rolled_back")`` if the
        store has lost earlier commits that were made under the lease.
        """
        ...

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        """Return up to `limit` events that follow event number `after`.

        Raises ``RunError("unknown_run")`` if there is no such run.
        """
        ...

    async def records(self, id: str) -> Sequence[Record]:
        """Return the records of the run's journal, in order.

        Raises ``RunError("unknown_run")`` if there is no such run.
        """
        ...

    async def wait(self, id: str, after: int, seconds: float) -> None:
        """Wait up to `seconds` for events with a higher number than `after`.

        A cancel request or the end of the run also ends the wait. The wait can end early, so check the run afterwards.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Ask a run's producer to cancel the run.

        The producer is notified by its next `append` or `renew`. If the run has no valid lease, it ends immediately,
        with the status ``"cancelled"``. A run that has already ended is left unchanged. Raises
        ``RunError("unknown_run")`` if there is no such run.
        """
        ...

    async def expire(self, seconds: float) -> int:
        """Delete runs that ended at least `seconds` ago, and return how many were deleted."""
        ...

    async def read(self, key: str) -> tuple[int, bytes] | None:
        """Return a document's version and content, or None if it does not exist."""
        ...

    async def write(self, key: str, version: int, data: bytes) -> int:
        """Replace version `version` of a document, and return the new version.

        Pass 0 for a new document. Raises ``RunError("conflict")`` if the stored version is different.
        """
        ...

    async def close(self) -> None:
        """Close all connections and end all pending waits. Later calls raise ``RunError("store_unavailable")``."""
        ...


@contextmanager
def reading(
    what: str, run_id: str | None = None, remedy: str = "the store is damaged, or was written by a newer rxllm"
) -> Generator[None]:
    """Convert any error that is raised in the block into ``RunError("unreadable")``."""
    try:
        yield
    except Exception as error:
        where = f"run error ({run_id}): " if run_id else ""
        why = str(error) or type(error).__name__
        raise RunError("unreadable", f"{where}{what} cannot be read: {why}; {remedy}", run_id=run_id) from error
