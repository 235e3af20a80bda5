"""The text, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reactivex import Observable

from rxllm.events import Event, TextCompleted, TextDelta
from rxllm.operators._pick import pick
from rxllm.runtime import Stream


def text() -> Callable[[Observable[Event]], Stream[str]]:
    """The strings of the text as they come. An ``ErrorEvent`` becomes ``on_error``.

    A block whose deltas were left out comes whole, at its completion.

    ::

        source     --start--H--i--Hi--end--|
        text()     ---------H--i-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(text()))
    ['Hel', 'lo']
    """
    return pick(_Text)


class _Text:
    def __init__(self) -> None:
        self._begun: set[str | None] = set()

    def __call__(self, event: Event) -> Iterable[str]:
        if type(event) is TextDelta:
            self._begun.add(event.id)
            return (event.delta,)
        if type(event) is TextCompleted:
            if event.id not in self._begun and event.text:
                return (event.text,)
            self._begun.discard(event.id)
        return ()
