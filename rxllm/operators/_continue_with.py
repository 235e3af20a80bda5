"""Continue a stream with the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable, SingleAssignmentDisposable

from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream
from rxllm.values.argument_checks import must_be

T = TypeVar("T")


def continue_with(fn: Callable[[T], Observable[T] | None]) -> Callable[[Observable[T]], Stream[T]]:
    """When a stream completes, continue with ``fn(last)`` of its last item; None ends it, and so does an empty stream.

    ::

        source               --1|
        continue_with(fn)    --1--2--3|        (fn: 1 to ---2|, 2 to ---3|, 3 to None)

    >>> from reactivex import of
    >>> list(of(1).pipe(continue_with(lambda last: of(last + 1) if last < 3 else None)))
    [1, 2, 3]
    """

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        current = SerialDisposable()

        def follow(stream: Observable[T]) -> None:
            last: list[T] = []
            subscription = current.disposable = SingleAssignmentDisposable()  # before it can complete

            def on_next(item: T) -> None:
                last[:] = (item,)
                observer.on_next(item)

            def on_completed() -> None:
                try:
                    following = fn(last[0]) if last else None
                    if following is not None and not isinstance(following, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
                        raise TypeError(f"continue_with: fn's result {must_be('an Observable or None', following)}")
                except Exception as error:
                    observer.on_error(error)
                    return
                if following is None:
                    observer.on_completed()
                else:
                    follow(following)

            subscription.disposable = stream.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        follow(source)
        return current

    return operate(subscribe)
