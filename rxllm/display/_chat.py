"""Notebook widgets: a chat panel, and a stream of a widget's values."""

from __future__ import annotations

import threading
from dataclasses import replace
from importlib import import_module
from typing import Any, Unpack

from reactivex import abc
from reactivex.disposable import Disposable

from rxllm import Engine, EngineError, Message, Session, SessionError, user
from rxllm import operators as ops
from rxllm import session as turns
from rxllm.display._answer import Answer, Questions, button, text_field
from rxllm.display._card import Note
from rxllm.display._html import page, row_html
from rxllm.display._show import Showing
from rxllm.display._values import value_html
from rxllm.engine import as_engine
from rxllm.events import Event
from rxllm.pipelines import ChatOptions
from rxllm.runtime import Stream, clock, returned_by
from rxllm.telemetry import Outcome
from rxllm.values import Turn
from rxllm.values.argument_checks import check, check_instance

CARDS = 60
"""The maximum number of messages and answers that a panel shows."""


def chat(engine: Engine | str | Any, session: Session | None = None, **opts: Unpack[ChatOptions]) -> ChatPanel:
    """Return a panel for talking to a model.

    ::

        panel = rxllm.display.chat("openai:gpt-5-mini", tools=[weather])
        panel                   # in a cell
        panel.session           # the conversation so far, in any later cell

    If you pass a `session`, the panel continues that conversation. `opts` are the options of ``rxllm.chat``. Tools with
    ``approval=True`` get "Approve" and "Deny" buttons, unless you pass the `approve` option. Tools with ``manual=True``
    get a text field for the result. If you stop an answer, its partial text is kept. If an answer fails, its card shows
    the error. The panel shows the last 60 messages and answers, but the session keeps all of them.

    Raises ``EngineError("missing_dependency")`` if ipywidgets is not installed.
    """
    check_instance("session", session, Session | None, "a Session")
    return ChatPanel(engine, session or Session(), opts)


class ChatPanel(abc.DisposableBase):
    """A conversation in a notebook. `widget` shows it, and `session` stores it. Dispose the panel to remove it."""

    def __init__(self, engine: Any, session: Session, opts: ChatOptions) -> None:
        turns.stream_reply(engine, Session(), "", **opts)  # raises if an option is invalid
        self._engine, self._session, self._opts = engine, session, opts
        self._showing: Showing[Any] | None = None
        self._answer: Answer | None = None
        self._dropped, self._ends, self._lock = 0, 0, threading.Lock()
        self._widgets = widgets = _ipywidgets()
        self._questions = Questions(widgets, self._resume)
        self._earlier, self._history = widgets.HTML(), widgets.VBox()
        self._text = text_field(widgets, "Message", self._submit)
        self._send, self._stop = button(widgets, "Send", self._submit), button(widgets, "Stop", self.stop)
        row = widgets.HBox([self._text, self._send, self._stop])
        self.widget: Any = widgets.VBox([self._earlier, self._history, self._questions.widget, row])
        if session.messages:
            self._add(value_html(session.thread) or "")
        self._enable_input()

    @property
    def session(self) -> Session:
        """The conversation so far. A turn that is still running is not included."""
        return self._session

    def send(self, message: str | Message) -> Showing[Any]:
        """Send a user message, and show the answer.

        Raises `SessionError` if an answer is still running or tool calls are pending.
        """
        if not self._stop.disabled:
            fault = "an answer is still running: wait for it to end, or call panel.stop()"
            raise SessionError("invalid_status_for_operation", fault)
        self._session.require("reply")
        sent = user(message) if isinstance(message, str) else message
        events = turns.stream_reply(self._engine, self._session, sent, **self._opts)
        self._add(value_html(sent) or "")
        return self._show(events, Answer(self._add(""), self._questions, self._end))

    def stop(self) -> None:
        """Stop the running answer, and keep its partial text."""
        if self._showing is not None:
            self._showing.dispose()

    def dispose(self) -> None:
        self.stop()
        self.widget.close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def _submit(self) -> None:
        if (text := self._text.value.strip()) and not self._send.disabled:
            self._text.value = ""
            self.send(text)

    def _resume(self) -> None:
        """Continue the chat with the user's answers to its pending tool calls.

        The next turn is drawn on the last answer's card, if there is one.
        """
        approvals, results = self._questions.approvals, self._questions.results
        events = turns.stream_resume(self._engine, self._session, approvals=approvals, results=results, **self._opts)
        answer = self._answer or Answer(self._add(""), self._questions, self._end)
        answer.begin_turn(self._questions.rows())
        self._show(events, answer)

    def _show(self, events: Stream[Event], answer: Answer) -> Showing[Any]:
        self._questions.ask((), ())
        self._send.disabled, self._stop.disabled, self._answer, self._ends = True, False, answer, 0
        keep = ops.finally_result(self._keep, ops.to_session(self._session, keep_partial=True))
        self._showing = Showing[Any](events.pipe(keep), (), answer)
        return self._showing.start()

    def _keep(self, turn: Turn, outcome: Outcome) -> None:
        after = turn.session
        if after.thread != self._session.thread:  # if nothing was received, the session stays as it was
            self._session = replace(after, status="idle") if after.status == "error" else after
        self._end()

    def _end(self) -> None:
        """Record that the turn or the card has ended. Once both have ended, enable the controls."""
        with self._lock:
            self._ends += 1
            ended = self._ends == 2
        if ended:
            self._enable_input()

    def _enable_input(self) -> None:
        """Let the user send a message or answer pending calls."""
        pending = self._session.pending_tool_calls if self._session.status == "awaiting_tools" else ()
        tools = as_engine(self._engine).with_tools(*(self._opts.get("tools") or ()), replace=True).tools
        approvable = {tool.name for tool in tools if not tool.manual}
        hosted = {call.id for call in pending if call.metadata.get("hosted")}
        self._questions.ask(pending, hosted | {call.id for call in pending if call.name in approvable})
        if self._answer is not None:
            self._answer.redraw()
        # `send` raises an error while Stop is enabled, so disable Stop first.
        self._stop.disabled, self._send.disabled = True, bool(pending)

    def _add(self, html: str) -> Any:
        """Add a card, and remove the oldest cards if there are too many."""
        drawn = self._widgets.HTML(html)
        shown = (*self._history.children, drawn)
        self._history.children = shown[-CARDS:]
        for card in shown[:-CARDS]:
            card.close()
            self._dropped += 1
            note = f"{self._dropped:,} earlier cards are not shown; all messages are in panel.session.thread"
            self._earlier.value = page(row_html(Note(note)))
        return drawn


def _ipywidgets() -> Any:
    try:
        return import_module("ipywidgets")
    except ImportError as error:
        message = "rxllm.display.chat needs ipywidgets: pip install 'rxllm[notebook]'"
        raise EngineError("missing_dependency", message) from error


def from_widget(widget: Any, trait: str = "value") -> Stream[Any]:
    """Emit the value of `widget` on subscription and whenever the value changes.

    If `widget` is a button, the stream emits the button itself on every click. In this example, moving the slider
    starts a new call and cancels the previous call::

        slider = ipywidgets.IntSlider(3)
        ask = lambda days: rxllm.stream_generate(engine, f"{days} days in Rome").pipe(ops.snapshots(0.05))
        answers = from_widget(slider).pipe(rx.debounce(0.3), rx.switch_map(ask))
        display(slider)
        rxllm.show(answers, block=False)

    `trait` is the name of the trait to observe. While a cell is running, the kernel receives no changes, so use
    ``block=False`` or ``subscribe``. The stream never completes. Dispose of the subscription to stop observing the
    widget. Items are emitted on the subscription's event loop or scheduler.

    Raises ``ValidationError("invalid_option")`` if `widget` is not a widget or has no such trait.
    """
    check_instance("trait", trait, str, "a trait name")
    is_button = hasattr(widget, "on_click") and trait == "value"
    expected = "an ipywidgets or anywidget widget, such as ipywidgets.IntSlider()"
    check("widget", widget, hasattr(widget, "observe") and hasattr(widget, "has_trait"), expected)
    known = is_button or widget.has_trait(trait)
    check("trait", trait, known, f"a trait of {type(widget).__name__}, as listed by widget.trait_names()")

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        time, subscription = clock(scheduler), Disposable(lambda: unobserve())

        def deliver(_: abc.SchedulerBase, value: Any = None) -> None:
            if not subscription.is_disposed:
                observer.on_next(value)

        def on_change(change: Any) -> None:
            time.schedule(deliver, widget if is_button else change["new"])

        def unobserve() -> None:
            widget.on_click(on_change, remove=True) if is_button else widget.unobserve(on_change, trait)

        if is_button:
            widget.on_click(on_change)
        else:
            widget.observe(on_change, trait)
            time.schedule(deliver, getattr(widget, trait))
        return subscription

    return returned_by("from_widget", Stream(subscribe), items="items")
