"""The times of results, which are attributes and not data: comparisons, the repr and JSON ignore them."""

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Measured:
    """The part of a result that was measured when its events were folded.

    A result that did not come from a call, such as one read from JSON or made with ``replace``, has no times.
    """

    @property
    def seconds(self) -> float | None:
        """The number of seconds from the subscription to the end, or None if they were not measured."""
        return vars(self).get("_seconds")

    @property
    def first_token_seconds(self) -> float | None:
        """The number of seconds from the subscription to the model's first output, or None if not measured."""
        return vars(self).get("_first_token_seconds")


def measured(value: T, seconds: float, first_token_seconds: float | None, timed: Sequence[Any] = ()) -> T:
    """Return a copy of `value` that carries its times, or `value` itself if it is no result.

    `timed` is the sequence of its events and their times, if ``ops.timed`` noted them.
    """
    if not isinstance(value, Measured):
        return value
    copy = object.__new__(type(value))
    times = {"_seconds": seconds, "_first_token_seconds": first_token_seconds}
    vars(copy).update(vars(value), **times, **({"_timed": timed} if timed else {}))
    return copy


def with_times_of(original: Any, value: T) -> T:
    """Return `value` with the times of `original`, from which it was made with ``replace``."""
    if isinstance(original, Measured) and original.seconds is not None:
        return measured(value, original.seconds, original.first_token_seconds, times_of(original))
    return value


def times_of(value: Any) -> Sequence[Any]:
    """Return the events and times that `measured` stored in `value`, or () if there are none."""
    return getattr(value, "__dict__", {}).get("_timed", ())
