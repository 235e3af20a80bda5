"""The thinking, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reactivex import Observable

from rxllm.events import Event, ThinkingDelta
from rxllm.operators._pick import pick
from rxllm.runtime import Stream


def thinking() -> Callable[[Observable[Event]], Stream[str]]:
    """The strings of the thinking as they come. An ``ErrorEvent`` becomes ``on_error``.

    ::

        source         --start--hm--hm--Hi--end--|        (two of thinking, one of text)
        thinking()     ---------hm--hm-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake([("thinking", "hm"), "Hi"]), "Hello").pipe(thinking()))
    ['hm']
    """
    return pick(lambda: _delta)


def _delta(event: Event) -> Iterable[str]:
    return (event.delta,) if isinstance(event, ThinkingDelta) else ()
