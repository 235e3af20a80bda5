"""The protocol for run stores, and the values it uses. ``rxllm.durable.testing`` checks that a store follows it.

Every run has a log and a journal. The log contains the run's events, numbered from 1 without gaps. The journal contains
the records that a new producer needs to continue where the previous one stopped. To append to a run, a producer needs a
lease. Each claim creates a lease with a higher `epoch`. A store rejects appends with an older lease, so two producers
never write to the same run. An expired lease still works until another process claims the run. All times are read from
the store's clock.
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
    """An entry in a run's journal. The `data` is JSON.

    If `kind` is ``"begin"``, a tool call has started, and `key` identifies it.
    """

    kind: str
    key: str
    data: bytes = b""


class Run(msgspec.Struct, frozen=True):
    """A run as it is stored.

    `factory` is the name of the function that builds the run's stream from `input`, which is JSON. `status` is
    ``"running"`` while a process holds an unexpired lease, and ``"waiting"`` while none does. Once the run has ended,
    `status` shows how it ended; ``"halted"`` means that the chat is waiting for a person. `events` is the number of the
    last event. `created_at` and `ended_at` are in seconds since 1970. `is_cancelled` is True once a cancel request has
    been made. If the run has failed, `error` is its error as JSON.
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
    """The right to append to a run. It expires `seconds` after its last renewal."""

    run_id: str
    owner: str
    epoch: int
    seconds: float


class Ending(msgspec.Struct, frozen=True):
    """The end of a run, committed together with its last events. The `error` is JSON."""

    status: Literal["completed", "halted", "failed", "cancelled"]
    error: bytes | None = None


class Store(Protocol):
    """A store for runs. Its methods can be called on any event loop, and never block it.

    If the store is unreachable, full or broken, any method can raise ``RunError("store_unavailable")``. It is
    raised within a limited time, and its ``__cause__`` is the reason. The call may have taken effect anyway, and so may
    a cancelled call.
    """

    async def create(self, run: Run) -> None:
        """Store a new run, which then waits for a producer. Only its id, factory and input are used.

        Raises ``RunError("exists")`` if the id is taken.
        """
        ...

    async def load(self, id: str) -> Run:
        """Return the run with this id. Raises ``RunError("unknown_run")``."""
        ...

    async def runs(self, status: Status | None = None, limit: int = 1000) -> Sequence[Run]:
        """Return the most recent runs, newest first. With `status`, return only runs with that status."""
        ...

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        """Lease a run. Return None if it does not exist, has ended, or has an unexpired lease."""
        ...

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        """Return the ids of these factories' claimable runs, longest-waiting first.

        A run can be claimed if it has not ended and has no unexpired lease.
        """
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease. Return whether cancellation was requested. Raises ``RunError("lease_lost")``."""
        ...

    async def release(self, lease: Lease) -> None:
        """End the lease now, so that another producer can claim the run. Do nothing if the lease was lost."""
        ...

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        """Commit everything or nothing, and extend the lease. Return whether cancellation was requested.

        If the last append with this lease had the same `token`, nothing changes. You can therefore repeat an
        append after ``"store_unavailable"``. Raises ``RunError("lease_lost")`` if the lease was lost or the run has
        ended, and ``RunError("rolled_back")`` if the store has lost earlier commits made with the lease.
        """
        ...

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        """Return up to `limit` events that follow event number `after`. Raises ``RunError("unknown_run")``."""
        ...

    async def records(self, id: str) -> Sequence[Record]:
        """Return the records in the run's journal, in order. Raises ``RunError("unknown_run")``."""
        ...

    async def wait(self, id: str, after: int, seconds: float) -> None:
        """Wait for events after number `after`, a cancel request or the end of the run, but at most `seconds`.

        The call can also return early, so check the run afterwards.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Ask the producer of a run to cancel it. The producer is notified by its next `append` or `renew`.

        If the run has no unexpired lease, it ends as cancelled immediately. If it has already ended, nothing changes.
        Raises ``RunError("unknown_run")``.
        """
        ...

    async def expire(self, seconds: float) -> int:
        """Delete all runs that ended at least `seconds` ago. Return the number of deleted runs."""
        ...

    async def read(self, key: str) -> tuple[int, bytes] | None:
        """Return the version and content of a document, such as a session, or None if it does not exist."""
        ...

    async def write(self, key: str, version: int, data: bytes) -> int:
        """Replace version `version` of a document with `data`. Return the new version.

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
    """Convert any error in the body of the ``with`` statement into a ``RunError("unreadable")`` about `what`."""
    try:
        yield
    except Exception as error:
        where = f"run error ({run_id}): " if run_id else ""
        why = str(error) or type(error).__name__
        raise RunError("unreadable", f"{where}{what} cannot be read: {why}; {remedy}", run_id=run_id) from error
