"""`WidgetCell`, a notebook cell with buttons that work while the stream runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from rxllm.display._answer import Answer, Questions, button
from rxllm.display._html import cards_html
from rxllm.display._plain import Answered, Cards, Screen, plain_text
from rxllm.values import ChatResult, ToolCall


class WidgetCell(Screen):
    """A notebook cell whose output is a widget, with a stop button while the stream runs.

    If its chat waits for the user, the cell shows buttons for approving or denying tool calls, and fields for typing
    results. At the end, the output is plain HTML, so that it is saved with the notebook.
    """

    listens = True

    def __init__(self) -> None:
        self._display: Any = import_module("IPython.display")
        self._widgets: Any = import_module("ipywidgets")
        self._html, self._box = self._widgets.HTML(), self._widgets.VBox()
        self._questions = Questions(self._widgets, self._continue)
        self._answer = Answer(self._html, self._questions, lambda: None)
        self._handle: Any = None
        self._controls: tuple[Any, ...] = ()
        self._answered: Answered | None = None

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        assert stop is not None
        self._controls = (button(self._widgets, "Stop", stop),)
        self._controls[0].icon = "stop"
        self._box.children = (self._html, *self._controls)
        self.draw(cards, min(card.begun for card in cards.values()))
        self._handle = self._display.display(self._box, display_id=True)

    def draw(self, cards: Cards, now: float) -> None:
        if _is_chat(cards):
            self._answer.draw(cards, now)
        else:
            self._html.value = cards_html(cards, now)

    def finish(self, cards: Cards, now: float) -> None:
        self._questions.ask((), ())
        self.draw(cards, now)
        text = self._answer.text if _is_chat(cards) else plain_text(cards)
        self._handle.update({"text/html": self._html.value, "text/plain": text}, raw=True)
        for widget in (self._box, self._html, self._questions.widget, *self._controls):
            widget.close()

    def ask(self, cards: Cards, now: float, chat: ChatResult, answered: Answered) -> None:
        self._answered = answered
        approvals = cast(tuple[ToolCall, ...], chat.metadata.get("approval_tool_calls", ()))
        self._questions.ask(chat.pending_tool_calls, {call.id for call in approvals})
        self._answer.draw(cards, now)
        self._box.children = (self._html, self._questions.widget)

    def _continue(self) -> None:
        """Continue the chat on the same card, once the user has answered all of its pending calls."""
        approvals: Mapping[str, bool] = self._questions.approvals
        results: Mapping[str, str] = self._questions.results
        self._answer.begin_turn(self._questions.rows())
        self._questions.ask((), ())
        self._box.children = (self._html, *self._controls)
        if self._answered is not None:
            self._answered(approvals, results)


def _is_chat(cards: Cards) -> bool:
    return None in cards and not cards[None].has_value
