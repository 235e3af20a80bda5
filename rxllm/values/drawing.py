"""The hook through which `rxllm.display` draws values as HTML in notebooks.

The values cannot import `rxllm.display`, because it belongs to a higher layer. Instead, ``rxllm`` registers a function
here that imports `rxllm.display` when the first value is drawn.

Every value's class has a ``_repr_html_`` method, because marimo and other notebooks look for it. IPython's formatter
registry would work only in IPython.
"""

from collections.abc import Callable
from typing import Any

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Register `drawer`, which returns the HTML of a value."""
    _drawers[:] = [drawer]


def drawn(self: Any) -> str | None:
    """Return the HTML of a value, or None if it cannot be drawn. The value classes use this as ``_repr_html_``."""
    return _drawers[0](self)
