"""Streamed errors as raised ones."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
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

    def operator(source: Observable[Event]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: Event) -> None:
                if isinstance(event, ErrorEvent):
                    observer.on_error(event.error)
                else:
                    observer.on_next(event)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
