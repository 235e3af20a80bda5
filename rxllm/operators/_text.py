"""Emit the text as it arrives."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event, StepRestarted, TextCompleted, TextDelta
from rxllm.operators._shared.answer_text import TextPieces
from rxllm.operators._shared.event_operators import extract
from rxllm.runtime import Stream


def text() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the pieces of the text as they arrive. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source     --start--H--i--Hi--end--|
        text()     ---------H--i-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(text()))
    ['Hel', 'lo']

    A block whose deltas were dropped is emitted whole when it is completed. Text before a ``StepRestarted`` has already
    been emitted and cannot be taken back; folds such as `to_text` forget it. What agents write inside a chat is not its
    text: see `only`.
    """
    return extract("text", lambda: TextPieces(TextDelta, TextCompleted), TextDelta, TextCompleted, StepRestarted)
