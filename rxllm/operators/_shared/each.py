"""What the operators that look at one item after another have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxllm.runtime import Stream

Make = Callable[[abc.OnNext[Any], abc.OnError], abc.OnNext[Any]]
"""From where items and errors go on to what a subscription does with an item."""


def each(make: Make) -> Callable[[Observable[Any]], Stream[Any]]:
    """Call what a fresh ``make(on_next, on_error)`` gives with each item; the end, and the source's error, pass."""

    def operator(source: Observable[Any]) -> Stream[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            look = make(observer.on_next, observer.on_error)
            return source.subscribe(look, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
