"""Mark the place in a pipe where an error passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.events import ErrorEvent
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check

T = TypeVar("T")


def checkpoint(label: str) -> Callable[[Observable[T]], Stream[T]]:
    """Add a note to a passing error: the label, the line that built the checkpoint, the number of items before it.

    ::

        source             --a--b--X
        checkpoint("in")   --a--b--X        (X has a note: passed checkpoint 'in' (app.py:7) after 2 items)

    >>> from rxllm import Fake, StreamError, stream_generate
    >>> from rxllm import operators as ops
    >>> piped = stream_generate(Fake(["Hel", StreamError("truncated")]), "Hi").pipe(checkpoint("model"), ops.to_text())
    >>> try: piped.run()
    ... except StreamError as error: print(error.__notes__[0].partition(" (")[0])
    passed checkpoint 'model'

    A traceback shows the notes below the error; its frames are those of the loop that reads the stream, not of the
    pipe. The error in an ``ErrorEvent`` gets a note too. Notes are not part of an error's equality or JSON; no error
    gets the same note twice.

    Raises ``ValidationError("invalid_option")`` if `label` is not a string, or empty.
    """
    check("label", label, isinstance(label, str) and label != "", "a string, not empty")  # pyright: ignore[reportUnnecessaryIsInstance]
    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    built_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        passed = 0

        def add_note(error: BaseException) -> None:
            note = f"passed checkpoint {label!r} ({built_at}) after {passed} items"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

        def on_next(item: T) -> None:
            nonlocal passed
            if isinstance(item, ErrorEvent):
                add_note(item.error)
            passed += 1
            observer.on_next(item)

        def on_error(error: Exception) -> None:
            add_note(error)
            observer.on_error(error)

        return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

    return operate(subscribe)
