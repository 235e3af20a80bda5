"""The text, piece by piece."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event, StepRestarted, TextCompleted, TextDelta
from rxllm.operators._shared.answer_text import TextPieces
from rxllm.operators._shared.event_operators import extract
from rxllm.runtime import Stream


def text() -> Callable[[Observable[Event]], Stream[str]]:
    """The strings of the text as they come. An ``ErrorEvent`` becomes ``on_error``.

    A block whose deltas were left out comes whole, at its completion. What a ``StepRestarted`` makes void has been
    said: strings cannot be taken back, the folds (`to_text`) forget it.

    ::

        source     --start--H--i--Hi--end--|
        text()     ---------H--i-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(text()))
    ['Hel', 'lo']
    """
    return extract("text", lambda: TextPieces(TextDelta, TextCompleted), TextDelta, TextCompleted, StepRestarted)
