"""Plain text, piece by piece as it comes: all that happens on a terminal, only the text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rxllm.display._card import EVENTS, Card, Note, ToolRow, rows_and_status
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

WIDTH = 200
"""How many characters of a tool's result or progress are printed."""


class Plain:
    """Standard output: each addition as it comes, a blank line between different ones, a newline after the last.

    With `text_only` these are the texts and questions alone, unchanged; errors go to standard error.
    """

    def __init__(self, *, text_only: bool) -> None:
        self._text_only = text_only
        self._kind = ""  # of the latest addition

    def open(self, cards: Mapping[str | None, Card], stop: Callable[[], None] | None) -> None:
        pass

    def draw(self, cards: Mapping[str | None, Card], now: float) -> None:
        pass

    def add(self, item: Any) -> None:
        if isinstance(item, Labelled):
            return  # of several streams at once, each is printed as a whole
        if type(item) not in EVENTS:
            print(item)
            return
        kind, text = _addition(item)
        if kind == "text" or (text and not self._text_only):
            self._print(kind, text)
        elif kind == "error":
            print(text, file=sys.stderr)
        elif kind == "start" and self._kind:
            self._kind = "note"  # the text of the next response begins a paragraph

    def _print(self, kind: str, text: str) -> None:
        gap = "\n\n" if self._kind and not self._kind == kind != "note" else ""
        self._kind = kind
        print(gap + (text if self._text_only else clean(text)), end="", flush=True)

    def finish(self, cards: Mapping[str | None, Card], now: float) -> None:
        if self._kind:
            print()
        if None not in cards:
            print(plain_text(cards))


def _addition(event: Event) -> tuple[str, str]:
    match event:
        case MessageStarted():
            return "start", ""
        case TextDelta(delta=delta):
            return "text", delta
        case ThinkingDelta(delta=delta):
            return "thinking", delta
        case AskUserRequested(question=question):
            return "text", question
        case ErrorEvent(error=error):
            return "error", f"{type(error).__name__}: {error}"
        case _:
            return "note", _note(event)


def _note(event: Event) -> str:
    match event:
        case ToolCallCompleted():
            return f"{event.tool_call!r}"
        case ToolApprovalRequested(name=name):
            return f"{name} waits for approval"
        case ToolProgress(name=name, data=data):
            return f"{name}: {_clipped(str(data))}"
        case ToolResultEncoded(content=content):
            return f"→ {_clipped(content)}"
        case StepRestarted(reason=reason):
            return f"starting again: {reason}"
        case _:
            return ""


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
            return f"{call!r}{'' if result is None else f' → {_clipped(result)}'}"
        case Note(text=text, error=error):
            return text if error is None else f"{type(error).__name__}: {error}"
        case _:
            return ""


def _clipped(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
