"""Timeouts, in seconds: the transport's defaults, and the limits of one response."""

from __future__ import annotations

import msgspec

from rxllm.values import ValidationError
from rxllm.values.argument_checks import is_positive, must_be

CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""The longest silence of a provider: a model may think for minutes before its first word."""
WRITE_SECONDS = 60.0


class Timeouts(msgspec.Struct, frozen=True):
    """Limits of one response, in seconds; None is no limit. See ``operators.time_limits``.

    `first` is how long its first content may take, `idle` how long it may then be silent, `total` how long all of it
    may take. As a call's option, `first` and `idle` are each attempt's, `total` is for all attempts together.

    >>> Timeouts(first=30, idle=10)
    Timeouts(first=30, idle=10, total=None)

    Raises ``ValidationError("invalid_option")`` for anything but None or a number above 0.
    """

    first: float | None = None
    idle: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        limits = {"first": self.first, "idle": self.idle, "total": self.total}
        wrong = [
            ((name,), must_be("None, or a number of seconds above 0", limit))
            for name, limit in limits.items()
            if limit is not None and not is_positive(limit)
        ]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    @classmethod
    def of(cls, timeout: Timeouts | float | None) -> Timeouts:
        """Return the limits that a call's `timeout` means: a number is the longest silence, before the first content
        too.
        """
        if timeout is None:
            return NO_TIMEOUTS
        return timeout if isinstance(timeout, Timeouts) else cls(timeout, timeout)

    @property
    def silence(self) -> float | None:
        """The longest silence allowed at any time, for a transport's own timeout; None leaves that as it is."""
        return None if self.first is None or self.idle is None else max(self.first, self.idle)


NO_TIMEOUTS = Timeouts()
