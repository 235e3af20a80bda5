"""How long a stream may take."""

from __future__ import annotations

import msgspec

from rxllm.values import ValidationError
from rxllm.values.arguments import is_positive, must_be


class Timeouts(msgspec.Struct, frozen=True):
    """Limits of one response, in seconds; None is no limit. See ``operators.timeouts``.

    `first` is how long its first content may take, `idle` how long it may then be silent, `total` how long all of it
    may take. As a call's option, `first` and `idle` are each attempt's, `total` is for all attempts together.

    >>> Timeouts(first=30, idle=10)
    Timeouts(first=30, idle=10, total=None)

    Raises ``ValidationError("invalid_option")`` for what is no number above 0.
    """

    first: float | None = None
    idle: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        limits = {"first": self.first, "idle": self.idle, "total": self.total}
        wrong = [
            ((name,), must_be("None, or a number of seconds above 0", held))
            for name, held in limits.items()
            if held is not None and not is_positive(held)
        ]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    @classmethod
    def of(cls, given: Timeouts | float | None) -> Timeouts:
        """What a call's ``timeout`` means: a number is the longest silence, the one before the first content too."""
        return given if isinstance(given, Timeouts) else cls(given, given)

    @property
    def silence(self) -> float | None:
        """The longest silence that is allowed at any time, for a transport's own timeout; None leaves it as it is."""
        return None if self.first is None or self.idle is None else max(self.first, self.idle)
