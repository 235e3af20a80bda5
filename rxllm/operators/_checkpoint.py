"""Where in a pipe an error passed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.events import ErrorEvent
from rxllm.runtime import Stream
from rxllm.values.arguments import invalid_option

T = TypeVar("T")


def checkpoint(label: str) -> Callable[[Observable[T]], Stream[T]]:
    """A passing error is given a note: this place's label, the line that built it, and how many items had passed.

    ::

        source             --a--b--X
        checkpoint("in")   --a--b--X        (X has a note: passed checkpoint 'in' (app.py:7) after 2 items)

    >>> from rxllm import Fake, StreamError, stream_generate
    >>> from rxllm import operators as ops
    >>> piped = stream_generate(Fake(["Hel", StreamError("truncated")]), "Hi").pipe(checkpoint("model"), ops.to_text())
    >>> try: piped.run()
    ... except StreamError as error: print(error.__notes__[0].partition(" (")[0])
    passed checkpoint 'model'

    A traceback shows the notes below the error; in it the frames are those of the loop that read the stream, and say
    nothing of the pipe. The error of an ``ErrorEvent`` is given one too. Notes are no part of an error's equality or
    JSON; the same note is not given twice.

    Raises ``ValidationError("invalid_option")`` for a label that is no text.
    """
    if not isinstance(label, str) or not label:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_option("label", f"must be a text, not {label!r}")
    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    built = f"{caller.f_code.co_filename}:{caller.f_lineno}"

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            passed = 0

            def note(error: BaseException) -> None:
                told = f"passed checkpoint {label!r} ({built}) after {passed} items"
                if told not in getattr(error, "__notes__", ()):
                    error.add_note(told)

            def on_next(item: T) -> None:
                nonlocal passed
                if isinstance(item, ErrorEvent):
                    note(item.error)
                passed += 1
                observer.on_next(item)

            def on_error(error: Exception) -> None:
                note(error)
                observer.on_error(error)

            return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
