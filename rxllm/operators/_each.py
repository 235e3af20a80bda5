"""What the operators that look at one item after another have in common. Not an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.runtime import Stream

R = TypeVar("R", covariant=True)

Make = Callable[[abc.OnNext[Any], abc.OnError], abc.OnNext[Any]]
"""From where items and errors go on to what a subscription does with an item; it passes on one at most, at its end."""


def each(make: Make) -> Callable[[Observable[Any]], Stream[Any]]:
    """Call what a fresh ``make(on_next, on_error)`` gives with each item; the end, and the source's error, pass."""
    return lambda source: _Each(source, make)


class _Each(Stream[R]):
    """Behind another one it is no stage of its own: their functions call each other.

    A stage costs a check and a call for each item, and a dozen objects for each subscription.
    """

    def __init__(self, source: Observable[Any], make: Make) -> None:
        super().__init__()
        self._source = source
        self._make = make

    def _subscribe_core(
        self, observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        on_next = observer.on_next
        source: Observable[Any] = self
        while isinstance(source, _Each):
            on_next = source._make(on_next, observer.on_error)
            source = source._source
        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
