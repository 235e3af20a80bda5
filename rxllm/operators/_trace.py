"""Record what passes, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream, stopwatch
from rxllm.values import Trace
from rxllm.values.argument_checks import check_function

T = TypeVar("T")


def trace(fn: Callable[[Trace], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` with a `Trace` for the subscription, for each item, and for the end, the error or the dispose.

    ::

        source      --a--b--|
        trace(fn)   --a--b--|        (fn: subscribe at 0, next at 2, next at 5, end at 8)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> seen = []
    >>> stream_generate(Fake("Hi"), "Hello").pipe(ops.text(), trace(seen.append), ops.trace(seen.append)).run()
    'Hi'
    >>> [(trace.kind, trace.count, trace.item) for trace in seen[-4:]]
    [('next', 0, 'Hi'), ('next', 0, 'Hi'), ('end', 1, None), ('end', 1, None)]

    Times are in seconds on the subscription's clock. Two traces around an operator show how long it takes and what it
    holds back. `fn` is called before the observer; an exception of `fn` ends the stream.

    Raises ``ValidationError("invalid_option")`` unless `fn` is a function.
    """
    check_function("fn", fn)

    def start(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        now = stopwatch(scheduler)
        started_at = now()
        count = 0
        over = False
        failed = False  # an exception of `fn`, which is not called again

        def call(kind: Literal["subscribe", "next", "error", "end", "dispose"], item: Any = None) -> bool:
            nonlocal over, failed
            over = over or kind in ("error", "end", "dispose")
            if failed:
                return False
            try:
                fn(Trace(kind, now() - started_at, count, item))
            except Exception as error:
                over = failed = True
                observer.on_error(error)
            return not failed

        def on_next(item: T) -> None:
            nonlocal count
            if call("next", item):
                count += 1
                observer.on_next(item)

        def on_error(error: Exception) -> None:
            if call("error", error):
                observer.on_error(error)

        def on_completed() -> None:
            if call("end"):
                observer.on_completed()

        def on_dispose() -> None:
            if not over:
                call("dispose")

        if not call("subscribe"):
            return Disposable()
        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(on_dispose))

    return operate(start)
