"""The hook that lets `rxllm.display` draw values in notebooks.

* The hook is needed because values cannot import `rxllm.display`, which is a higher layer.
* The drawing function imports `rxllm.display` when it draws the first value.
* Values have a ``_repr_html_`` method, which marimo calls too. IPython's formatter registry works only in IPython.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

T = TypeVar("T")

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Register the function that draws every value as HTML."""
    _drawers[:] = [drawer]


def keep_times(value: T, timed: Sequence[Any]) -> T:
    """Return a copy of `value` that carries `timed`, a sequence of events and their times.

    Comparisons, the repr and JSON ignore `timed`.
    """
    if not timed or not hasattr(value, "__dataclass_fields__"):
        return value
    value = copy(value)
    vars(value)["_timed"] = timed
    return value


def times_of(value: Any) -> Sequence[Any]:
    """Return the events and times that `keep_times` stored in `value`, or () if there are none."""
    return getattr(value, "__dict__", {}).get("_timed", ())


def drawn(self: Any) -> str | None:
    """Return the value as HTML, or None if it cannot be drawn."""
    return _drawers[0](self)
