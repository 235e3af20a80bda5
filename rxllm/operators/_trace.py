"""What passes, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.runtime import Stream, stopwatch
from rxllm.values import Trace
from rxllm.values.arguments import check_function

T = TypeVar("T")


def trace(fn: Callable[[Trace], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` with a `Trace` for the subscription, each item, and the end, the error or the dispose.

    ::

        source      --a--b--|
        trace(fn)   --a--b--|        (fn: subscribe at 0, next at 2, next at 5, end at 8)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> seen = []
    >>> stream_generate(Fake("Hi"), "Hello").pipe(ops.text(), trace(seen.append), ops.trace(seen.append)).run()
    'Hi'
    >>> [(each.kind, each.count, each.item) for each in seen[-4:]]
    [('next', 0, 'Hi'), ('next', 0, 'Hi'), ('end', 1, None), ('end', 1, None)]

    Times are seconds on the subscription's clock. Two traces with an operator between them tell what it costs and what
    it holds back. `fn` is called before the observer; its exception ends the stream.

    Raises ``ValidationError("invalid_option")`` for what is no function.
    """
    check_function("fn", fn)

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            now = stopwatch(scheduler)
            began = now()
            passed = 0
            over = False
            failed = False  # by `fn`: it is not called again

            def tell(kind: Literal["subscribe", "next", "error", "end", "dispose"], item: Any = None) -> bool:
                nonlocal over, failed
                try:
                    fn(Trace(kind, now() - began, passed, item))
                except Exception as error:
                    over = failed = True
                    observer.on_error(error)
                    return False
                return True

            def on_next(item: T) -> None:
                nonlocal passed
                if not failed and tell("next", item):
                    passed += 1
                    observer.on_next(item)

            def on_error(error: Exception) -> None:
                nonlocal over
                over = True
                if not failed and tell("error", error):
                    observer.on_error(error)

            def on_completed() -> None:
                nonlocal over
                over = True
                if not failed and tell("end"):
                    observer.on_completed()

            def on_dispose() -> None:
                nonlocal over
                if not over:
                    over = True
                    tell("dispose")

            if not tell("subscribe"):
                return Disposable()
            running = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
            return CompositeDisposable(running, Disposable(on_dispose))

        return Stream(subscribe)

    return operator
