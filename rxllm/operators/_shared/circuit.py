"""The state that the calls of a circuit breaker share.

==========  ===========================================  ======================================================
state       a new call                                   next state
==========  ===========================================  ======================================================
closed      passes                                       open, after so many failures in a row within some time
open        is refused                                   half_open, with the first call after the cooldown
half_open   is a trial; is refused while one is running  closed when the trial succeeds, open when it fails
==========  ===========================================  ======================================================
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from rxllm.values import AdapterError

log = logging.getLogger("rxllm")

State = Literal["closed", "open", "half_open"]
Verdict = Literal["fine", "failed", "unknown"]


@dataclass(eq=False)
class Permit:
    """Permission for one call."""

    is_trial: bool
    reported: threading.Lock = field(default_factory=threading.Lock)


class Circuit:
    """Decides which calls pass. Methods may be called from any thread; `now` is the caller's time in seconds."""

    def __init__(
        self, failures: int, within: float, cooldown: float, on_change: Callable[[State], object] | None
    ) -> None:
        self._limit = failures
        self._within = within
        self._cooldown = cooldown
        self._on_change = on_change
        self._guard = threading.Lock()
        self._state: State = "closed"
        self._failures: deque[float] = deque(maxlen=failures)
        self._open_until = 0.0
        self._trial: Permit | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Times of another process mean nothing here: a circuit begins closed.
        return Circuit, (self._limit, self._within, self._cooldown, self._on_change)

    def enter(self, now: float) -> Permit | AdapterError:
        """Return a permit for a new call, or the error that refuses it."""
        with self._guard:
            before = self._state
            if before == "closed":
                return Permit(is_trial=False)
            if now < self._open_until or self._trial is not None:
                return self._refusal(self._open_until - now)
            self._state = "half_open"
            permit = self._trial = Permit(is_trial=True)
        self._announce_change(before)
        return permit

    def recovered(self, permit: Permit) -> None:
        """Record content: a trial has shown that the provider is well, even if its call still fails."""
        with self._guard:
            before = self._state
            if permit is self._trial:
                self._close()
        self._announce_change(before)

    def report(self, permit: Permit, verdict: Verdict, now: float) -> None:
        """Record the outcome of a call; only its first report counts."""
        if not permit.reported.acquire(blocking=False):
            return
        with self._guard:
            before = self._state
            if permit is self._trial:
                self._settle(verdict, now)
            elif before == "closed":
                self._count(verdict, now)
        self._announce_change(before)

    def _settle(self, verdict: Verdict, now: float) -> None:
        self._trial = None
        if verdict == "fine":
            self._close()
        elif verdict == "failed":
            self._open(now)

    def _count(self, verdict: Verdict, now: float) -> None:
        if verdict == "fine":
            self._failures.clear()
        elif verdict == "failed":
            self._failures.append(now)
            if len(self._failures) == self._limit and now - self._failures[0] <= self._within:
                self._open(now)

    def _close(self) -> None:
        self._state, self._trial = "closed", None
        self._failures.clear()

    def _open(self, now: float) -> None:
        self._state, self._open_until = "open", now + self._cooldown

    def _refusal(self, remaining: float) -> AdapterError:
        if remaining > 0:
            seconds, when = remaining, f"calls are tried again in {remaining:.3g} s"
        else:  # unknown, except for how long it would be if the running trial failed
            seconds, when = self._cooldown, f"one call is being tried; try again in {self._cooldown:.3g} s"
        message = f"the circuit is {self._state}: {when}"
        return AdapterError("provider_unavailable", message, retry_after=seconds, metadata={"circuit": self._state})

    def _announce_change(self, before: State) -> None:
        state = self._state
        if state == before:
            return
        log.warning("the circuit is %s", state)
        if self._on_change is not None:
            try:
                self._on_change(state)
            except Exception as error:
                log.warning("on_change(%r) failed", state, exc_info=error)
