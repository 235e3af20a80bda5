"""Watch a stream as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.display._transcript import Transcript
from rxllm.events import EVENT_CLASSES, Event
from rxllm.runtime import to_iter
from rxllm.values import Thread

REFRESH_SECONDS = 0.05
"""A cell is drawn at most this often: more would flicker, and keep the browser busy."""


def show(stream: Observable[Any]) -> Any:
    """Show the text of `stream` as it comes, with its thinking and its tools; give its result.

    The result is a `ChatResult`, a `StepResult` or a `Response`, whichever the events fold to; a stream of other items
    is shown item by item and gives the last. In a notebook the cell is redrawn in place, and its stop button cancels
    the call; elsewhere the text goes to standard output. Raises what the stream raises, once what had come is shown.

    >>> from rxllm import Fake, stream_generate
    >>> response = show(stream_generate(Fake(["Hel", "lo"]), "Hi"))
    Hello
    """
    screen: _Screen = _Cell() if _in_notebook() else _Terminal()
    transcript = Transcript()
    state = StreamCollector(Thread())
    last: Any = None
    try:
        with to_iter(stream) as items:
            for last in items:
                if isinstance(last, EVENT_CLASSES):
                    event: Event = last
                    state = state.apply_event(event)
                    screen.draw(transcript.add(event), transcript.markdown)
                else:
                    screen.item(last)
    finally:
        screen.finish(transcript.markdown)
    return _result(state) if isinstance(last, EVENT_CLASSES) else last


def _result(state: StreamCollector) -> Any:
    if state.chat_result is not None:
        return state.chat_result
    return state.steps[-1] if state.steps else state.to_response()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class _Screen(Protocol):
    def draw(self, piece: str, markdown: Callable[[], str]) -> None: ...

    def item(self, item: Any) -> None: ...

    def finish(self, markdown: Callable[[], str]) -> None: ...


class _Terminal:
    """Standard output: pieces as they come, and a line end after the last."""

    def __init__(self) -> None:
        self._begun = False

    def draw(self, piece: str, markdown: Callable[[], str]) -> None:
        if piece:
            self._begun = True
            print(piece, end="", flush=True)

    def item(self, item: Any) -> None:
        print(item)

    def finish(self, markdown: Callable[[], str]) -> None:
        if self._begun:
            print()


class _Cell:
    """A notebook's cell: one output that is drawn anew."""

    def __init__(self) -> None:
        display = sys.modules["IPython"].display
        self._markdown: Callable[[str], Any] = display.Markdown
        self._display: Callable[..., Any] = display.display
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, piece: str, markdown: Callable[[], str]) -> None:
        if piece and time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._draw(markdown())

    def item(self, item: Any) -> None:
        self._display(item)

    def finish(self, markdown: Callable[[], str]) -> None:
        text = markdown()
        if text:
            self._draw(text)

    def _draw(self, text: str) -> None:
        if self._handle is None:
            self._handle = self._display(self._markdown(text), display_id=True)
        else:
            self._handle.update(self._markdown(text))
        self._drawn = time.monotonic()
