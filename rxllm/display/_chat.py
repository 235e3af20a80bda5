"""`chat`: a panel of ipywidgets to talk with a model in a notebook."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Unpack

from reactivex import abc

from rxllm import ChatOptions, Engine, EngineError, Message, Outcome, Session, SessionError, ToolCall, Turn, user
from rxllm import operators as ops
from rxllm import session as turns
from rxllm.display._card import ToolRow
from rxllm.display._html import article, cards_html, page, row_html
from rxllm.display._plain import Cards, Screen
from rxllm.display._showing import Showing
from rxllm.display._values import value_html
from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check_instance


def chat(engine: Engine | str | Any, session: Session | None = None, **opts: Unpack[ChatOptions]) -> ChatPanel:
    """Return a panel to talk with the model: a text box, the cards of the answers, and a stop button.

    ::

        panel = rxllm.display.chat("openai:gpt-5-mini", tools=[weather])
        panel                   # in a cell
        panel.session           # the conversation so far, in any later cell

    It goes on from `session`, if there is one. A tool with ``approval=True`` waits for the buttons "Approve" and
    "Deny", unless the options have `approve`. A stopped answer keeps what had come; an error is on the card, and the
    next message can be sent. The options are those of ``rxllm.chat``.

    Raises ``EngineError("missing_dependency")`` without ipywidgets.
    """
    check_instance("session", session, Session | None, "a Session")
    return ChatPanel(engine, session or Session(), opts)


class ChatPanel(abc.DisposableBase):
    """A conversation in a notebook: `widget` shows it, `session` is its state. Dispose it to take it away."""

    def __init__(self, engine: Any, session: Session, opts: ChatOptions) -> None:
        turns.stream_reply(engine, Session(), "", **opts)  # raises what is wrong with the options
        self._engine, self._session, self._opts = engine, session, opts
        self._showing: Showing[Any] | None = None
        self._decisions: dict[str, bool | str] = {}
        self._widgets = widgets = _ipywidgets()
        self._history, self._questions = widgets.VBox(), widgets.VBox()
        self._text = widgets.Text(placeholder="Message", layout={"flex": "1 1 auto"})
        self._text.on_msg(self._on_text)
        self._send, self._stop = self._button("Send", self._submit), self._button("Stop", self.stop)
        row = widgets.HBox([self._text, self._send, self._stop])
        self.widget: Any = widgets.VBox([self._history, self._questions, row])
        if session.messages:
            self._add(value_html(session.thread) or "")
        self._rest()

    @property
    def session(self) -> Session:
        """The conversation so far; while an answer runs, what was before its message."""
        return self._session

    def send(self, message: str | Message) -> Showing[Any]:
        """Send the user's message, draw the answer, and return what is being shown.

        Raises `SessionError` while an answer runs, or calls of tools wait for approval.
        """
        if not self._stop.disabled:
            fault = "an answer is running: wait until it ends, or call panel.stop()"
            raise SessionError("invalid_status_for_operation", fault)
        self._session.require("reply")
        sent = user(message) if isinstance(message, str) else message
        events = turns.stream_reply(self._engine, self._session, sent, **self._opts)
        self._add(value_html(sent) or "")
        return self._show(events)

    def stop(self) -> None:
        """Stop the answer, and keep what has come."""
        if self._showing is not None:
            self._showing.dispose()

    def dispose(self) -> None:
        self.stop()
        self.widget.close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def _button(self, description: str, act: Any, style: str = "") -> Any:
        def press(_: Any) -> None:
            act()

        button = self._widgets.Button(description=description, button_style=style)
        button.on_click(press)
        return button

    def _on_text(self, _: Any, content: Any, __: Any) -> None:
        if content.get("event") == "submit":  # Enter; the value changes without it too
            self._submit()

    def _submit(self) -> None:
        if (text := self._text.value.strip()) and not self._send.disabled:
            self._text.value = ""
            self.send(text)

    def _show(self, events: Stream[Event]) -> Showing[Any]:
        self._send.disabled, self._stop.disabled, self._questions.children = True, False, ()
        keep = ops.finally_result(self._keep, ops.to_session(self._session, keep_partial=True))
        self._showing = Showing[Any](events.pipe(keep), (), _Answer(self))
        return self._showing.start()

    def _keep(self, turn: Turn, outcome: Outcome) -> None:
        after = turn.session
        if after.thread != self._session.thread:  # else nothing has come, and what was pending still is
            self._session = replace(after, status="idle") if after.status == "error" else after
        self._rest()

    def _rest(self) -> None:
        """Wait for a message, or for decisions about the calls that are pending."""
        pending = self._session.pending_tool_calls if self._session.status == "awaiting_tools" else ()
        self._decisions = {}
        self._questions.children = [self._question(call) for call in pending]
        self._send.disabled, self._stop.disabled = bool(pending), True

    def _question(self, call: ToolCall) -> Any:
        row = self._widgets.HBox([self._widgets.HTML(_html(row_html(ToolRow(call, "waiting"))))])
        for text, style, decision in (("Approve", "success", True), ("Deny", "danger", False)):
            row.children += (self._button(text, partial(self._decide, call.id, decision, row), style),)
        return row

    def _decide(self, id: str, decision: bool, row: Any) -> None:
        self._decisions[id] = decision
        self._questions.children = [other for other in self._questions.children if other is not row]
        if not self._questions.children:
            self._show(turns.stream_resume(self._engine, self._session, approvals=self._decisions, **self._opts))

    def _add(self, html: str) -> Any:
        drawn = self._widgets.HTML(html)
        self._history.children += (drawn,)
        return drawn


class _Answer(Screen):
    """The card of an answer in the history of a panel."""

    def __init__(self, panel: ChatPanel) -> None:
        self._drawn = panel._add("")  # pyright: ignore[reportPrivateUsage]

    def draw(self, cards: Cards, now: float) -> None:
        self._drawn.value = cards_html(cards, now)

    finish = draw


def _html(body: str) -> str:
    return page(article("done", body, ()))


def _ipywidgets() -> Any:
    try:
        return import_module("ipywidgets")
    except ImportError as error:
        message = "rxllm.display.chat needs ipywidgets: pip install 'rxllm[notebook]'"
        raise EngineError("missing_dependency", message) from error
