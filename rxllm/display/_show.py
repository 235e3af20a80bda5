"""`show`: draw the transcript of a stream while it runs, in a notebook cell or on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

from reactivex import Observable, empty

from rxllm.collector import StreamCollector
from rxllm.display._transcript import Transcript
from rxllm.events import EVENT_CLASSES, Event
from rxllm.runtime import to_iter
from rxllm.values import ChatResult, Response, StepResult, Thread
from rxllm.values.argument_checks import check_instance

T = TypeVar("T")
_NOTHING: Any = object()

REFRESH_SECONDS = 0.05
"""A cell is redrawn at most this often: more would flicker and keep the browser busy."""


@overload
def show(stream: Observable[Event]) -> ChatResult | StepResult | Response[Any]: ...
@overload
def show(stream: Observable[T]) -> T: ...
def show(stream: Observable[Any]) -> Any:
    """Show the text of `stream` as it comes, with its thinking and its tools, and return its result.

    The result is a `ChatResult`, a `StepResult` or a `Response`, whichever the events fold to. A stream of other items
    is shown item by item, and its last item returned. In a notebook the cell is redrawn in place, and the stop button
    cancels the call; elsewhere the text goes to standard output. An error of the stream is raised after everything
    before it has been shown, and ``SequenceContainsNoElementsError``, as by ``run``, if there was no item.

    >>> from rxllm import Fake, stream_generate
    >>> response = show(stream_generate(Fake(["Hel", "lo"]), "Hi"))
    Hello
    """
    check_instance("stream", stream, Observable, "an Observable, such as rxllm.stream(...) returns")
    screen = _Cell() if _in_notebook() else _Terminal()
    transcript = Transcript()
    state = StreamCollector(Thread())
    item = _NOTHING
    try:
        with to_iter(stream) as items:
            for item in items:
                if isinstance(item, EVENT_CLASSES):
                    event: Event = item
                    state = state.apply_event(event)
                    screen.draw(transcript.add(event), transcript.markdown)
                else:
                    screen.item(item)
    finally:
        screen.finish(transcript.markdown)
    if item is _NOTHING:
        return empty().run()  # reactivex's own error
    return _result(state) if isinstance(item, EVENT_CLASSES) else item


def _result(state: StreamCollector) -> ChatResult | StepResult | Response[Any]:
    if state.chat_result is not None:
        return state.chat_result
    return state.steps[-1] if state.steps else state.to_response()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class _Terminal:
    """Standard output: each addition as it comes, and a newline after the last."""

    def __init__(self) -> None:
        self._has_text = False

    def draw(self, addition: str, markdown: Callable[[], str]) -> None:
        if addition:
            self._has_text = True
            print(addition, end="", flush=True)

    def item(self, item: Any) -> None:
        print(item)

    def finish(self, markdown: Callable[[], str]) -> None:
        if self._has_text:
            print()


class _Cell:
    """The cell of a notebook: one output, which is redrawn."""

    def __init__(self) -> None:
        display = sys.modules["IPython"].display
        self._markdown: Callable[[str], Any] = display.Markdown
        self._display: Callable[..., Any] = display.display
        self._handle: Any = None
        self._drawn_at = 0.0

    def draw(self, addition: str, markdown: Callable[[], str]) -> None:
        if addition and time.monotonic() - self._drawn_at >= REFRESH_SECONDS:
            self._draw(markdown())

    def item(self, item: Any) -> None:
        self._display(item)

    def finish(self, markdown: Callable[[], str]) -> None:
        if text := markdown():
            self._draw(text)

    def _draw(self, text: str) -> None:
        if self._handle is None:
            self._handle = self._display(self._markdown(text), display_id=True)
        else:
            self._handle.update(self._markdown(text))
        self._drawn_at = time.monotonic()
