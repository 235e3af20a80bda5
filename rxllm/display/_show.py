"""`show`: draw a stream while it runs, in a notebook's cell or on a terminal; one thread reads, another draws.

Draws are never queued: each shows all items received so far. A pause of 50 ms, longer after a slow draw, separates two
draws; the last one shows the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
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

from rxllm.display._card import Card, End
from rxllm.display._html import cards_html
from rxllm.display._plain import Cards, Plain, Screen, ipython_shell, plain_text
from rxllm.events import Event
from rxllm.runtime import merge_labelled, to_iter
from rxllm.values import ChatResult, Labelled, Response, StepResult
from rxllm.values.argument_checks import check_instance

log = logging.getLogger("rxllm")
T = TypeVar("T")


REFRESH_SECONDS = 0.05
"""Minimum pause between two draws: a shorter one would flicker and keep the browser busy."""

SHARE = 150
"""Minimum ratio of a pause to the CPU time of the draw before it."""

WAKE_SECONDS = 0.1

last: Any = None
"""The result of the latest `show` that has ended."""

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
    """Show `stream` while it runs, with its thinking, tools, images, sources and costs, and return its result.

    Events fold to a `ChatResult`, a `StepResult` or a `Response`. For a stream of other items, the latest is shown in
    place, and the last is returned. Several streams, given as a mapping or by ``rxllm.merge_labelled``, are shown side
    by side; the result is a dict by their labels, and a stream that fails does not end the others.

    A notebook shows a card, redrawn in place; so does a terminal if rich is installed. Elsewhere only the text goes to
    standard output. The stop button, or Ctrl-C, cancels the call and raises ``KeyboardInterrupt``; the partial result
    stays on the card and in ``rxllm.display.last``. With ``block=False`` it returns a `Showing` at once: await it for
    the result, dispose it to stop; in a notebook with ipywidgets its card has a stop button.

    The stream's error is raised after all items before it are shown; a stream without items raises
    ``SequenceContainsNoElementsError``, as ``run`` does.

    >>> from rxllm import Fake, stream_generate
    >>> response = show(stream_generate(Fake(["Hel", "lo"]), "Hi"))
    Hello
    """
    check_instance("block", block, bool, "True or False")
    if isinstance(stream, Mapping):
        streams = cast(Mapping[str, Observable[Any]], stream)
        source, labels = merge_labelled(streams), list(streams)
    else:
        expected = "an Observable, such as rxllm.stream(...) returns, or a mapping of labels to Observables"
        check_instance("stream", stream, Observable, expected)
        source, labels = stream, []
    showing = Showing[Any](source, labels, choose_screen())
    return suppress_repr(showing.start() if not block else showing.run())


def choose_screen() -> Screen:
    """Return the screen of this process: a cell, a terminal, or plain output."""
    marimo = sys.modules.get("marimo")
    if hasattr(ipython_shell(), "kernel"):
        return Cell()
    if marimo is not None and marimo.running_in_notebook():
        return _MarimoCell()
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rxllm.display._rich import Terminal

        return Terminal()
    return Plain(text_only=not sys.stdout.isatty())


class Showing(abc.DisposableBase, Generic[T]):
    """A stream that is being shown: ``await`` it for the result, or dispose it to stop.

    The result of a stopped stream is the part received so far.
    """

    def __init__(self, source: Observable[Any], labels: Sequence[str], screen: Screen) -> None:
        self._items = to_iter(source)
        self._screen = screen
        self._begun = time.monotonic()
        self._cards: Cards = dict.fromkeys(labels or [None], Card(self._begun))
        self._over = threading.Event()
        self._stopped = False
        self._result: Any = None
        self._future: Future[T] = Future()
        self._future.set_running_or_notify_cancel()  # a cancelled task disposes the stream, not the future

    def run(self) -> T:
        """Show the stream on this thread, and return its result."""
        self._screen.open(self._cards, None)
        return self._show()

    def start(self) -> Showing[T]:
        """Show the stream on its own thread."""
        self._screen.open(self._cards, self.dispose)
        context = contextvars.copy_context()  # a notebook assigns outputs to cells by context
        self._screen.thread(target=context.run, args=(self._settle,), name="rxllm-show", daemon=True).start()
        return self

    def dispose(self) -> None:
        """Stop: cancel the call, and leave the card as it is."""
        self._stopped = self._stopped or not self._over.is_set()
        self._items.close()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, and return it; raise the stream's error, or ``TimeoutError`` after `timeout` seconds."""
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        future = asyncio.wrap_future(self._future)
        try:
            while not future.done():  # ipykernel's stop button cancels the task without waking its loop
                await asyncio.wait({future}, timeout=WAKE_SECONDS)
        except asyncio.CancelledError as error:
            self.dispose()
            # A notebook shows this one line. The timeouts of asyncio 3.12 would not recognise a subclass.
            error.__dict__["_render_traceback_"] = lambda: [_STOPPED]
            raise
        return suppress_repr(future.result())

    def _settle(self) -> None:
        try:
            self._future.set_result(self._show())
        except BaseException as error:
            self._future.set_exception(error)

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
            return empty().run()  # reactivex's own error
        return self._result

    def _take(self, item: Any) -> None:
        label: str | None = None
        inner, cards = item, dict(self._cards)
        if isinstance(item, Labelled):
            labelled = cast(Labelled[Any], item)
            label, inner = labelled.label, labelled.item
            cards.pop(None, None)  # the card for an unlabelled stream
        cards[label] = (cards.get(label) or Card(self._begun)).add(inner, time.monotonic())
        self._cards = cards
        self._screen.add(item)

    def _draw_until_end(self) -> None:
        drawn, pause = self._cards, REFRESH_SECONDS
        while not self._over.wait(pause):
            cards = self._cards
            if cards is drawn and not any(card.ticks for card in cards.values()):
                continue
            drawn, began = cards, time.thread_time()
            try:
                self._screen.draw(cards, time.monotonic())
            except Exception:
                log.exception("a draw failed; the stream is not drawn again until its end")
                return
            pause = pause_after(time.thread_time() - began)

    def _finish(self, end: End, failure: Exception | None) -> None:
        now = time.monotonic()
        self._cards = {label: card.finish(end, now, failure) for label, card in self._cards.items()}
        results = {label: card.result for label, card in self._cards.items()}
        global last
        last = self._result = results.get(None, results)
        self._screen.finish(self._cards, now)


def pause_after(cost: float) -> float:
    """Return the pause after a draw that took `cost` seconds of CPU time."""
    return max(REFRESH_SECONDS, SHARE * cost)


class Stopped(KeyboardInterrupt):
    """Raised when the user stops a stream that is shown; a notebook shows it as one line."""

    def __init__(self) -> None:
        super().__init__(_STOPPED)

    def _render_traceback_(self) -> list[str]:
        return [_STOPPED]


def suppress_repr(value: T) -> T:
    """Return `value`, and keep IPython from showing it again as the last expression of the running cell."""
    shell, hook = ipython_shell(), cast(Any, sys.displayhook)
    # IPython sets its hook for each cell and restores the previous one afterwards, which removes this one too.
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
    """A notebook cell: one output, redrawn, with an ipywidgets stop button until the end if there is a `stop`.

    At the end the output is plain HTML, which a saved notebook keeps.
    """

    def __init__(self) -> None:
        self._display: Any = import_module("IPython.display")
        self._handle: Any = None
        self._box: Any = None

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = cards_html(cards, min(card.begun for card in cards.values()))
        if stop is None or find_spec("ipywidgets") is None:
            self._handle = self._display.display({"text/html": html}, raw=True, display_id=True)
            return
        widgets: Any = import_module("ipywidgets")
        button = widgets.Button(description="Stop", icon="stop", tooltip="Stop the stream")
        button.on_click(partial(_press, stop))
        self._box = widgets.VBox([widgets.HTML(html), button])
        self._handle = self._display.display(self._box, display_id=True)

    def draw(self, cards: Cards, now: float) -> None:
        html = cards_html(cards, now)
        if self._box is not None:
            self._box.children[0].value = html
        else:
            self._handle.update({"text/html": html}, raw=True)

    def finish(self, cards: Cards, now: float) -> None:
        self._handle.update({"text/html": cards_html(cards, now), "text/plain": plain_text(cards)}, raw=True)
        for widget in () if self._box is None else (self._box, *self._box.children):
            widget.close()


def _press(stop: Callable[[], None], button: Any) -> None:
    stop()


_OUTPUTS = 200
"""An index above the outputs of any marimo cell."""


class _MarimoCell(Screen):
    """A marimo cell: one of its outputs, redrawn."""

    def __init__(self) -> None:
        self._marimo: Any = import_module("marimo")
        self.thread = self._marimo.Thread  # another thread has no cell to draw in
        self._index = -1

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = cards_html(cards, min(card.begun for card in cards.values()))
        for index in range(_OUTPUTS, -1, -1):  # marimo's first accepted index follows the cell's earlier outputs
            with contextlib.suppress(IndexError):
                self._put(html, index)
                self._index = index
                return

    def draw(self, cards: Cards, now: float) -> None:
        self._put(cards_html(cards, now), self._index)

    finish = draw

    def _put(self, html: str, index: int) -> None:
        self._marimo.output.replace_at_index(self._marimo.Html(html), index)
