"""Cards with buttons and text fields for answering tool calls."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from importlib import import_module
from typing import Any

from rxllm.display._card import Card, Row, ToolRow, responses_of, rows_and_status, rows_by_step
from rxllm.display._html import article, cards_html, page, row_html, rows_html
from rxllm.display._plain import Answered, Cards, Screen, plain_text, rows_text
from rxllm.values import ChatResult, ToolCall


class Answer(Screen):
    """A card that shows a model's answer. `questions` are the controls for the answer's pending tool calls.

    Once the user has dealt with all of these calls, the answer continues on the same card.
    """

    def __init__(self, drawn: Any, questions: Questions, ended: Callable[[], None]) -> None:
        self._drawn, self._questions, self._ended = drawn, questions, ended
        self._cards: Cards = {None: Card(0.0)}
        self._now = 0.0
        self._earlier: list[Row] = []
        self._halted: list[Row] = []  # the rows of the halted step, shown until the new turn completes a step

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        self.draw(cards, min(card.begun for card in cards.values()))

    def draw(self, cards: Cards, now: float) -> None:
        self._cards, self._now = cards, now
        self.redraw()

    def finish(self, cards: Cards, now: float) -> None:
        self._cards, self._now = cards, now
        self._ended()

    def redraw(self) -> None:
        self._drawn.value, _ = self.html_and_text()

    def html_and_text(self) -> tuple[str, str]:
        card = self._cards.get(None)
        if card is None or card.has_value:
            return cards_html(self._cards, self._now), plain_text(self._cards)
        rows, texts = rows_and_status(card, self._now)
        rows = self._drop_asked(self._earlier + ([] if card.state.steps else self._halted) + rows)
        look = "waiting" if self._questions.calls else card.look
        return page(article(look, rows_html(rows, opened=look == "running"), texts)), rows_text(rows)

    def begin_turn(self, answered: Sequence[Row]) -> None:
        """Reuse the card for the next turn."""
        card = self._cards[None]
        *earlier, last = rows_by_step(card, responses_of(card), self._now)
        if card.state.steps:
            self._earlier, self._halted = [*self._earlier, *(row for step in earlier for row in step)], []
        self._halted = [*self._drop_asked([*self._halted, *last]), *answered]
        self._cards = {None: Card(self._now)}

    def _drop_asked(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if not (isinstance(row, ToolRow) and row.call.id in self._questions.calls)]


class WidgetCell(Answer):
    """A notebook cell whose output is a widget.

    It shows a stop button while the stream is running. While the chat is waiting, the user can approve or deny tool
    calls with buttons and type results into text fields. At the end, the widget is replaced with plain HTML, which is
    saved in the notebook.
    """

    listens = True

    def __init__(self) -> None:
        widgets: Any = import_module("ipywidgets")
        super().__init__(widgets.HTML(), Questions(widgets, self._continue), lambda: None)
        self._display: Any = import_module("IPython.display")
        self._dispose: Callable[[], None] = lambda: None
        self._answered: Answered = lambda approvals, results: None
        self._box, self._stop = widgets.VBox(), button(widgets, "Stop", lambda: self._dispose())

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        self._dispose = stop or self._dispose
        super().open(cards, stop)
        self._box.children = (self._drawn, self._stop)
        self._handle = self._display.display(self._box, display_id=True)

    def finish(self, cards: Cards, now: float) -> None:
        self._questions.ask((), ())
        self._cards, self._now = cards, now
        html, text = self.html_and_text()
        self._handle.update({"text/html": html, "text/plain": text}, raw=True)
        for widget in (self._box, self._drawn, self._questions.widget, self._stop):
            widget.close()

    def ask(self, cards: Cards, now: float, chat: ChatResult, answered: Answered) -> None:
        self._answered = answered
        approvals: Sequence[ToolCall] = chat.metadata.get("approval_tool_calls", ())
        self._questions.ask(chat.pending_tool_calls, {call.id for call in approvals})
        self.draw(cards, now)
        self._box.children = (self._drawn, self._questions.widget)

    def _continue(self) -> None:
        """Continue the chat on the same card, using the approvals and results that the user gave."""
        approvals, results = self._questions.approvals, self._questions.results
        self.begin_turn(self._questions.rows())
        self._questions.ask((), ())
        self._box.children = (self._drawn, self._stop)
        self._answered(approvals, results)


# In a narrow cell, the controls wrap onto the line below the call.
_LINE, _CALL, _FIELD = {"align_items": "center", "flex_flow": "row wrap"}, {"flex": "1 1 auto"}, {"flex": "1 1 200px"}
_BUTTON = {"width": "96px"}


class Questions:
    """Controls for pending tool calls. ``answered()`` is called once the user has answered all calls."""

    def __init__(self, widgets: Any, answered: Callable[[], None]) -> None:
        self.widget: Any = widgets.VBox()
        self.calls: dict[str, ToolCall] = {}
        self.approvals: dict[str, bool] = {}
        self.results: dict[str, str] = {}
        self._widgets, self._answered = widgets, answered

    def ask(self, calls: Sequence[ToolCall], approvable: Container[str]) -> None:
        """Ask the user to approve the `approvable` calls and to type in the results of all other calls."""
        self.calls, self.approvals, self.results = {call.id: call for call in calls}, {}, {}
        lines = [self._approval(call) if call.id in approvable else self._result(call) for call in calls]
        for line in self.widget.children:
            line.close()
        self.widget.children = lines

    def rows(self) -> list[Row]:
        """Return a row for each result that the user typed in. No event reports these results."""
        return [ToolRow(self.calls[id], "done", result=text) for id, text in self.results.items()]

    def _approval(self, call: ToolCall) -> Any:
        def decide(decision: bool) -> None:
            self.approvals[call.id] = decision
            decided = "Approved" if decision else "Denied"
            label = self._widgets.Button(description=decided, disabled=True, layout=_BUTTON)
            self._settle(line, ToolRow(call, "called"), label)

        approve = button(self._widgets, "Approve", lambda: decide(True), "primary")
        deny = button(self._widgets, "Deny", lambda: decide(False))
        line = self._line(ToolRow(call, "waiting"), approve, deny)
        return line

    def _result(self, call: ToolCall) -> Any:
        def submit() -> None:
            if text := field.value.strip():
                self.results[call.id] = text
                self._settle(line, ToolRow(call, "done", result=text))

        field = text_field(self._widgets, f"Result of {call.name}", submit)
        line = self._line(ToolRow(call, "needed"), field, button(self._widgets, "Send result", submit))
        return line

    def _line(self, row: ToolRow, *controls: Any) -> Any:
        return self._widgets.HBox([self._widgets.HTML(_html(row), layout=_CALL), *controls], layout=_LINE)

    def _settle(self, line: Any, row: ToolRow, *after: Any) -> None:
        first, *controls = line.children
        first.value, line.children = _html(row), (first, *after)
        for control in controls:
            control.close()
        if len(self.approvals) + len(self.results) == len(self.calls):
            self._answered()


def button(widgets: Any, description: str, press: Callable[[], None], style: str = "") -> Any:
    def on_click(_: Any) -> None:
        press()

    drawn = widgets.Button(description=description, button_style=style, layout=_BUTTON)
    drawn.on_click(on_click)
    return drawn


def text_field(widgets: Any, placeholder: str, submit: Callable[[], None]) -> Any:
    """Return a text field that calls ``submit()`` when the user presses Enter."""

    def on_message(_: Any, content: Any, __: Any) -> None:
        if content.get("event") == "submit":
            submit()

    field = widgets.Text(placeholder=placeholder, layout=_FIELD)
    field.on_msg(on_message)
    return field


def _html(row: ToolRow) -> str:
    return page(article("done", row_html(row), ()))
