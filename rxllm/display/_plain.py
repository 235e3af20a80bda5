"""The base class `Screen`, and `Plain`, a screen that prints events as text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from textwrap import indent
from typing import Any

from rxllm.display._card import EVENTS, Card, Correction, Note, Row, ToolRow, rows_and_status, truncate
from rxllm.display._markdown import clean_line
from rxllm.events import (
    AskUserRequested,
    ErrorEvent,
    Event,
    MessageStarted,
    Nested,
    Steered,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.values import ChatResult, Labelled, TextPart

Cards = Mapping[str | None, Card]

Answered = Callable[[Mapping[str, bool], Mapping[str, str]], None]
"""A function that continues a chat. It takes the approvals and the results, each keyed by tool call id."""

Path = tuple[str, ...]
"""The tool call ids that lead to an agent, outermost first."""

WIDTH = 200
"""The maximum number of characters to print from a tool's result or progress."""


def ipython_shell() -> Any:
    """Return the running IPython shell, or None if there is none. Only a notebook's shell has a `kernel`."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


class Screen:
    """A place to draw cards.

    The thread that reads the stream calls `add` for every item, and another thread calls `draw`. If `listens` is True
    and the chat is waiting for an answer, `ask` is called instead of `finish`.
    """

    thread: type[threading.Thread] = threading.Thread
    listens = False

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        pass

    def add(self, item: Any) -> None:
        pass

    def draw(self, cards: Cards, now: float) -> None:
        pass

    def finish(self, cards: Cards, now: float) -> None:
        pass

    def ask(self, cards: Cards, now: float, chat: ChatResult, answered: Answered) -> None:
        pass


class Plain(Screen):
    """A screen that prints events as they arrive.

    An agent's events are indented below the name of its tool. With `text_only`, only the chat's own text and any
    questions are printed. The chat's own errors are printed to standard error.
    """

    def __init__(self, *, text_only: bool) -> None:
        self._text_only = text_only
        # The path and kind of the last printed text, and the name of the tool at each path.
        self._latest: tuple[Path, str] | None = None
        self._names: dict[Path, str] = {}

    def add(self, item: Any) -> None:
        if isinstance(item, Labelled):
            return  # `finish` prints several streams one after another
        path, event = (item.path, item.event) if type(item) is Nested else ((), item)
        if isinstance(event, ToolExecutionStarted):
            self._names[*path, event.id] = event.name
        kind, text = _addition(event) if type(event) in EVENTS else ("value", f"{item}\n")
        is_answer = kind == "text" and (not path or isinstance(event, AskUserRequested))
        if kind == "value":
            print(text, end="")
        elif kind == "error" and not path:
            print(text, file=sys.stderr)
        elif kind == "start":
            if self._latest is not None and self._latest[0] == path:
                self._latest = (path, kind)  # begin a new paragraph for this response
        elif text and (is_answer or not self._text_only):
            self._print(path, kind, text)

    def _print(self, path: Path, kind: str, text: str) -> None:
        continues = self._latest == (path, kind) and kind != "note"
        gap = "\n\n" if self._latest is not None and not continues else ""
        self._latest = (path, kind)
        margin = "  " * len(path)
        name = f"{margin}{self._names.get(path, 'agent')}: " if path and not continues else ""
        shown = (name + text).replace("\n", f"\n{margin}")
        print(gap + (shown if self._text_only else clean_line(shown)), end="", flush=True)

    def finish(self, cards: Cards, now: float) -> None:
        if self._latest is not None:
            print()
        if None not in cards:
            print(plain_text(cards))


def _addition(event: Event) -> tuple[str, str]:
    match event:
        case MessageStarted():
            return "start", ""
        case TextDelta(delta=text) | AskUserRequested(question=text):
            return "text", text
        case ThinkingDelta(delta=text) if text:
            return "thinking", text
        case ErrorEvent(error=error):
            return "error", f"{type(error).__name__}: {error}"
        case ToolCallCompleted():
            return "note", f"{event.tool_call!r}"
        case ToolApprovalRequested(name=name):
            return "note", f"{name} waits for approval"
        case ToolProgress(name=name, data=data):
            return "note", f"{name}: {truncate(str(data), WIDTH)}"
        case ToolResultEncoded(content=content):
            return "note", f"→ {truncate(content, WIDTH)}"
        case StepRestarted(reason=reason):
            return "note", f"starting over: {reason}"
        case Steered(message=message, used=used):
            return "note", quote(message.text, used)
        case _:
            return "", ""


def quote(text: str, used: bool) -> str:
    """Format a user's correction as a quotation."""
    lines = text.replace("\n", "\n> ")
    return f"> {lines}{'' if used else ' (not used)'}"


def plain_text(cards: Cards) -> str:
    texts = ((label, _text(card)) for label, card in cards.items())
    return "\n\n".join(text if label is None else f"{label}:\n{text}" for label, text in texts)


def _text(card: Card) -> str:
    if card.has_value:
        return str(card.value)
    return rows_text(rows_and_status(card, card.ended or card.begun)[0])


def rows_text(rows: Sequence[Row]) -> str:
    return "\n\n".join(filter(None, map(_row, rows)))


def _row(row: Any) -> str:
    match row:
        case TextPart(text=text):
            return text
        case ToolRow(call=call, result=result):
            rows = rows_text(row.rows)
            inside = f"\n{indent(rows, '  ')}" if rows else ""
            return f"{call!r}{'' if result is None else f' → {truncate(result, WIDTH)}'}{inside}"
        case Correction(text=text, used=used):
            return quote(text, used)
        case Note(text=text, error=error):
            return text if error is None else f"{type(error).__name__}: {error}"
        case _:
            return ""
