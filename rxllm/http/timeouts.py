"""The default timeouts, and a limit on how long a response may be silent.

One timer covers all the gaps between the reads of a response body:

::

    armed ──> fires: have bytes arrived since? ── yes ──> armed again for the remaining time
                            │ no
                            └──> another look after `LAST_CHANCE_SECONDS` ── no bytes ──> the read is cancelled

If each read had its own timer, there would be thousands of cancelled timers, which would slow down the garbage
collector.
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
"""The default limit, in seconds, on how long a response may be silent. Models can think for minutes, so it is high."""
WRITE_SECONDS = 60.0
ERROR_BODY_SECONDS = 5.0
"""The number of seconds to wait for the body of an error response."""
DRAIN_SECONDS = 0.25
"""The number of seconds to wait for the remaining bytes of a response once the answer is complete."""


class Timeouts(msgspec.Struct, frozen=True):
    """Time limits for a response, in seconds; see ``operators.time_limits``.

    `first` limits the wait for the first content. After that, `idle` limits each wait for more content. `total` limits
    the whole response. None means that there is no limit. If a call's `timeout` is a `Timeouts`, each attempt has its
    own `first` and `idle`, but all attempts share `total`.

    >>> Timeouts(first=30, idle=10)
    Timeouts(first=30, idle=10, total=None)

    Raises ``ValidationError("invalid_option")`` unless each limit is None or a positive number.
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
        """Convert a call's `timeout` to a `Timeouts`. A number is used as both `first` and `idle`."""
        if timeout is None:
            return NO_TIMEOUTS
        return timeout if isinstance(timeout, Timeouts) else cls(timeout, timeout)

    @property
    def silence(self) -> float | None:
        """The longest silence that these limits allow, or None if the transport's default applies."""
        return None if self.first is None or self.idle is None else max(self.first, self.idle)


NO_TIMEOUTS = Timeouts()


LAST_CHANCE_SECONDS = 0.01
"""The number of extra seconds to wait for bytes that may have arrived while the event loop was blocked."""


class IdleTimeoutError(TimeoutError):
    """Raised if no bytes have arrived for longer than the timeout allows."""


class IdleTimeout:
    """A context manager that raises `IdleTimeoutError` after `seconds` of silence. None means no limit.

    The silence is measured from `since`, which is a ``time.monotonic()`` value, or else from the start of the ``with``
    block. Call `restart` when bytes arrive.

    If the pump is held, it is not interrupted, because httpcore 1.0.9 may be closing a connection.
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
        # Convert only the cancellation that this timeout caused. All other cancellations propagate, as in
        # ``asyncio.timeout``.
        if self._expired and _current_task().uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise IdleTimeoutError(f"{self._seconds:g} s") from error

    def restart(self) -> None:
        self._since = time.monotonic()

    def pause(self) -> None:
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
