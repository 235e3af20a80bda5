"""`show`: draw a stream while it runs, in a notebook cell or on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, TypeVar, cast, overload

from reactivex import Observable

from rxllm.display._plain import Plain, Screen
from rxllm.display._screens import Cell, Page
from rxllm.display._showing import Showing, shown_once
from rxllm.events import Event
from rxllm.runtime import merge_labelled
from rxllm.values import ChatResult, Labelled, Response, StepResult
from rxllm.values.argument_checks import check_instance

T = TypeVar("T")


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
