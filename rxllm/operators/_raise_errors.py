"""Streamed errors as raised ones."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream


def raise_errors() -> Callable[[Observable[Event]], Stream[Event]]:
    """An ``ErrorEvent`` becomes ``on_error``; everything else passes.

    ::

        source             --a--b--error--|
        raise_errors()     --a--b--X

    >>> from rxllm import Fake, stream_generate
    >>> stream_generate(Fake(["Hi", ("error", "timeout")]), "Hello").pipe(raise_errors()).run()
    Traceback (most recent call last):
    rxllm.values.errors.AdapterError: adapter error (fake): timeout
    """

    def raised(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def see(event: Event) -> None:
            if isinstance(event, ErrorEvent):
                on_error(event.error)
            else:
                on_next(event)

        return see

    return handle_each(raised)
