"""`chat`: a panel of ipywidgets to talk with a model in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Unpack

from reactivex import abc

from rxllm import ChatOptions, Engine, EngineError, Message, Outcome, Session, SessionError, ToolCall, Turn, user
from rxllm import operators as ops
from rxllm import session as turns
from rxllm.display._html import article, cards_html, page
from rxllm.display._messages import message_html, thread_html
from rxllm.display._plain import Cards, Screen
from rxllm.display._showing import Showing
from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check_instance


def chat(engine: Engine | str | Any, session: Session | None = None, **opts: Unpack[ChatOptions]) -> ChatPanel:
    """Return a panel that talks with the model: a text box, the cards of the answers, and a stop button.

    ::

        panel = rxllm.display.chat("openai:gpt-5-mini", tools=[weather])
        panel                   # in a cell
        panel.session           # the conversation so far, in any later cell

    It goes on from `session`, if there is one. A tool with ``approval=True`` waits for the button "Approve" or "Deny",
    unless the options have `approve`. What is stopped keeps what had come; an error is on its card, and the next
    message can be sent. The options are those of ``rxllm.chat``.

    Raises ``EngineError("missing_dependency")`` without ipywidgets.
    """
    check_instance("session", session, Session | None, "a Session")
    return ChatPanel(engine, session or Session(), opts)


class ChatPanel(abc.DisposableBase):
    """A conversation in a notebook: `session` is its state, `send` and `stop` do what its buttons do.

    Dispose it to stop the answer and to take the panel away.
    """

    def __init__(self, engine: Any, session: Session, opts: ChatOptions) -> None:
        self._widgets = widgets = _ipywidgets()
        self._engine, self._session, self._opts = engine, session, opts
        turns.stream_reply(engine, Session(), "", **opts)  # raises what is wrong with the options
        self._showing: Showing[Any] | None = None
        self._decisions: dict[str, bool | str] = {}
        self._history = widgets.VBox([])
        self._text = widgets.Text(placeholder="Message", layout={"flex": "1 1 auto"})
        self._text.on_msg(self._on_text)
        self._send = widgets.Button(description="Send", icon="paper-plane")
        self._send.on_click(self._submit)
        self._stop = widgets.Button(description="Stop", icon="stop", tooltip="Stop the answer")
        self._stop.on_click(self._press_stop)
        self._questions = widgets.VBox([])
        row = widgets.HBox([self._text, self._send, self._stop])
        self.widget: Any = widgets.VBox([self._history, self._questions, row])
        if session.messages:
            self._add(page(article("done", thread_html(session.thread), ())))
        self._rest()

    @property
    def session(self) -> Session:
        """The conversation so far: of an answer that is running, what was before it."""
        return self._session

    def send(self, message: str | Message) -> Showing[Any]:
        """Send the user's message, draw the answer, and return what is being shown.

        Raises `SessionError` while an answer runs, or calls of tools wait for approval.
        """
        if not self._stop.disabled:
            fault = "an answer is running: wait for what send has returned, or call panel.stop()"
            raise SessionError("invalid_status_for_operation", fault)
        self._session.require("reply")
        sent = user(message) if isinstance(message, str) else message
        self._add(page(article("done", message_html(sent), ())))
        return self._show(turns.stream_reply(self._engine, self._session, sent, **self._opts))

    def stop(self) -> None:
        """Stop the answer, and keep what has come."""
        if self._showing is not None:
            self._showing.dispose()

    def dispose(self) -> None:
        self.stop()
        self.widget.close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def _on_text(self, _: Any, content: Any, __: Any) -> None:
        if content.get("event") == "submit":  # Enter; a change of the value is also a click elsewhere
            self._submit()

    def _press_stop(self, _: Any) -> None:
        self.stop()

    def _submit(self, _: Any = None) -> None:
        text = self._text.value.strip()
        if text and not self._send.disabled:
            self._text.value = ""
            self.send(text)

    def _show(self, events: Stream[Event]) -> Showing[Any]:
        self._send.disabled, self._stop.disabled, self._questions.children = True, False, ()
        keep = ops.finally_result(self._keep, ops.to_session(self._session, keep_partial=True))
        self._showing = Showing[Any](events.pipe(keep), (), _Answer(self._add))
        return self._showing.start()

    def _keep(self, turn: Turn, outcome: Outcome) -> None:
        after = turn.session
        if after.thread != self._session.thread:  # else nothing has come, and pending calls are still pending
            self._session = replace(after, status="idle") if after.status == "error" else after
        self._rest()

    def _rest(self) -> None:
        """Wait for the user: for a message, or for decisions about the calls that are pending."""
        pending = self._session.pending_tool_calls if self._session.status == "awaiting_tools" else ()
        self._decisions = {}
        self._questions.children = tuple(self._question(call) for call in pending)
        self._send.disabled, self._stop.disabled = bool(pending), True

    def _question(self, call: ToolCall) -> Any:
        widgets = self._widgets
        label = widgets.Label(
            f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
        )
        row = widgets.HBox([label])
        for description, style, decision in (("Approve", "success", True), ("Deny", "danger", False)):
            button = widgets.Button(description=description, button_style=style)
            button.on_click(partial(self._decide, call.id, decision, row))
            row.children += (button,)
        return row

    def _decide(self, id: str, decision: bool, row: Any, _: Any) -> None:
        self._decisions[id] = decision
        self._questions.children = tuple(other for other in self._questions.children if other is not row)
        if not self._questions.children:
            decided = dict(self._decisions)
            self._show(turns.stream_resume(self._engine, self._session, approvals=decided, **self._opts))

    def _add(self, html: str) -> Any:
        drawn = self._widgets.HTML(html)
        self._history.children += (drawn,)
        return drawn


class _Answer(Screen):
    """The card of one answer in the history."""

    def __init__(self, add: Callable[[str], Any]) -> None:
        self._add = add

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        self._drawn = self._add(cards_html(cards, min(card.begun for card in cards.values())))

    def draw(self, cards: Cards, now: float) -> None:
        self._drawn.value = cards_html(cards, now)

    finish = draw


def _ipywidgets() -> Any:
    try:
        return import_module("ipywidgets")
    except ImportError as error:
        message = "rxllm.display.chat needs ipywidgets: pip install 'rxllm[notebook]'"
        raise EngineError("missing_dependency", message) from error
