"""`show`: draw a stream while it runs, in a notebook's cell or on a terminal; one thread reads, another draws.

What comes while a draw takes place is drawn by the next; no draw is queued. A draw follows a pause of 50 ms, or longer
where draws are slow, and the last one shows the end.
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
from rxllm.display._plain import Cards, Plain, Screen, plain_text
from rxllm.events import Event
from rxllm.runtime import merge_labelled, to_iter
from rxllm.values import ChatResult, Labelled, Response, StepResult
from rxllm.values.argument_checks import check_instance

log = logging.getLogger("rxllm")
T = TypeVar("T")

OUTPUTS = 200
"""More than the outputs of one cell of marimo."""


class Cell(Screen):
    """The cell of a notebook: one output, which is redrawn. With `stop`, a button of ipywidgets is on it until the end.

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


class Page(Screen):
    """A cell of marimo: one of its outputs, which is redrawn."""

    def __init__(self) -> None:
        self._marimo: Any = import_module("marimo")
        self.thread = self._marimo.Thread  # another has no cell to draw in
        self._index = -1

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        html = cards_html(cards, min(card.begun for card in cards.values()))
        for index in range(OUTPUTS, -1, -1):  # the first that marimo takes follows the cell's earlier outputs
            with contextlib.suppress(IndexError):
                self._put(html, index)
                self._index = index
                return

    def draw(self, cards: Cards, now: float) -> None:
        self._put(cards_html(cards, now), self._index)

    finish = draw

    def _put(self, html: str, index: int) -> None:
        self._marimo.output.replace_at_index(self._marimo.Html(html), index)


REFRESH_SECONDS = 0.05
"""The least pause between two draws: more often would flicker and keep the browser busy."""

SHARE = 150
"""A pause is at least so many times as long as the draw before it."""

WAKE_SECONDS = 0.1


class _Latest:
    result: Any = None


latest = _Latest()


_STOPPED = "Stopped. What had come is in rxllm.display.last."


class Stopped(KeyboardInterrupt):
    """The user has stopped a stream that was shown. A notebook shows one line for it."""

    def __init__(self) -> None:
        super().__init__(_STOPPED)

    def _render_traceback_(self) -> list[str]:
        return [_STOPPED]


class Showing(abc.DisposableBase, Generic[T]):
    """A stream that is being shown: ``await`` it for the result, or dispose it to stop.

    When it is stopped, the result is what had come until then.
    """

    def __init__(self, source: Observable[Any], labels: Sequence[str], screen: Screen) -> None:
        self._items = to_iter(source)
        self._screen = screen
        begun = time.monotonic()
        self._cards: Mapping[str | None, Card] = dict.fromkeys(labels or [None], Card(begun))
        self._begun = begun
        self._over = threading.Event()
        self._stopped = False
        self._result: Any = None
        self._future: Future[T] = Future()
        self._future.set_running_or_notify_cancel()  # a cancelled task disposes it; the future itself stays

    def run(self) -> T:
        """Show the stream on this thread, and return its result."""
        self._screen.open(self._cards, None)
        return self._show()

    def start(self) -> Showing[T]:
        """Show the stream on a thread of its own."""
        self._screen.open(self._cards, self.dispose)
        context = contextvars.copy_context()  # where the outputs of a notebook belong
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
            # A notebook shows this one line. A subclass would not do: asyncio's timeouts of 3.12 do not know it.
            error.__dict__["_render_traceback_"] = lambda: [_STOPPED]
            raise
        return shown_once(future.result())

    def _settle(self) -> None:
        try:
            self._future.set_result(self._show())
        except BaseException as error:
            self._future.set_exception(error)

    def _show(self) -> T:
        context = contextvars.copy_context()
        drawer = self._screen.thread(target=context.run, args=(self._draw_on,), name="rxllm-draw", daemon=True)
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
            cards.pop(None, None)  # the labels are known now
        cards[label] = (cards.get(label) or Card(self._begun)).add(inner, time.monotonic())
        self._cards = cards
        self._screen.add(item)

    def _draw_on(self) -> None:
        drawn, pause = self._cards, REFRESH_SECONDS
        while not self._over.wait(pause):
            cards = self._cards
            if cards is drawn and not any(card.ticks for card in cards.values()):
                continue
            drawn, began = cards, time.thread_time()
            try:
                self._screen.draw(cards, time.monotonic())
            except Exception:
                log.exception("a stream is not drawn any more until its end")
                return
            pause = pause_after(time.thread_time() - began)

    def _finish(self, end: End, failure: Exception | None) -> None:
        now = time.monotonic()
        self._cards = {label: card.finish(end, now, failure) for label, card in self._cards.items()}
        results = {label: card.result for label, card in self._cards.items()}
        latest.result = self._result = results.get(None, results)
        self._screen.finish(self._cards, now)


def pause_after(cost: float) -> float:
    """Return how long to wait after a draw that took `cost` seconds of CPU time."""
    return max(REFRESH_SECONDS, SHARE * cost)


def shown_once(value: T) -> T:
    """Return `value`, which the running cell of IPython does not show again if it is its last expression."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    hook: Any = sys.displayhook
    # IPython sets its hook for each cell and takes it away afterwards, and with it what stands before it here.
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
    """Show `stream` as it comes, with its thinking, tools, images, sources and costs, and return its result.

    The result is a `ChatResult`, a `StepResult` or a `Response`, whichever the events fold to. Of a stream of other
    items the latest is shown, in place, and the last returned. Several streams stand side by side, as a mapping or from
    ``rxllm.merge_labelled``; the result is a dict by their labels, and one that fails does not end the others.

    In a notebook it is a card, redrawn in place; on a terminal the same with rich, if that is installed. Elsewhere only
    the text goes to standard output. The stop button, or Ctrl-C, cancels the call and raises ``KeyboardInterrupt``;
    what had come stays, on the card and as ``rxllm.display.last``. With ``block=False`` a `Showing` comes back at once:
    await it for the result, dispose it to stop; in a notebook with ipywidgets the card has a stop button of its own.

    An error of the stream is raised after everything before it has been shown, and
    ``SequenceContainsNoElementsError``, as by ``run``, if there was no item.

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
    return shown_once(showing.start() if not block else showing.run())


def choose_screen() -> Screen:
    """Return the screen of the program that runs here."""
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        return Cell()
    if marimo is not None and marimo.running_in_notebook():
        return Page()
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rxllm.display._rich import Terminal

        return Terminal()
    return Plain(text_only=not sys.stdout.isatty())
