"""What the operators that take something out of the events have in common. Not an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
from rxllm.runtime import Stream

R = TypeVar("R")


def pick(make: Callable[[], Callable[[Event], Iterable[R]]]) -> Callable[[Observable[Event]], Stream[R]]:
    """Emit what a fresh ``make()`` finds in each event; an ``ErrorEvent`` becomes ``on_error``."""

    def operator(source: Observable[Event]) -> Stream[R]:
        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            find = make()

            def on_next(event: Event) -> None:
                if isinstance(event, ErrorEvent):
                    observer.on_error(event.error)
                    return
                for item in find(event):
                    observer.on_next(item)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
