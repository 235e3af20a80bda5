"""The tool calls of a chat panel that wait for a person: buttons for an approval, a text field for a result."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from rxllm import ToolCall
from rxllm.display._card import Row, ToolRow
from rxllm.display._html import article, page, row_html

# What is beside a call goes below it where both are too wide.
_LINE, _CALL, _FIELD = {"align_items": "center", "flex_flow": "row wrap"}, {"flex": "1 1 auto"}, {"flex": "1 1 200px"}


class Questions:
    """A line for each call that waits, until all are answered: then `answered` is called."""

    def __init__(self, widgets: Any, answered: Callable[[], None]) -> None:
        self.widget: Any = widgets.VBox()
        self.calls: dict[str, ToolCall] = {}
        self.approvals: dict[str, bool] = {}
        self.results: dict[str, str] = {}
        self._widgets, self._answered = widgets, answered

    def ask(self, calls: Sequence[ToolCall], approvable: Container[str]) -> None:
        """Ask about `calls`: for the approval of those whose tools are `approvable`, for the results of the others."""
        self.calls, self.approvals, self.results = {call.id: call for call in calls}, {}, {}
        lines = [self._approval(call) if call.name in approvable else self._result(call) for call in calls]
        for line in self.widget.children:
            line.close()
        self.widget.children = lines

    def rows(self) -> list[Row]:
        """Return the rows of the calls whose results were typed, which no stream has."""
        return [ToolRow(self.calls[id], "done", result=text) for id, text in self.results.items()]

    def _approval(self, call: ToolCall) -> Any:
        def decide(decision: bool, done: str) -> None:
            self.approvals[call.id] = decision
            label = self._widgets.Button(description=done, disabled=True)
            self._settle(line, ToolRow(call, "called"), label)

        buttons = (
            button(self._widgets, "Approve", lambda: decide(True, "Approved"), "success"),
            button(self._widgets, "Deny", lambda: decide(False, "Denied"), "danger"),
        )
        line = self._line(ToolRow(call, "waiting"), *buttons)
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
    """Return a button that calls `press`."""

    def on_click(_: Any) -> None:
        press()

    drawn = widgets.Button(description=description, button_style=style)
    drawn.on_click(on_click)
    return drawn


def text_field(widgets: Any, placeholder: str, submit: Callable[[], None]) -> Any:
    """Return a field that calls `submit` when Enter is pressed."""

    def on_message(_: Any, content: Any, __: Any) -> None:
        if content.get("event") == "submit":  # the value changes without it too
            submit()

    field = widgets.Text(placeholder=placeholder, layout=_FIELD)
    field.on_msg(on_message)
    return field


def _html(row: ToolRow) -> str:
    return page(article("done", row_html(row), ()))
