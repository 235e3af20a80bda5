"""The hook through which `rxllm.display` draws values as HTML in notebooks.

The values cannot import `rxllm.display`, because it belongs to a higher layer. Instead, ``rxllm`` registers a drawing
function here. That function imports `rxllm.display` when it draws the first value.

The value classes define ``_repr_html_``, because marimo and other notebooks look for it. IPython's formatter registry
would work only in IPython.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

T = TypeVar("T")

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Register `drawer`, which returns the HTML of a value."""
    _drawers[:] = [drawer]


def keep_times(value: T, timed: Sequence[Any]) -> T:
    """Return a copy of `value` that also stores `timed`, so that a timeline can be drawn.

    `timed` holds events and times. Comparisons, the repr and JSON ignore it. If it is empty, return `value` itself.
    """
    if not timed or not hasattr(value, "__dataclass_fields__"):
        return value
    value = copy(value)
    vars(value)["_timed"] = timed
    return value


def times_of(value: Any) -> Sequence[Any]:
    """Return the events and times that `keep_times` stored in `value`; most values have none."""
    return getattr(value, "__dict__", {}).get("_timed", ())


def drawn(self: Any) -> str | None:
    """Return the HTML of a value, or None if it cannot be drawn. The value classes use this as ``_repr_html_``."""
    return _drawers[0](self)
