"""Stream errors instead of raising them."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream
from rxllm.values import LLMError


def errors_as_events() -> Callable[[Observable[Event]], Stream[Event]]:
    """Turn an ``on_error`` with an ``LLMError`` into an ``ErrorEvent`` and a normal end; other exceptions pass.

    ::

        source                 --a--b--X
        errors_as_events()     --a--b--(error)|

    >>> from rxllm import AdapterError, Fake, stream_generate
    >>> list(stream_generate(Fake(AdapterError("unknown")), "Hello").pipe(errors_as_events()))
    [ErrorEvent(error=AdapterError('unknown', 'adapter error: unknown'))]
    """

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        delivering = False  # stays True when a subscriber raises: that error is not part of the stream

        def on_next(event: Event) -> None:
            nonlocal delivering
            delivering = True
            observer.on_next(event)
            delivering = False

        def on_error(error: Exception) -> None:
            if isinstance(error, LLMError) and not delivering:
                observer.on_next(ErrorEvent(error))
                observer.on_completed()
            else:
                observer.on_error(error)

        return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

    return operate(subscribe)
