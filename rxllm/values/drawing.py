"""The HTML of values in notebooks, which `rxllm.display` draws.

``rxllm`` hands its function down to here, because a value has to draw itself: marimo and other notebooks look for
``_repr_html_`` on its class, and a registry of IPython's would reach only IPython. `rxllm.display` is above the values,
as its cards show streams, and it is imported when the first value is drawn.
"""

from collections.abc import Callable
from typing import Any

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Let `drawer` return the HTML of values from now on."""
    _drawers[:] = [drawer]


def drawn(self: Any) -> str | None:
    """Return the HTML of a value; None if it has no drawing. It is the ``_repr_html_`` of the values."""
    return _drawers[0](self)
