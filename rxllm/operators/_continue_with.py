"""One stream after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable, SingleAssignmentDisposable

from rxllm.runtime import Stream

T = TypeVar("T")


def continue_with(fn: Callable[[T], Observable[T] | None]) -> Callable[[Observable[T]], Stream[T]]:
    """When a stream completes, go on with ``fn(last)``, its last item given; None ends it. An empty stream ends too.

    ::

        source               --1|
        continue_with(fn)    --1--2--3|        (fn: 1 to of(2), 2 to of(3), 3 to None)

    >>> from reactivex import of
    >>> list(of(1).pipe(continue_with(lambda last: of(last + 1) if last < 3 else None)))
    [1, 2, 3]
    """

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            current = SerialDisposable()

            def go_on(following: Observable[T]) -> None:
                last: list[T] = []
                subscription = current.disposable = SingleAssignmentDisposable()  # before it can complete

                def on_next(item: T) -> None:
                    last[:] = (item,)
                    observer.on_next(item)

                def on_completed() -> None:
                    try:
                        after = fn(last[0]) if last else None
                        _check(after)
                    except Exception as error:
                        observer.on_error(error)
                        return
                    if after is None:
                        observer.on_completed()
                    else:
                        go_on(after)

                subscription.disposable = following.subscribe(
                    on_next, observer.on_error, on_completed, scheduler=scheduler
                )

            go_on(source)
            return current

        return Stream(subscribe)

    return operator


def _check(given: object) -> None:
    if given is not None and not isinstance(given, Observable):
        raise TypeError(f"continue_with(fn): fn gave {given!r}, which is no Observable and not None")
