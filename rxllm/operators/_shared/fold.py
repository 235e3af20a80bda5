"""What the projections of the fold have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.collector import StreamCollector
from rxllm.events import Event, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.operators._shared.only_events import EVENTS, no_event
from rxllm.runtime import Stream, conclude
from rxllm.values import Thread

R = TypeVar("R")

_DELTAS = frozenset({TextDelta, ThinkingDelta, ToolCallDelta})


def fold(
    name: str, project: Callable[[StreamCollector], R], thread: Thread | None = None
) -> Callable[[Observable[Event]], Stream[R]]:
    """Fold the whole stream, then emit one item: ``project(state)``. Its exception becomes ``on_error``.

    The error for an item that is no event speaks of the operator `name`.
    """

    def operator(source: Observable[Event]) -> Stream[R]:
        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            state = StreamCollector(thread)
            deltas: list[Any] = []  # since the last other event: most events are deltas, and are folded together

            def on_next(event: Event) -> None:
                nonlocal state
                if type(event) in _DELTAS:
                    deltas.append(event)
                    return
                try:
                    if type(event) not in EVENTS:
                        raise no_event(name, event)
                    state = state.apply_deltas(deltas).apply_event(event)
                except Exception as error:  # a raw usage with unknown keys
                    observer.on_error(error)
                deltas.clear()

            def on_completed() -> None:
                try:
                    result = project(state.apply_deltas(deltas))
                except Exception as error:
                    observer.on_error(error)
                else:
                    conclude(observer, (result,))

            return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
