"""Emit the thinking as it arrives."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event, StepRestarted, ThinkingCompleted, ThinkingDelta
from rxllm.operators._shared.answer_text import TextPieces
from rxllm.operators._shared.event_operators import extract
from rxllm.runtime import Stream


def thinking() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the pieces of the thinking as they arrive. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source         --start--hm--hm--Hi--end--|        (two of thinking, one of text)
        thinking()     ---------hm--hm-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake([("thinking", "hm"), "Hi"]), "Hello").pipe(thinking()))
    ['hm']

    A block whose deltas were dropped is emitted whole when it is completed.
    """
    types = (ThinkingDelta, ThinkingCompleted)
    return extract("thinking", lambda: TextPieces(*types), *types, StepRestarted)
