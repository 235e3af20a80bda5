"""The longest silence inside the body of a response, watched by one timer instead of one for each read.

::

    armed ──> fires: was something heard meanwhile? ── yes ──> armed again for the rest
                            │ no
                            └──> one last look after `LAST_CHANCE_SECONDS` ── still nothing ──> the read is cancelled

httpx sets a timer for each read instead. Cancelled timers stay in asyncio's heap for a while, where they outlive the
garbage collector's young generations: while a thousand streams are read it runs several times a second, and now and
then over everything, which stops the process for tenths of a second.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

from rxllm.runtime._pump import Pump

LAST_CHANCE_SECONDS = 0.01
"""A loop that was blocked has not read yet what came meanwhile: it may, before silence is an error."""


class IdleTimeoutError(TimeoutError):
    """Nothing came for too long; the message is the limit."""


class IdleTimeout:
    """Raise `IdleTimeoutError` inside, once nothing has been heard for `seconds`; None is no limit.

    The silence began at `since`, of ``time.monotonic()``, or begins now.

    The timer is lazy: it is armed again when it fires, so that `restart` costs a look at the clock. A pump that is held
    is not interrupted: httpcore 1.0.9, cancelled by ``asyncio.timeout`` while it closes, keeps the connection for ever.
    """

    def __init__(self, pump: Pump[Any], seconds: float | None, since: float | None = None) -> None:
        self._pump = pump
        self._seconds = seconds
        self._since = since  # None while paused
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    async def __aenter__(self) -> IdleTimeout:
        self._cancelling = _current_task().cancelling()
        if self._since is None:
            self.restart()
        if self._seconds is not None:
            self._check(last=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # As in ``asyncio.timeout``: only a cancel of ours becomes an error; one of somebody else's goes on.
        if self._expired and _current_task().uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise IdleTimeoutError(f"{self._seconds:g} s") from error

    def restart(self) -> None:
        """Begin the silence now."""
        self._since = time.monotonic()

    def pause(self) -> None:
        """Count no silence until the next `restart`."""
        self._since = None

    def _arm(self, seconds: float, *, last: bool = False) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check, last)

    def _check(self, last: bool) -> None:
        assert self._seconds is not None
        remaining = self._seconds if self._since is None else self._since + self._seconds - time.monotonic()
        if remaining > 0:
            self._arm(remaining)
        elif not last:
            self._arm(LAST_CHANCE_SECONDS, last=True)
        else:
            self._expired = self._pump.interrupt()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
