"""Read a stream and draw it: one thread reads and folds, another draws what there is, so that neither waits.

What comes while a draw takes place is drawn by the next; no draw is queued. A draw follows a pause of 50 ms, or longer
where draws are slow, and the last one shows the end.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

from reactivex import Observable, abc, empty

from rxllm.display._card import Card, End
from rxllm.display._plain import Screen
from rxllm.runtime import to_iter
from rxllm.values import Labelled

T = TypeVar("T")

REFRESH_SECONDS = 0.05
"""The least pause between two draws: more often would flicker and keep the browser busy."""

SHARE = 150
"""A pause is at least so many times as long as the draw before it."""

WAKE_SECONDS = 0.1

log = logging.getLogger("rxllm")


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
