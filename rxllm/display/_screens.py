"""The places where cards are drawn: a notebook's cell, a page without updates, a terminal, a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from rxllm.display._card import Card
from rxllm.display._html import cards_html
from rxllm.display._plain import Plain, plain_text

Cards = Mapping[str | None, Card]


class Screen(Protocol):
    """A place where cards are drawn. `add` takes each item, on the thread that reads; `draw` is called on another."""

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None: ...
    def add(self, item: Any) -> None: ...
    def draw(self, cards: Cards, now: float) -> None: ...
    def finish(self, cards: Cards, now: float) -> None: ...


def choose_screen() -> Screen:
    """Return the screen of the program that runs here."""
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        return Cell()
    if marimo is not None and marimo.running_in_notebook():
        return Page(lambda html: marimo.output.append(marimo.Html(html)))
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rxllm.display._rich import Terminal

        return Terminal()
    return Plain(text_only=not sys.stdout.isatty())


class Cell:
    """The cell of a notebook: one output, which is redrawn. With `stop`, a button of ipywidgets is on it until the end.

    At the end the output is plain HTML, which a saved notebook keeps.
    """

    def __init__(self) -> None:
        self._display: Any = import_module("IPython.display")
        self._handle: Any = None
        self._live: Any = None
        self._box: Any = None

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = cards_html(cards, min(card.begun for card in cards.values()))
        if stop is not None and find_spec("ipywidgets") is not None:
            widgets: Any = import_module("ipywidgets")
            button = widgets.Button(description="Stop", icon="stop", tooltip="Stop the stream")
            button.on_click(partial(_ignore_button, stop))
            self._live = widgets.HTML(html)
            self._box = widgets.VBox([self._live, button])
            self._handle = self._display.display(self._box, display_id=True)
        else:
            self._handle = self._display.display({"text/html": html}, raw=True, display_id=True)

    def add(self, item: Any) -> None:
        pass

    def draw(self, cards: Cards, now: float) -> None:
        html = cards_html(cards, now)
        if self._live is not None:
            self._live.value = html
        else:
            self._handle.update({"text/html": html}, raw=True)

    def finish(self, cards: Cards, now: float) -> None:
        self._handle.update({"text/html": cards_html(cards, now), "text/plain": plain_text(cards)}, raw=True)
        if self._live is not None:
            for widget in (self._box, *self._box.children):
                widget.close()


def _ignore_button(stop: Callable[[], None], button: Any) -> None:
    stop()


class Page:
    """A page without updates: the cards are put on it once, at the end."""

    def __init__(self, put: Callable[[str], Any]) -> None:
        self._put = put

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        pass

    def add(self, item: Any) -> None:
        pass

    def draw(self, cards: Cards, now: float) -> None:
        pass

    def finish(self, cards: Cards, now: float) -> None:
        self._put(cards_html(cards, now))
