"""`show`, which draws a running stream in a notebook or in a terminal.

One thread reads the stream, and another draws it. Redraws are not queued: each redraw shows everything received so
far. The last redraw happens after the stream has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Literal, TypeVar, cast, overload

from reactivex import Observable, abc, empty

from rxllm.display._answer import WidgetCell
from rxllm.display._card import Card, End
from rxllm.display._export import HTML_HEAD, export
from rxllm.display._html import cards_html
from rxllm.display._plain import Cards, Plain, Screen, ipython_shell, plain_text
from rxllm.events import Event
from rxllm.pipelines import stream_resume
from rxllm.runtime import call_of, merge_labelled, to_iter
from rxllm.values import ChatResult, Labelled, Response, StepResult, Timed
from rxllm.values.argument_checks import check_instance

log = logging.getLogger("rxllm")
T = TypeVar("T")


REFRESH_SECONDS = 0.05
"""The minimum pause between redraws, in seconds. With shorter pauses, the output would flicker."""

SHARE = 150
"""The pause after a redraw is at least this many times as long as the CPU time of the redraw."""

TICK_SECONDS = 0.1
"""The pause, in seconds, before a redraw that updates only the elapsed time.

Once the stream has been running for ten seconds, the pause is one second. If the chat continues after an approval, the
ten seconds start again.
"""

WAKE_SECONDS = 0.1

last: Any = None

_STOPPED = "Stopped. The partial result is in rxllm.display.last."


@overload
def show(stream: Observable[Any] | Mapping[str, Observable[Any]], *, block: Literal[False]) -> Showing[Any]: ...
@overload
def show(stream: Observable[Event], *, block: Literal[True] = True) -> ChatResult | StepResult | Response[Any]: ...
@overload
def show(
    stream: Mapping[str, Observable[Any]] | Observable[Labelled[Any]], *, block: Literal[True] = True
) -> dict[str, Any]: ...
@overload
def show(stream: Observable[T], *, block: Literal[True] = True) -> T: ...
def show(stream: Any, *, block: bool = True) -> Any:
    """Show `stream` as it runs, and return its result.

    If the stream emits events, the result is a `ChatResult`, a `StepResult` or a `Response`. If the stream emits other
    items, each item replaces the previous one, and the last item is the result. To show several streams side by side,
    pass a mapping of labels to streams, or a stream from ``rxllm.merge_labelled``. The result is then a dict with the
    same labels. If one stream fails, the others continue.

    In a notebook, or in a terminal if rich is installed, `show` draws a card and redraws it in place. Everywhere else,
    it prints the text to standard output. The stop button or Ctrl-C cancels the call and raises ``KeyboardInterrupt``.
    The partial result remains on the card and in ``rxllm.display.last``.

    With ``block=False``, `show` immediately returns a `Showing`. Await it to get the result, or dispose of it to stop
    the stream. In a notebook with ipywidgets, the card then has a stop button. If a ``rxllm.stream(...)`` halts for
    approval, the card shows "Approve" and "Deny" buttons, which continue the chat on the same card. You can then await
    the `Showing` again.

    If the stream fails, its error is raised after all items have been shown. An empty stream raises
    ``SequenceContainsNoElementsError``, as it does with ``run``.

    >>> from rxllm import Fake, stream_generate
    >>> response = show(stream_generate(Fake(["Hel", "lo"]), "Hi"))
    Hello
    """
    check_instance("block", block, bool, "True or False")
    if isinstance(stream, Mapping):
        streams = cast(Mapping[str, Observable[Any]], stream)
        source, labels = merge_labelled(streams), list(streams)
    else:
        expected = "an Observable, such as rxllm.stream(...), or a mapping of labels to Observables"
        check_instance("stream", stream, Observable, expected)
        source, labels = stream, []
    screen = choose_screen()
    if isinstance(screen, Cell) and not block and find_spec("ipywidgets") is not None:
        screen = WidgetCell()
    showing = Showing[Any](source, labels, screen)
    return suppress_repr(showing.start() if not block else showing.run())


def choose_screen() -> Screen:
    """Return the screen to draw on: a notebook cell, a terminal or plain output."""
    if (cell := notebook_cell()) is not None:
        return cell
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and find_spec("rich") is not None:
        from rxllm.display._rich import Terminal

        return Terminal()
    return Plain(text_only=not sys.stdout.isatty())


def draws_cards() -> bool:
    """Return whether `show` draws cards instead of printing text."""
    return not isinstance(choose_screen(), Plain)


def notebook_cell(
    html: Callable[[Cards, float], str] = cards_html, text: Callable[[Cards], str] = plain_text
) -> Screen | None:
    """Return a screen for the current notebook cell, or None outside a notebook.

    ``html(cards, now)`` draws the cards. The result of ``text(cards)`` is stored with the last drawing, for viewers
    that cannot show HTML.
    """
    marimo = sys.modules.get("marimo")
    if hasattr(ipython_shell(), "kernel"):
        return Cell(html, text)
    if marimo is not None and marimo.running_in_notebook():
        return _MarimoCell(html)
    return None


class Showing(abc.DisposableBase, Generic[T]):
    """A stream that is being shown.

    Await it to get the result, or dispose of it to stop the stream. If the stream is stopped, the result is partial.
    """

    def __init__(self, source: Observable[Any], labels: Sequence[str], screen: Screen) -> None:
        self._screen = screen
        self._call = call_of(source)
        self._result: Any = None
        self._begin(source, labels or [None])

    def _begin(self, source: Observable[Any], labels: Sequence[str | None]) -> None:
        self._items = to_iter(source)
        self._begun = time.monotonic()
        self._cards: Cards = dict.fromkeys(labels, Card(self._begun))
        self._over = threading.Event()
        self._stopped = False
        self._ended = self._begun
        self._future: Future[T] = Future()
        # Mark the future as running, so that it cannot be cancelled. If a task that awaits this object is cancelled,
        # the stream is stopped instead.
        self._future.set_running_or_notify_cancel()

    def run(self) -> T:
        """Show the stream on this thread, and return its result."""
        self._screen.open(self._cards, None)
        return self._show()

    def start(self) -> Showing[T]:
        """Show the stream on a new thread."""
        self._screen.open(self._cards, self.dispose)
        self._start_thread()
        return self

    def _start_thread(self) -> None:
        context = contextvars.copy_context()  # notebooks use this to find the cell that an output belongs to
        target = partial(context.run, self._settle, self._future)
        self._screen.thread(target=target, name="rxllm-show", daemon=True).start()

    def dispose(self) -> None:
        """Stop the stream and cancel its call. The card remains visible."""
        self._stopped = self._stopped or not self._over.is_set()
        self._items.close()
        if self._over.is_set() and self._asks:
            self._screen.finish(self._cards, self._ended)

    @overload
    def html(self, path: None = None) -> str: ...
    @overload
    def html(self, path: str | os.PathLike[str]) -> None: ...
    def html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return the cards as HTML, as they look now. If `path` is given, write them as a page, and return None."""
        now = self._ended if self._over.is_set() else time.monotonic()
        return export(cards_html(self._cards, now), path, head=HTML_HEAD)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it. Raises the stream's error, or ``TimeoutError`` after `timeout` seconds."""
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        future = asyncio.wrap_future(self._future)
        try:
            while not future.done():  # ipykernel's stop button does not wake the loop
                await asyncio.wait({future}, timeout=WAKE_SECONDS)
        except asyncio.CancelledError as error:
            self.dispose()
            # This makes notebooks show the error as one line. A subclass could do the same, but Python 3.12's timeouts
            # would not recognise it.
            error.__dict__["_render_traceback_"] = lambda: [_STOPPED]
            raise
        return suppress_repr(future.result())

    def _settle(self, future: Future[T]) -> None:
        try:
            future.set_result(self._show())
        except BaseException as error:
            future.set_exception(error)
        else:
            if self._asks:
                self._screen.ask(self._cards, self._ended, self._result, self._resume)

    @property
    def _asks(self) -> bool:
        """Whether the chat is waiting for input that the user can provide on the screen."""
        result: Any = self._result
        reason: str | None = result.halted_reason if isinstance(result, ChatResult) else None
        return reason in ("approval", "manual_tool_calls") and self._screen.listens and self._call is not None

    def _resume(self, approvals: Mapping[str, bool], results: Mapping[str, str]) -> None:
        """Continue the chat with the engine and the options that it was started with."""
        engine, options = cast(tuple[Any, Mapping[str, Any]], self._call)
        self._begin(stream_resume(engine, self._result, approvals=approvals, results=results, **options), [None])
        self._start_thread()

    def _show(self) -> T:
        context = contextvars.copy_context()
        drawer = self._screen.thread(target=context.run, args=(self._draw_until_end,), name="rxllm-draw", daemon=True)
        drawer.start()
        end: End = "failed"
        failure: Exception | None = None
        try:
            with self._items as items:
                for item in items:
                    self._take(item)
            end = "stopped" if self._stopped else "done"
        except KeyboardInterrupt:
            end = "stopped"
            raise Stopped from None
        except Exception as error:
            failure = error
            raise
        finally:
            self._over.set()
            drawer.join()
            self._finish(end, failure)
        if not self._stopped and not any(card.has_events or card.has_value for card in self._cards.values()):
            return empty().run()  # raises reactivex's error for an empty stream
        return self._result

    def _take(self, item: Any) -> None:
        label: str | None = None
        inner: Any = cast(Timed[Any], item).item if isinstance(item, Timed) else item
        cards = dict(self._cards)
        if isinstance(inner, Labelled):
            labelled = cast(Labelled[Any], inner)
            label, inner = labelled.label, labelled.item
            cards.pop(None, None)  # the initial card has no label and is not needed
        cards[label] = (cards.get(label) or Card(self._begun)).add(inner, time.monotonic())
        self._cards = cards
        self._screen.add(item)

    def _draw_until_end(self) -> None:
        drawn, drawn_at, pause = self._cards, 0.0, REFRESH_SECONDS
        while not self._over.wait(pause):
            cards, now = self._cards, time.monotonic()
            tick = TICK_SECONDS if now - self._begun < 10 else 1.0  # from 10 s on, times are shown in whole seconds
            if cards is drawn and (now - drawn_at < tick or not any(card.ticks for card in cards.values())):
                continue
            drawn, drawn_at, began = cards, now, time.thread_time()
            try:
                self._screen.draw(cards, now)
            except Exception:
                log.exception("drawing failed; the display will not be updated until the stream ends")
                return
            pause = pause_after(time.thread_time() - began)

    def _finish(self, end: End, failure: Exception | None) -> None:
        self._ended = now = time.monotonic()
        self._cards = {label: card.finish(end, now, failure) for label, card in self._cards.items()}
        results = {label: card.result for label, card in self._cards.items()}
        global last
        last = self._result = results.get(None, results)
        if not self._asks:
            self._screen.finish(self._cards, now)


def pause_after(cost: float) -> float:
    """Return how many seconds to pause after a redraw that took `cost` CPU seconds."""
    return max(REFRESH_SECONDS, SHARE * cost)


class Stopped(KeyboardInterrupt):
    """Raised when the user stops a stream that is being shown. Notebooks show the error as one line."""

    def __init__(self) -> None:
        super().__init__(_STOPPED)

    def _render_traceback_(self) -> list[str]:
        return [_STOPPED]


def suppress_repr(value: T) -> T:
    """Return `value`, and keep IPython from showing it again."""
    shell, hook = ipython_shell(), cast(Any, sys.displayhook)
    # IPython changes the hook before and after each cell, so our hook lasts for one cell only.
    if shell is not None and (hook is shell.displayhook or isinstance(hook, _Hook)):
        sys.displayhook = _Hook(hook, value)
    return value


class _Hook:
    def __init__(self, hook: Any, shown: Any) -> None:
        self._hook = hook
        self._shown = shown

    def __call__(self, value: Any) -> None:
        if value is not self._shown:
            self._hook(value)


class Cell(Screen):
    """A notebook cell that redraws a single output."""

    def __init__(
        self, html: Callable[[Cards, float], str] = cards_html, text: Callable[[Cards], str] = plain_text
    ) -> None:
        self._html, self._text = html, text
        self._display: Any = import_module("IPython.display")
        self._handle: Any = None

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = self._html(cards, min(card.begun for card in cards.values()))
        self._handle = self._display.display({"text/html": html}, raw=True, display_id=True)

    def draw(self, cards: Cards, now: float) -> None:
        self._handle.update({"text/html": self._html(cards, now)}, raw=True)

    def finish(self, cards: Cards, now: float) -> None:
        self._handle.update({"text/html": self._html(cards, now), "text/plain": self._text(cards)}, raw=True)


_OUTPUTS = 200
"""An upper limit on the number of outputs in a marimo cell."""


class _MarimoCell(Screen):
    """A marimo cell that redraws a single output."""

    def __init__(self, html: Callable[[Cards, float], str] = cards_html) -> None:
        self._html = html
        self._marimo: Any = import_module("marimo")
        self.thread = self._marimo.Thread  # other threads are not connected to a cell
        self._index = -1

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = self._html(cards, min(card.begun for card in cards.values()))
        # marimo only accepts indexes up to the one that follows the cell's existing outputs, so try the highest first.
        for index in range(_OUTPUTS, -1, -1):
            with contextlib.suppress(IndexError):
                self._put(html, index)
                self._index = index
                return

    def draw(self, cards: Cards, now: float) -> None:
        self._put(self._html(cards, now), self._index)

    finish = draw

    def _put(self, html: str, index: int) -> None:
        self._marimo.output.replace_at_index(self._marimo.Html(html), index)
