"""What the projections of the fold have in common. Not an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.runtime import Stream, conclude
from rxllm.values import Thread

R = TypeVar("R")


def fold(
    project: Callable[[StreamCollector], R], thread: Thread | None = None
) -> Callable[[Observable[Event]], Stream[R]]:
    """Fold the whole stream, then emit one item: ``project(state)``. Its exception becomes ``on_error``."""

    def operator(source: Observable[Event]) -> Stream[R]:
        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            state = StreamCollector(thread)

            def on_next(event: Event) -> None:
                nonlocal state
                try:
                    state = state.apply_event(event)
                except Exception as error:  # a raw usage with unknown keys
                    observer.on_error(error)

            def on_completed() -> None:
                try:
                    result = project(state)
                except Exception as error:
                    observer.on_error(error)
                else:
                    conclude(observer, (result,))

            return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
