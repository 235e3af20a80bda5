"""The checks of the parts of a text, in order: which one is next, how far they have passed, and which has tripped."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import msgspec
from reactivex import abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.operators._shared.guard_parts import Part
from rxllm.runtime import check_failed, paced, result_of, verdict_error
from rxllm.values import StreamError
from rxllm.values.responses import shorten

AT_ONCE = 4
"""How many checks of a stream run at the same time."""

_SHOWN = 80


class GuardSettings(msgspec.Struct, frozen=True):
    """The arguments of ``guard``; `sees_before` is whether `check` takes the text before a part too."""

    check: Callable[..., Any]
    sees_before: bool
    every: Literal["sentence"] | int
    max_lag: float | None
    on_late: Literal["fail", "release"]
    thinking: bool

    def verdict(self, part: Part) -> Any:
        return self.check(part.text, part.before) if self.sees_before else self.check(part.text)


class Check:
    """The check of one part. It is late at `due`; `error` is why it stops the stream."""

    def __init__(self, settings: GuardSettings, part: Part) -> None:
        self.part = part
        self.is_done = part.text.isspace()
        self.due = math.inf
        self.error: StreamError | None = None
        self.subscription = SingleAssignmentDisposable()
        self._settings = settings
        self._verdict: Any = None

    def start(self, on_end: Callable[[Check, BaseException | None], None], scheduler: abc.SchedulerBase | None) -> None:
        """Call the user's function, and ``on_end`` once the verdict is here, with the error if it does not pass."""
        function = self._settings.check

        def on_next(verdict: Any) -> None:
            self._verdict = verdict

        def on_error(error: BaseException) -> None:
            on_end(self, check_failed(function, error) if isinstance(error, Exception) else error)

        def on_completed() -> None:
            on_end(self, verdict_error(function, self._verdict))

        # Behind no gate: the source may be waiting for this very check.
        result = paced(result_of(partial(self._settings.verdict, self.part)), None)
        self.subscription.disposable = result.subscribe(on_next, on_error, on_completed, scheduler=scheduler)


class Checks:
    """The checks of one stream, from the first part that has not passed. Its owner has the lock."""

    def __init__(self, settings: GuardSettings) -> None:
        self.passed = 0  # parts, without a gap
        self.tripped = False
        self._settings = settings
        self._all: deque[Check] = deque()
        self._fresh: deque[Check] = deque()  # those that have not begun
        self._running: list[Check] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, parts: Iterable[Part]) -> None:
        """Append the checks of `parts`, and count those that have passed."""
        for part in parts:
            check = Check(self._settings, part)
            self._all.append(check)
            self._fresh.append(check)
        while self._all and self._all[0].is_done and self._all[0].error is None:
            self.passed = self._all.popleft().part.number

    def end(self, check: Check, error: StreamError | None = None) -> bool:
        """Note that `check` has passed, or its `error`; return whether it was still open."""
        if check.is_done:
            return False
        check.is_done = True
        if check in self._running:
            self._running.remove(check)
        if error is not None:
            error.metadata = {**error.metadata, "text": shorten(check.part.text, _SHOWN)}
            check.error = error
            self.tripped = True
        return True

    def next(self) -> Check | None:
        """Return the next check to start, if one may start."""
        while self._fresh and self._fresh[0].is_done:
            self._fresh.popleft()
        if not self._fresh or self.tripped or len(self._running) == AT_ONCE:
            return None
        check = self._fresh.popleft()
        self._running.append(check)
        return check

    def in_the_way(self, shown: int) -> Check | None:
        """Return the check that a new one replaces: the oldest, if its part is among the first `shown`."""
        oldest = self._running[0] if self._fresh and len(self._running) == AT_ONCE else None
        return oldest if oldest is not None and oldest.part.number <= shown else None

    def up_to(self, parts: int) -> list[Check]:
        """Return the open checks of the first so many parts."""
        return [check for check in self._all if check.part.number <= parts and not check.is_done]

    def late(self, time: float) -> list[Check]:
        return [check for check in self._running if check.due <= time]

    @property
    def due(self) -> float:
        """When the next check is late."""
        return min((check.due for check in self._running), default=math.inf)

    def error(self, in_order: bool) -> StreamError | None:
        """Return the error of the first check that has tripped; if `in_order`, once those before it have passed."""
        first = next((check for check in self._all if check.error is not None), None)
        return None if first is None or (in_order and first is not self._all[0]) else first.error

    def clear(self) -> list[Check]:
        """Forget all checks, and return them."""
        checks = list(self._all)
        for container in (self._all, self._fresh, self._running):
            container.clear()
        return checks
