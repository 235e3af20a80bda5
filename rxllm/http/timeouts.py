"""Timeouts, in seconds: the transport's defaults, and limits on a response and on silences in its body.

A single timer limits all silences in a body:

::

    armed ──> fires: have bytes arrived since? ── yes ──> armed again for the rest
                            │ no
                            └──> another look after `LAST_CHANCE_SECONDS` ── no bytes ──> the read is cancelled

httpx would set a timer for each read instead. Cancelled timers stay in asyncio's heap, where they outlive the
garbage collector's young generations. With a thousand streams, the collector would run several times a second, and
sometimes check all objects, which pauses the process for tenths of a second.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

import msgspec

from rxllm.runtime import Pump
from rxllm.values import ValidationError
from rxllm.values.argument_checks import is_positive, must_be

CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""The longest silence allowed by default; a model can think for minutes before its first word."""
WRITE_SECONDS = 60.0
ERROR_BODY_SECONDS = 5.0
"""The number of seconds to wait for the body of an error response. The error omits any part that arrives later."""
DRAIN_SECONDS = 0.25
"""The number of seconds to wait for the last bytes of a complete answer, so that its connection can be reused."""


class Timeouts(msgspec.Struct, frozen=True):
    """Time limits for a response, in seconds; see ``operators.time_limits``.

    `first` limits the time until content arrives, `idle` limits every later silence, and `total` limits the time for
    the whole response. None means that there is no limit. In a call's `timeout`, `first` and `idle` apply to each
    attempt, and `total` applies to all attempts together.

    >>> Timeouts(first=30, idle=10)
    Timeouts(first=30, idle=10, total=None)

    Raises ``ValidationError("invalid_option")`` if a limit is neither None nor a positive number.
    """

    first: float | None = None
    idle: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        limits = {"first": self.first, "idle": self.idle, "total": self.total}
        wrong = [
            ((name,), must_be("None or a positive number of seconds", limit))
            for name, limit in limits.items()
            if limit is not None and not is_positive(limit)
        ]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    @classmethod
    def of(cls, timeout: Timeouts | float | None) -> Timeouts:
        """Return a call's `timeout` as `Timeouts`. A number limits every silence, including the first one."""
        if timeout is None:
            return NO_TIMEOUTS
        return timeout if isinstance(timeout, Timeouts) else cls(timeout, timeout)

    @property
    def silence(self) -> float | None:
        """The longest silence allowed at any point, or None to keep the transport's default timeout."""
        return None if self.first is None or self.idle is None else max(self.first, self.idle)


NO_TIMEOUTS = Timeouts()


LAST_CHANCE_SECONDS = 0.01
"""The extra time before a timeout, in seconds, for reading bytes that arrived while the loop was blocked."""


class IdleTimeoutError(TimeoutError):
    """No bytes arrived for too long. The message states the limit."""


class IdleTimeout:
    """Context manager that raises `IdleTimeoutError` when no bytes have arrived for `seconds`; None means no limit.

    Silence is measured from `since`, a ``time.monotonic()`` value, or by default from the start of the block. Call
    `restart` when bytes arrive. It is cheap, because it only records the time. The timer is re-armed when it fires.

    A held pump is not interrupted, for example while httpcore 1.0.9 closes a connection. ``asyncio.timeout`` would
    interrupt it, and the connection would never be closed.
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
        # As in ``asyncio.timeout``, only a cancellation by this timeout becomes an error; any other propagates.
        if self._expired and _current_task().uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise IdleTimeoutError(f"{self._seconds:g} s") from error

    def restart(self) -> None:
        """Start counting silence from now."""
        self._since = time.monotonic()

    def pause(self) -> None:
        """Stop counting silence until the next `restart`."""
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
