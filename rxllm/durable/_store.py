"""The protocol of a run store, and its values. ``rxllm.durable.testing`` checks that a store keeps the rules.

A run has a log of events, numbered from 1 without a gap, and a journal of records by which a new producer continues
where the last one stopped. A producer must hold a lease to append. Each claim raises the lease's `epoch`, and a store
refuses appends of an older epoch, so two producers never write to one run. A lease that has expired still works until
another process claims the run. All times are the store's own; no other clock decides anything.
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
    """An entry of a run's journal, such as `kind` ``"begin"`` for the start of the tool call `key`; `data` is JSON."""

    kind: str
    key: str
    data: bytes = b""


class Run(msgspec.Struct, frozen=True):
    """A run as it is stored.

    `factory` is the name of the function that builds its stream from `input`, which is JSON. `status` is ``"running"``
    while a process holds an unexpired lease, ``"waiting"`` while none does, and otherwise the way it ended:
    ``"halted"`` if its chat waits for a person. `events` is the number of the last event. `created_at` and `ended_at`
    are seconds since 1970. `is_cancelled` is true once the run's end has been requested, and `error` is the JSON of a
    failed run's error.
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
    """The right to append to a run until it expires, `seconds` after it was last renewed."""

    run_id: str
    owner: str
    epoch: int
    seconds: float


class Ending(msgspec.Struct, frozen=True):
    """The end of a run, committed with its last events; `error` is JSON."""

    status: Literal["completed", "halted", "failed", "cancelled"]
    error: bytes | None = None


class Store(Protocol):
    """Stores runs. Methods are called on any event loop and never block it.

    Each may raise ``RunError("store_unavailable")`` after a bounded wait, if the store cannot be reached, is full or is
    broken; ``__cause__`` has the reason. It is then unknown whether the call was carried out, as it is after a
    cancelled call.
    """

    async def create(self, run: Run) -> None:
        """Store the id, factory and input of a new run, which waits for a producer. Raises ``RunError("exists")``."""
        ...

    async def load(self, id: str) -> Run:
        """Return the run. Raises ``RunError("unknown_run")``."""
        ...

    async def runs(self, status: Status | None = None, limit: int = 1000) -> Sequence[Run]:
        """Return the most recent runs, newest first, limited to `status` if it is given."""
        ...

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        """Lease a run that has not ended and has no unexpired lease; return None for any other run."""
        ...

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        """Return the ids of runs of these factories that have not ended and have no unexpired lease.

        Runs that have waited longest are first.
        """
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease; return whether a cancel was requested. Raises ``RunError("lease_lost")``."""
        ...

    async def release(self, lease: Lease) -> None:
        """End the lease now, so that another producer need not wait until it expires; ignore a lost lease."""
        ...

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        """Commit all or nothing, and extend the lease; return whether a cancel was requested.

        A call with the `token` of the lease's last append changes nothing, so a caller may repeat it after
        ``"store_unavailable"``. Raises ``RunError("lease_lost")``, even after the run has ended, and
        ``RunError("rolled_back")`` if the store has lost earlier commits of the lease.
        """
        ...

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        """Return up to `limit` events from number ``after + 1``. Raises ``RunError("unknown_run")``."""
        ...

    async def records(self, id: str) -> Sequence[Record]:
        """Return the run's journal in order. Raises ``RunError("unknown_run")``."""
        ...

    async def wait(self, id: str, after: int, seconds: float) -> None:
        """Return soon after an event above number `after` or the run's end is committed, or a cancel is requested.

        Returns after `seconds` at the latest. It may also return early, so the caller should read again.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Request the run's end, which its producer learns from `append` or `renew`.

        A run without an unexpired lease ends at once, as cancelled; a run that has ended does not change. Raises
        ``RunError("unknown_run")``.
        """
        ...

    async def expire(self, seconds: float) -> int:
        """Delete the runs that ended at least `seconds` ago; return their number."""
        ...

    async def read(self, key: str) -> tuple[int, bytes] | None:
        """Return the version and content of a document, such as a session, or None."""
        ...

    async def write(self, key: str, version: int, data: bytes) -> int:
        """Replace version `version` of a document, 0 for a new one; return the new version.

        Raises ``RunError("conflict")`` if the store has another version.
        """
        ...

    async def close(self) -> None:
        """Close the connections and end pending waits. Later calls raise ``RunError("store_unavailable")``."""
        ...


@contextmanager
def reading(
    what: str, run_id: str | None = None, remedy: str = "the store was damaged, or a newer rxllm has written it"
) -> Generator[None]:
    """Turn every error in the body, which reads `what`, into a ``RunError("unreadable")``."""
    try:
        yield
    except Exception as error:
        where = f"run error ({run_id}): " if run_id else ""
        why = str(error) or type(error).__name__
        raise RunError("unreadable", f"{where}{what} cannot be read: {why}; {remedy}", run_id=run_id) from error
