"""The protocol for run stores, and the values that it uses. ``rxllm.durable.testing`` checks that a store follows it.

Every run has a log and a journal. The log contains the run's events, numbered from 1 without gaps. The journal contains
records that a new producer needs to continue where the previous producer stopped. A producer needs a lease to append to
a run. Each claim increases the `epoch` of the run's leases, and a store refuses appends from an older epoch, so two
producers never write to the same run. An expired lease still works until another process claims the run. All times are
taken from the store's clock, and no other clock matters.
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
    """An entry in a run's journal. For the start of a tool call, `kind` is ``"begin"`` and `key` identifies the call.

    The `data` is JSON.
    """

    kind: str
    key: str
    data: bytes = b""


class Run(msgspec.Struct, frozen=True):
    """A run as it is stored.

    `factory` is the name of the function that builds the run's stream from `input`, which is JSON. `status` is
    ``"running"`` while a process holds an unexpired lease, and ``"waiting"`` while no process does. After the run has
    ended, `status` is how it ended; ``"halted"`` means that the chat is waiting for a person. `events` is the number of
    the last event. `created_at` and `ended_at` are in seconds since 1970. `is_cancelled` is True if someone has asked
    to cancel the run. If the run has failed, `error` is its error as JSON.
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
    """The right to append to a run. It expires `seconds` after it was last renewed."""

    run_id: str
    owner: str
    epoch: int
    seconds: float


class Ending(msgspec.Struct, frozen=True):
    """The end of a run, which is committed together with the run's last events. The `error` is JSON."""

    status: Literal["completed", "halted", "failed", "cancelled"]
    error: bytes | None = None


class Store(Protocol):
    """Stores runs. The methods can be called on any event loop, and never block it.

    If the store cannot be reached, is full or is broken, any method can raise ``RunError("store_unavailable")`` after a
    limited time. The error's ``__cause__`` is the reason. The caller then cannot know whether the call took effect. The
    same is true of a call that was cancelled.
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
        """Return the most recent runs, newest first. If `status` is given, return only runs that have it."""
        ...

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        """Lease a run. Return None if the run has ended, has an unexpired lease, or does not exist."""
        ...

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        """Return the ids of runs of these factories that can be claimed, starting with those that have waited longest.

        A run can be claimed if it has not ended and has no unexpired lease.
        """
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease. Return whether someone has asked to cancel the run. Raises ``RunError("lease_lost")``."""
        ...

    async def release(self, lease: Lease) -> None:
        """End the lease now, so that another producer can claim the run. If the lease has been lost, do nothing."""
        ...

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        """Commit all of this or nothing, and extend the lease. Return whether someone has asked to cancel the run.

        If the `token` is the same as in the last append with this lease, the call changes nothing. A caller can
        therefore repeat the call after ``"store_unavailable"``. Raises ``RunError("lease_lost")``, also if the run has
        ended, and ``RunError("rolled_back")`` if the store has lost earlier commits that were made with the lease.
        """
        ...

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        """Return up to `limit` events that follow event number `after`. Raises ``RunError("unknown_run")``."""
        ...

    async def records(self, id: str) -> Sequence[Record]:
        """Return the records in the run's journal, in order. Raises ``RunError("unknown_run")``."""
        ...

    async def wait(self, id: str, after: int, seconds: float) -> None:
        """Wait until the run has events after number `after`, ends, or is to be cancelled, but at most `seconds`.

        The method can also return early, so the caller should check the run again.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Ask the producer of a run to cancel it. The producer finds out from `append` or `renew`.

        If the run has no unexpired lease, it ends immediately, as cancelled. If it has already ended, nothing changes.
        Raises ``RunError("unknown_run")``.
        """
        ...

    async def expire(self, seconds: float) -> int:
        """Delete all runs that ended at least `seconds` ago. Return how many there were."""
        ...

    async def read(self, key: str) -> tuple[int, bytes] | None:
        """Return the version and content of a document, such as a session. Return None if there is no such document."""
        ...

    async def write(self, key: str, version: int, data: bytes) -> int:
        """Write a document if its current version is `version`, which is 0 for a new document. Return the new version.

        Raises ``RunError("conflict")`` if the current version is a different one.
        """
        ...

    async def close(self) -> None:
        """Close all connections and end all pending waits. Later calls raise ``RunError("store_unavailable")``."""
        ...


@contextmanager
def reading(
    what: str, run_id: str | None = None, remedy: str = "the store was damaged, or a newer rxllm has written it"
) -> Generator[None]:
    """Convert any error in the body of the ``with`` statement to a ``RunError("unreadable")`` about `what`."""
    try:
        yield
    except Exception as error:
        where = f"run error ({run_id}): " if run_id else ""
        why = str(error) or type(error).__name__
        raise RunError("unreadable", f"{where}{what} cannot be read: {why}; {remedy}", run_id=run_id) from error
