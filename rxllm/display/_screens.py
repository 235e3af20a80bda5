"""The places where cards are drawn: a notebook's cell, and one of marimo."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rxllm.display._html import cards_html
from rxllm.display._plain import Cards, Screen, plain_text

OUTPUTS = 200
"""More than the outputs of one cell of marimo."""


class Cell(Screen):
    """The cell of a notebook: one output, which is redrawn. With `stop`, a button of ipywidgets is on it until the end.

    At the end the output is plain HTML, which a saved notebook keeps.
    """

    def __init__(self) -> None:
        self._display: Any = import_module("IPython.display")
        self._handle: Any = None
        self._box: Any = None

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = cards_html(cards, min(card.begun for card in cards.values()))
        if stop is None or find_spec("ipywidgets") is None:
            self._handle = self._display.display({"text/html": html}, raw=True, display_id=True)
            return
        widgets: Any = import_module("ipywidgets")
        button = widgets.Button(description="Stop", icon="stop", tooltip="Stop the stream")
        button.on_click(partial(_press, stop))
        self._box = widgets.VBox([widgets.HTML(html), button])
        self._handle = self._display.display(self._box, display_id=True)

    def draw(self, cards: Cards, now: float) -> None:
        html = cards_html(cards, now)
        if self._box is not None:
            self._box.children[0].value = html
        else:
            self._handle.update({"text/html": html}, raw=True)

    def finish(self, cards: Cards, now: float) -> None:
        self._handle.update({"text/html": cards_html(cards, now), "text/plain": plain_text(cards)}, raw=True)
        for widget in () if self._box is None else (self._box, *self._box.children):
            widget.close()


def _press(stop: Callable[[], None], button: Any) -> None:
    stop()


class Page(Screen):
    """A cell of marimo: one of its outputs, which is redrawn."""

    def __init__(self) -> None:
        self._marimo: Any = import_module("marimo")
        self.thread = self._marimo.Thread  # another has no cell to draw in
        self._index = -1

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = cards_html(cards, min(card.begun for card in cards.values()))
        for index in range(OUTPUTS, -1, -1):  # the first that marimo takes follows the cell's earlier outputs
            with contextlib.suppress(IndexError):
                self._put(html, index)
                self._index = index
                return

    def draw(self, cards: Cards, now: float) -> None:
        self._put(cards_html(cards, now), self._index)

    finish = draw

    def _put(self, html: str, index: int) -> None:
        self._marimo.output.replace_at_index(self._marimo.Html(html), index)
