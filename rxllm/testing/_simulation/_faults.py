"""What goes wrong in a simulation, all of it drawn from the seed."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import NamedTuple

FAULTS = ("refuse", "cut", "stall", "slow", "429", "cancel", "reorder")
"""The kinds of faults; `simulate` says what each does."""

ENABLED = 0.3
"""How likely a kind of fault is in one run. Runs with none and runs with one kind are as telling as runs with all."""
RATES = (0.1, 0.4, 0.8)
"""How likely an enabled fault strikes, each time it can; one of these for a run."""


class Moment(NamedTuple):
    """A line of the trace: the virtual time in seconds, a task or a connection, and what happened to it."""

    time: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.time:10.4f} s  {self.who:<32} {self.what}"


class Fault(NamedTuple):
    """A fault of a connection: it strikes before byte `at` of the server's, and lasts for `seconds`."""

    kind: str
    at: int
    seconds: float


class Faults:
    """The faults of one run: what may happen was drawn at its start, what does happen is drawn as it goes."""

    def __init__(self, seed: int, kinds: Collection[str]) -> None:
        self.random = Random(seed)
        self.injected: list[Moment] = []
        drawn = {kind: self.random.random() < ENABLED for kind in FAULTS}  # the same draws whatever `kinds` are
        self.enabled = {kind for kind in FAULTS if drawn[kind] and kind in kinds}
        self._rate = self.random.choice(RATES)

    def strikes(self, kind: str) -> bool:
        """Return whether a fault of this kind strikes now."""
        return kind in self.enabled and self.random.random() < self._rate

    def on_reorder(self) -> bool:
        return "reorder" in self.enabled

    def cancel_at(self) -> int | None:
        """Return the step to cancel at, if any: small numbers as often as large ones."""
        return int(10 ** self.random.uniform(0, 3)) if self.strikes("cancel") else None

    def on_connection(self) -> Fault | None:
        """Return what befalls a new connection."""
        kinds = [kind for kind in ("cut", "stall", "slow") if self.strikes(kind)]
        if not kinds:
            return None
        return Fault(self.random.choice(kinds), int(10 ** self.random.uniform(0, 3.3)), self.seconds())

    def seconds(self) -> float:
        """Return how long a fault lasts: from milliseconds to minutes, now and then for ever."""
        return float("inf") if self.random.random() < 0.2 else 10 ** self.random.uniform(-3, 2.5)

    def latency(self) -> float:
        """Return how long some bytes travel."""
        return self.random.uniform(0.0002, 0.003)
