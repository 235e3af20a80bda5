"""The state that the calls of a circuit breaker share.

==========  ======================================  ===========================================================
state       a call that comes                       becomes
==========  ======================================  ===========================================================
closed      passes                                  open, after so many failures in a row within some seconds
open        is refused                              half_open, with the first call after the cooldown
half_open   passes if no other is trying,           closed when the one that tries is well, open when it fails
            else it is refused
==========  ======================================  ===========================================================
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rxllm.values import AdapterError

log = logging.getLogger("rxllm")

State = Literal["closed", "open", "half_open"]
Verdict = Literal["fine", "failed", "unknown"]


@dataclass(eq=False)
class Passage:
    """A call that was let through."""

    tries: bool
    reported: threading.Lock = field(default_factory=threading.Lock)


class Circuit:
    """Who may pass. Any thread may ask; `now` is the caller's time in seconds."""

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
        self._until = 0.0
        self._trying: Passage | None = None

    def enter(self, now: float) -> Passage | AdapterError:
        """A passage for a new call, or why there is none."""
        with self._guard:
            before = self._state
            if before == "closed":
                return Passage(tries=False)
            if now < self._until or self._trying is not None:
                return self._refusal(self._until - now)
            self._state = "half_open"
            passage = self._trying = Passage(tries=True)
        self._tell_unless(before)
        return passage

    def recovered(self, passage: Passage) -> None:
        """There is content: whoever tried has shown that the provider is well. Its call may still fail as any other."""
        with self._guard:
            before = self._state
            if passage is self._trying:
                self._close()
        self._tell_unless(before)

    def report(self, passage: Passage, verdict: Verdict, now: float) -> None:
        """How a call has gone; only its first report counts."""
        if not passage.reported.acquire(blocking=False):
            return
        with self._guard:
            before = self._state
            if passage is self._trying:
                self._settle(verdict, now)
            elif before == "closed":
                self._count(verdict, now)
        self._tell_unless(before)

    def _settle(self, verdict: Verdict, now: float) -> None:
        self._trying = None
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
        self._state, self._trying = "closed", None
        self._failures.clear()

    def _open(self, now: float) -> None:
        self._state, self._until = "open", now + self._cooldown

    def _refusal(self, left: float) -> AdapterError:
        if left > 0:
            seconds, then = left, f"it is tried again in {left:.3g} s"
        else:  # all that is known is how long it would be if the call that tries failed
            seconds, then = self._cooldown, f"one call tries it now; ask again in {self._cooldown:.3g} s"
        message = f"the circuit is {self._state}: {then}"
        return AdapterError("provider_unavailable", message, retry_after=seconds, metadata={"circuit": self._state})

    def _tell_unless(self, before: State) -> None:
        state = self._state
        if state == before:
            return
        log.warning("the circuit is %s", state)
        if self._on_change is not None:
            try:
                self._on_change(state)
            except Exception as error:
                log.warning("on_change(%r) failed", state, exc_info=error)
