"""Raise the errors of the stream."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream


def raise_errors() -> Callable[[Observable[Event]], Stream[Event]]:
    """Turn an ``ErrorEvent`` into ``on_error``; every other event passes.

    ::

        source             --a--b--error--|
        raise_errors()     --a--b--X

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake(["Hi", ("error", "timeout")]), "Hello").pipe(raise_errors()).run()
    Traceback (most recent call last):
    rxllm.AdapterError: adapter error (fake): timeout
    """

    def throw(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def on_event(event: Event) -> None:
            if isinstance(event, ErrorEvent):
                on_error(event.error)
            else:
                on_next(event)

        return on_event

    return handle_each(throw)
