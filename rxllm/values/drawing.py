"""The hook that lets `rxllm.display` draw values in notebooks.

* The hook is needed because values cannot import `rxllm.display`, which is a higher layer.
* The drawing function imports `rxllm.display` when it draws the first value.
* Values have a ``_repr_html_`` method, which marimo calls too. IPython's formatter registry works only in IPython.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, overload

_drawers: list[Callable[[Any], str | None]] = []


def draw_with(drawer: Callable[[Any], str | None]) -> None:
    """Register the function that draws every value as HTML."""
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
    return export(drawn(self) or "", path, head=HTML_HEAD)


HTML_HEAD = '<!doctype html>\n<meta charset="utf-8">\n<meta name="color-scheme" content="light dark">\n'


def export(text: str, path: str | PathLike[str] | None, *, head: str = "") -> str | None:
    """Return `text`, or write `head` and `text` to `path` if a path is given."""
    if path is None:
        return text
    Path(path).write_text(head + text, encoding="utf-8")
    return None
