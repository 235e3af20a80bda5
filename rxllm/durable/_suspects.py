"""Let runs at which processes have died continue one at a time, so that each death counts for its cause."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from random import random

ALONE_SECONDS = 60.0
"""How long a suspect keeps the others waiting while it notes nothing."""

LOOK_SECONDS = 0.05


class Suspects:
    """The suspects that are produced in this process. Each has its turn on any event loop.

    A turn lasts until ``is_alone()`` is false: the suspect has ended, or has come further than the others before it.
    The run at which most processes have died is first, and else it is left to chance, so that a slow run does not
    begin before the one that kills every time.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float]] = []
        self._guard = threading.Lock()
        self._is_alone: Callable[[], bool] = lambda: False
        self._until = 0.0

    async def turn(self, deaths: int, is_alone: Callable[[], bool]) -> None:
        """Wait for the turn of a run at which so many processes have died."""
        rank = deaths, random()
        self._waiting.append(rank)
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)  # also at first, for those that are recovered with it
                if self._take(rank, is_alone):
                    return
        finally:
            self._waiting.remove(rank)

    def _take(self, rank: tuple[int, float], is_alone: Callable[[], bool]) -> bool:
        with self._guard:
            is_taken = self._is_alone() and time.monotonic() < self._until
            if is_taken or rank != max(self._waiting):
                return False
            self._is_alone, self._until = is_alone, time.monotonic() + ALONE_SECONDS
            return True
