"""How many of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm.runtime import Stream
from rxllm.values.arguments import check_function

T = TypeVar("T")


def count(fn: Callable[[Mapping[str, int]], object]) -> Callable[[Observable[T]], Stream[T]]:
    """Call `fn` once, when the stream is over, with the number of items of each class.

    ::

        source      --start--H--i--Hi--end--|
        count(fn)   --start--H--i--Hi--end--|        (then fn({"MessageStarted": 1, "TextDelta": 2, ...}))

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> counted = stream_generate(Fake(["H", "i"]), "Hello").pipe(count(print), ops.to_text())
    >>> counted.run()
    {'MessageStarted': 1, 'TextDelta': 2, 'TextCompleted': 1, 'MessageCompleted': 1}
    'Hi'

    Over is completed, failed or disposed of; `fn` hears of it before the observer does. An exception of `fn` after a
    normal end is the stream's. For the number itself there is reactivex's ``count`` method.

    Raises ``ValidationError("invalid_option")`` for what is no function.
    """
    check_function("fn", fn)

    def operator(source: Observable[T]) -> Stream[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            counts: Counter[str] = Counter()
            told = False

            def on_next(item: T) -> None:
                counts[type(item).__name__] += 1
                observer.on_next(item)

            def tell() -> None:
                nonlocal told
                if not told:
                    told = True
                    fn(dict(counts))  # in one go: the dispose may be of another thread

            def on_error(error: Exception) -> None:
                try:
                    tell()
                except Exception as mine:
                    mine.__cause__, error = error, mine
                observer.on_error(error)

            def on_completed() -> None:
                try:
                    tell()
                except Exception as error:
                    observer.on_error(error)
                else:
                    observer.on_completed()

            running = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
            return CompositeDisposable(running, Disposable(tell))

        return Stream(subscribe)

    return operator
