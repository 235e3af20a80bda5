"""The HTML of values in notebooks. `rxllm.display`, which draws it, is above the values: `rxllm` hands it down here."""

from collections.abc import Callable
from typing import Any

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Let `drawer` return the HTML of values from now on."""
    _drawers[:] = [drawer]


def drawn(self: Any) -> str | None:
    """Return the HTML of a value; None if it has no drawing. It is the ``_repr_html_`` of the values."""
    return _drawers[0](self)
