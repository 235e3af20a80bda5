"""Count items by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check_function

T = TypeVar("T")


def tally(fn: Callable[[Mapping[str, int]], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` once, when the stream is over, with the number of items of each class.

    ::

        source      --start--H--i--Hi--end--|
        tally(fn)   --start--H--i--Hi--end--|        (then fn({"MessageStarted": 1, "TextDelta": 2, ...}))

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> counted = stream_generate(Fake(["H", "i"]), "Hello").pipe(tally(print), ops.to_text())
    >>> counted.run()
    {'MessageStarted': 1, 'TextDelta': 2, 'TextCompleted': 1, 'MessageCompleted': 1}
    'Hi'

    Over is completed, failed or disposed; `fn` is called before the observer hears of it. An exception of `fn` after a
    normal end ends the stream with it. The events of agents all count as ``Nested``. For the number of all items there
    is reactivex's ``count`` method.

    Raises ``ValidationError("invalid_option")`` if `fn` is not a function.
    """
    check_function("fn", fn)

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        counts: Counter[str] = Counter()
        is_reported = False

        def on_next(item: T) -> None:
            counts[type(item).__name__] += 1
            observer.on_next(item)

        def report() -> None:
            nonlocal is_reported
            if not is_reported:
                is_reported = True
                fn(dict(counts))  # a copy, made at once: the dispose may be on another thread

        def on_error(error: Exception) -> None:
            try:
                report()
            except Exception as failure:
                failure.__cause__, error = error, failure
            observer.on_error(error)

        def on_completed() -> None:
            try:
                report()
            except Exception as error:
                observer.on_error(error)
            else:
                observer.on_completed()

        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(report))

    return operate(subscribe)
