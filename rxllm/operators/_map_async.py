"""An operator that awaits a function for each item."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc

from rxllm.operators._event_operators import operate
from rxllm.runtime import MAX_WAITING, Arriving, Stream, conclude, result_of
from rxllm.values.argument_checks import check_count, check_function, check_instance

T = TypeVar("T")
R = TypeVar("R")


def map_async(
    fn: Callable[[T], Awaitable[R]], *, concurrency: int = 8, ordered: bool = True
) -> Callable[[Observable[T]], Stream[R]]:
    """Await ``fn(item)`` for each item, and emit the results.

    ::

        source           --a--b--c--|
        map_async(fn)    -------A----(BC)|        (fn takes five ticks for a, two for c)

    >>> import asyncio
    >>> from reactivex import of
    >>> async def shout(word):
    ...     await asyncio.sleep(0.01 if word == "a" else 0)
    ...     return word.upper()
    >>> list(of("a", "b", "c").pipe(map_async(shout, concurrency=2)))
    ['A', 'B', 'C']
    >>> list(of("a", "b", "c").pipe(map_async(shout, ordered=False)))
    ['B', 'C', 'A']

    Up to `concurrency` calls of `fn` run at a time; with ``concurrency=1``, one after the other. The source waits while
    an item waits for its call. A source that cannot wait, such as a `Subject`, may send more. If more than 65,536 items
    are waiting, the stream ends with ``StreamError("overflow")``.

    The results keep the order of the items. With ``ordered=False``, each result is emitted as soon as it is there. If
    `fn` raises, the other calls are cancelled, and the stream ends with the exception. Disposing cancels all calls. If
    the source fails, its exception follows the results of the items before it. A function that returns an Observable
    works too: the result is its last item.

    Raises ``ValidationError("invalid_option")`` for invalid arguments.
    """
    check_function("fn", fn)
    check_count("concurrency", concurrency)
    check_instance("ordered", ordered, bool, "True or False")

    def start(
        source: Observable[T], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        return _Mapped[R](observer, ordered).start(source, fn, concurrency, scheduler)

    return operate(start)


class _Mapped(Generic[R]):
    """One subscription to `map_async`. Results wait while an earlier one is missing or is being delivered."""

    def __init__(self, observer: abc.ObserverBase[R], ordered: bool) -> None:
        self._observer = observer
        self._ordered = ordered
        self._early: dict[int, R] = {}  # the results that wait for an earlier one, by their item's index
        self._next = 0
        self._ready: deque[R] = deque()  # the results to emit, starting with the current one
        self._calls: Arriving[Any, R]

    def start(
        self,
        source: Observable[T],
        fn: Callable[[T], Awaitable[R]],
        concurrency: int,
        scheduler: abc.SchedulerBase | None,
    ) -> abc.DisposableBase:
        def call(index: int, item: T) -> Stream[R]:
            return result_of(partial(fn, item))

        self._calls = Arriving(
            call, concurrency, self._receive, self._end, self._complete, self._observer.on_error, self._is_behind
        )
        self._calls.start(source, scheduler)
        return self._calls

    def _is_behind(self) -> bool:
        return len(self._early) >= MAX_WAITING

    def _receive(self, index: int, result: R) -> None:
        is_delivering = bool(self._ready)
        if not self._ordered:
            self._ready.append(result)
        else:
            self._early[index] = result
            while self._next in self._early:
                self._ready.append(self._early.pop(self._next))
                self._next += 1
            self._calls.resume()
        while self._ready and not is_delivering:
            self._observer.on_next(self._ready[0])
            self._ready.popleft()

    def _end(self, index: int, error: Exception | None) -> None:
        if error is not None:
            self._calls.dispose()
            self._observer.on_error(error)

    def _complete(self) -> None:
        conclude(self._observer, list(self._ready)[1:])
