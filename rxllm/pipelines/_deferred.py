"""A Stream that is made when it is subscribed to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc, throw

from rxllm.runtime import Stream

T = TypeVar("T")


class Deferred(Stream[T]):
    """The stream that `make` returns, made anew for each subscription; what `make` raises goes to ``on_error``."""

    def __init__(self, make: Callable[[], Observable[T]]) -> None:
        super().__init__()
        self._make = make

    def subscribe(
        self,
        on_next: abc.ObserverBase[T] | abc.OnNext[T] | None = None,
        on_error: abc.OnError | None = None,
        on_completed: abc.OnCompleted | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        try:
            source = self._make()
        except Exception as error:
            source = throw(error)
        return Stream.of(source).subscribe(on_next, on_error, on_completed, scheduler=scheduler)
