"""The hook that lets `rxllm.display` draw values in notebooks.

* The hook is needed because values cannot import `rxllm.display`, which is a higher layer.
* The drawing function imports `rxllm.display` when it draws the first value.
* Values have a ``_repr_html_`` method, which marimo calls too. IPython's formatter registry works only in IPython.
"""

from collections.abc import Callable
from os import PathLike
from typing import Any, overload

_drawers: list[Callable[..., str | None]] = []


def draw_with(drawer: Callable[..., str | None]) -> None:
    """Register the function that draws every value as HTML. Its second argument is the path to write to, if any."""
    _drawers[:] = [drawer]


def drawn(self: Any) -> str | None:
    """Return the value as HTML, or None if it cannot be drawn."""
    return _drawers[0](self)


@overload
def card_html(self: Any, path: None = None) -> str: ...
@overload
def card_html(self: Any, path: str | PathLike[str]) -> None: ...
def card_html(self: Any, path: str | PathLike[str] | None = None) -> str | None:
    """Return the card that notebooks show as HTML. If `path` is given, write it there as a page, and return None."""
    return _drawers[0](self, path)
