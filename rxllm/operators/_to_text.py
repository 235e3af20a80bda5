"""Fold the stream to its text."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._shared.event_operators import fold_events
from rxllm.runtime import Stream


def to_text() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the whole text of the response, or of a chat's final response. A stream that failed ends with ``on_error``.

    ::

        source        --start--H--i--end--|
        to_text()     --------------------("Hi")|

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake(["H", "i"]), "Hello").pipe(to_text()).run()
    'Hi'
    """
    return fold_events("to_text", _text)


def _text(state: StreamCollector) -> str:
    if state.chat_result is not None:
        return state.chat_result.raise_for_error().output_text
    return state.to_response().raise_for_error().output_text
