"""Show streams in a notebook or in a terminal."""

from typing import Any

from rxllm.display import _show
from rxllm.display._chat import ChatPanel, chat, from_widget
from rxllm.display._marble_diagram import MarbleDiagram, marble_diagram
from rxllm.display._progress_bar import progress_bar
from rxllm.display._show import Showing, draws_cards, show
from rxllm.display._timeline import Timeline, timeline
from rxllm.display._values import value_html

__all__ = [
    "ChatPanel",
    "MarbleDiagram",
    "Showing",
    "Timeline",
    "chat",
    "draws_cards",
    "from_widget",
    "last",
    "marble_diagram",
    "progress_bar",
    "show",
    "timeline",
    "value_html",
]

last: Any
"""The result of the most recently finished `show` call. It is partial if the stream failed or was stopped."""


def __getattr__(name: str) -> Any:
    if name == "last":
        return _show.last
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
