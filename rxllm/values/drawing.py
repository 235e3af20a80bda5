"""The HTML of values in notebooks, drawn by `rxllm.display`.

marimo and other notebooks look for ``_repr_html_`` on a value's class; IPython's formatter registry would reach only
IPython. `rxllm.display` is a layer above the values, since its cards show streams. So ``rxllm`` registers a function
here, and `rxllm.display` is imported when the first value is drawn.
"""

from collections.abc import Callable
from typing import Any

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Register `drawer`, which returns the HTML of a value."""
    _drawers[:] = [drawer]


def drawn(self: Any) -> str | None:
    """Return the HTML of a value, as its ``_repr_html_``; None if it cannot be drawn."""
    return _drawers[0](self)
