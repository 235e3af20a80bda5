"""The longest silence inside an answer, watched by one timer.

httpx sets a timer for each read instead. Cancelled ones stay in asyncio's heap for a while, where they outlive the
garbage collector's young generations: while a thousand streams are read it runs several times a second, and now and
then over everything, which stops the process for tenths of a second.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, RawChunk, UsageUpdated
from rxllm.runtime._pump import Pump
from rxllm.values import ProviderPart

LAST_CHANCE_SECONDS = 0.01
"""A loop that stood still has not read yet what came meanwhile: before silence is an error, it may."""


_NO_CONTENT = frozenset({MessageStarted, UsageUpdated, RawChunk, MessageCompleted, ErrorEvent})
"""The ends, and what a provider sends while its model says nothing, unless it is a part of the message."""


def is_content(event: Event) -> bool:
    """Whether the model says something."""
    return type(event) not in _NO_CONTENT or (isinstance(event, RawChunk) and isinstance(event.data, ProviderPart))


class SilenceError(TimeoutError):
    """What was waited for did not come; the message is how long it was waited for."""


class Silence:
    """Raises `SilenceError` inside, once nothing has been heard for so many `seconds`; None is no limit.

    It began at `since`, of ``time.monotonic()``, or begins now.

    The timer is lazy: it is armed again when it fires, so what is heard costs a look at the clock. What the pump holds
    is not interrupted: httpcore 1.0.9, cancelled by ``asyncio.timeout`` while it closes, keeps the connection for ever.
    """

    def __init__(self, pump: Pump[Any], seconds: float | None, since: float | None = None) -> None:
        self._pump = pump
        self._seconds = seconds
        self._since = since  # None while nobody listens
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def __aenter__(self) -> Silence:
        self._cancelled = _task().cancelling()
        if self._since is None:
            self.listen()
        if self._seconds is not None:
            self._look(last=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over and _task().uncancel() <= self._cancelled and kind is asyncio.CancelledError:
            raise SilenceError(f"{self._seconds:g} s") from error

    def listen(self) -> None:
        """The silence begins now."""
        self._since = time.monotonic()

    def ignore(self) -> None:
        """There is none until the next `listen`."""
        self._since = None

    def _wait(self, seconds: float, *, last: bool = False) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look, last)

    def _look(self, last: bool) -> None:
        assert self._seconds is not None
        left = self._seconds if self._since is None else self._since + self._seconds - time.monotonic()
        if left > 0:
            self._wait(left)
        elif not last:
            self._wait(LAST_CHANCE_SECONDS, last=True)
        else:
            self._over = self._pump.interrupt()


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
