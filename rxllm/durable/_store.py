"""What a store of runs does: every store keeps to this Protocol, and to the suite in ``rxllm.durable.testing``.

A run has a log of events, numbered from 1 without a gap, and records by which a new producer goes on where the last one
stopped. Whoever appends holds a lease. Each claim raises the lease's `epoch`, and a store refuses what an older epoch
appends, so two producers never write to one run. A lease that has expired still works until somebody else claims the
run. All times are the store's own: no process's clock decides anything.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from rxllm import RunError


@contextmanager
def reading(
    what: str, run_id: str | None = None, remedy: str = "the store was damaged, or a newer rxllm has written it"
) -> Generator[None]:
    """Turn every error of the body, which reads `what`, into a ``RunError("unreadable")``."""
    try:
        yield
    except Exception as error:
        where = f"run error ({run_id}): " if run_id else ""
        why = str(error) or type(error).__name__
        raise RunError("unreadable", f"{where}{what} cannot be read: {why}; {remedy}", run_id=run_id) from error


LONGEST_LEASE = 600.0
"""How many seconds a lease may be asked for at most."""

Status = Literal["waiting", "running", "completed", "halted", "failed", "cancelled"]


class Record(msgspec.Struct, frozen=True):
    """An entry of a run's journal: `kind` says what of `key`, such as the start of a tool; `data` is JSON."""

    kind: str
    key: str
    data: bytes = b""


class Run(msgspec.Struct, frozen=True):
    """A run as its store knows it.

    `factory` is the name of what builds its stream, from `input`, which is JSON. `status` is ``"running"`` while
    somebody holds a lasting lease, ``"waiting"`` while nobody does, and then how it has ended: ``"halted"`` if its chat
    waits for a person. `events` is the number of the last event. `created_at` and `ended_at` are seconds since 1970.
    `is_cancelled` says that somebody asked for the end, and `error` is the JSON of what a failed run ended with.
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
    """Where runs are kept. Methods are called on any event loop and never block it.

    Each raises `RunError`: ``"store_unavailable"`` if the store cannot be reached, is full or is broken (the cause is
    its ``__cause__``), after a bounded wait. Whether the call was carried out is then unknown, as it is if it was
    cancelled.
    """

    async def create(self, run: Run) -> None:
        """Keep a new run, which waits for a producer: its id, factory and input. Raises ``RunError("exists")``."""
        ...

    async def load(self, id: str) -> Run:
        """Return the run. Raises ``RunError("unknown_run")``."""
        ...

    async def runs(self, status: Status | None = None, limit: int = 1000) -> Sequence[Run]:
        """Return the newest runs, of one status or of all, the newest first."""
        ...

    async def claim(self, id: str, owner: str, seconds: float) -> Lease | None:
        """Take the lease of a run that has not ended, if nobody holds one that lasts; else return None."""
        ...

    async def claimable(self, factories: Sequence[str], limit: int = 100) -> Sequence[str]:
        """Return the ids of runs by these factories that have not ended and that nobody holds a lasting lease of.

        Those that have waited longest come first.
        """
        ...

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease; return whether the run is to be cancelled. Raises ``RunError("lease_lost")``."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back, so that another producer need not wait until it expires; do nothing if it is lost."""
        ...

    async def append(
        self,
        lease: Lease,
        events: Sequence[bytes],
        records: Sequence[Record] = (),
        ending: Ending | None = None,
        token: str = "",
    ) -> bool:
        """Commit all of it or nothing, and extend the lease; return whether the run is to be cancelled.

        A call with the `token` of the lease's last append changes nothing, so that it can be tried again after
        ``"store_unavailable"``. Raises ``RunError("lease_lost")``, also once the run has ended, and
        ``RunError("rolled_back")`` if the store finds that it has lost what the lease had committed.
        """
        ...

    async def events(self, id: str, after: int = 0, limit: int = 1000) -> Sequence[bytes]:
        """Return the events with the numbers from ``after + 1`` on, at most `limit`.

        Raises ``RunError("unknown_run")``.
        """
        ...

    async def records(self, id: str) -> Sequence[Record]:
        """Return the run's journal, in the order of its entries. Raises ``RunError("unknown_run")``."""
        ...

    async def wait(self, id: str, after: int, seconds: float) -> None:
        """Return soon after an event with a number above `after`, or the end, is committed; at the latest in time.

        It also returns when somebody asks for the run's end meanwhile. It may return early, so the caller reads again.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Ask for the run's end: its producer learns it when it appends or renews.

        A run without a lasting lease ends at once, as cancelled; one that has ended stays as it is. Raises
        ``RunError("unknown_run")``.
        """
        ...

    async def expire(self, seconds: float) -> int:
        """Delete the runs that ended at least `seconds` ago; return how many."""
        ...

    async def read(self, key: str) -> tuple[int, bytes] | None:
        """Return the version and the content of a document, such as a session."""
        ...

    async def write(self, key: str, version: int, data: bytes) -> int:
        """Replace version `version` of a document, 0 for a new one; return the new version.

        Raises ``RunError("conflict")`` if the store has another version.
        """
        ...

    async def close(self) -> None:
        """Close its connections and end what waits. Anything after it raises ``RunError("store_unavailable")``."""
        ...
