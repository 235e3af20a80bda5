"""Plain text, piece by piece as it comes: all that happens on a terminal, only the text in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rxllm.display._card import EVENTS, Card, Note, ToolRow, clipped, rows_and_status
from rxllm.display._markdown import clean
from rxllm.events import (
    AskUserRequested,
    ErrorEvent,
    Event,
    MessageStarted,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.values import Labelled, TextPart

Cards = Mapping[str | None, Card]

WIDTH = 200
"""How many characters of a tool's result or progress are printed."""


class Screen:
    """A place where cards are drawn. `add` takes each item, on the thread that reads; `draw` is called on another.

    These other threads are of the class `thread`.
    """

    thread: type[threading.Thread] = threading.Thread

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        pass

    def add(self, item: Any) -> None:
        pass

    def draw(self, cards: Cards, now: float) -> None:
        pass

    def finish(self, cards: Cards, now: float) -> None:
        pass


class Plain(Screen):
    """Standard output: each addition as it comes, a blank line between different ones, a newline after the last.

    With `text_only` these are the texts and questions alone, unchanged; errors go to standard error.
    """

    def __init__(self, *, text_only: bool) -> None:
        self._text_only = text_only
        self._kind = ""  # of the latest addition

    def add(self, item: Any) -> None:
        if isinstance(item, Labelled):
            return  # of several streams at once, each is printed as a whole
        kind, text = _addition(item) if type(item) in EVENTS else ("value", f"{item}\n")
        if kind == "value":
            print(text, end="")
        elif kind == "error":
            print(text, file=sys.stderr)
        elif kind == "start":
            self._kind = self._kind and kind  # the text of the next response begins a paragraph
        elif kind == "text" or (text and not self._text_only):
            gap = "\n\n" if self._kind and not self._kind == kind != "note" else ""
            self._kind = kind
            print(gap + (text if self._text_only else clean(text)), end="", flush=True)

    def finish(self, cards: Cards, now: float) -> None:
        if self._kind:
            print()
        if None not in cards:
            print(plain_text(cards))


def _addition(event: Event) -> tuple[str, str]:
    match event:
        case MessageStarted():
            return "start", ""
        case TextDelta(delta=text) | AskUserRequested(question=text):
            return "text", text
        case ThinkingDelta(delta=text):
            return "thinking", text
        case ErrorEvent(error=error):
            return "error", f"{type(error).__name__}: {error}"
        case ToolCallCompleted():
            return "note", f"{event.tool_call!r}"
        case ToolApprovalRequested(name=name):
            return "note", f"{name} waits for approval"
        case ToolProgress(name=name, data=data):
            return "note", f"{name}: {clipped(str(data), WIDTH)}"
        case ToolResultEncoded(content=content):
            return "note", f"→ {clipped(content, WIDTH)}"
        case StepRestarted(reason=reason):
            return "note", f"starting again: {reason}"
        case _:
            return "", ""


def plain_text(cards: Mapping[str | None, Card]) -> str:
    """Return the texts of `cards`, under their labels if they have any."""
    texts = ((label, _text(card)) for label, card in cards.items())
    return "\n\n".join(text if label is None else f"{label}:\n{text}" for label, text in texts)


def _text(card: Card) -> str:
    if card.has_value:
        return str(card.value)
    found = [_row(row) for row in rows_and_status(card, card.ended or card.begun)[0]]
    return "\n\n".join(text for text in found if text)


def _row(row: Any) -> str:
    match row:
        case TextPart(text=text):
            return text
        case ToolRow(call=call, result=result):
            return f"{call!r}{'' if result is None else f' → {clipped(result, WIDTH)}'}"
        case Note(text=text, error=error):
            return text if error is None else f"{type(error).__name__}: {error}"
        case _:
            return ""
