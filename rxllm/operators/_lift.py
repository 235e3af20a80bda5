"""Make an operator from an object that knows no Rx."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from reactivex import Observable, abc

from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream, conclude
from rxllm.values.argument_checks import check_function

T = TypeVar("T")
R = TypeVar("R")
T_in = TypeVar("T_in", contravariant=True)
R_out = TypeVar("R_out", covariant=True)


class Feeder(Protocol[T_in, R_out]):
    """What `lift` takes: items in, items out, and the rest at the end. A decoder is one."""

    def feed(self, item: T_in, /) -> Iterable[R_out]: ...

    def close(self) -> Iterable[R_out]: ...


def lift(make: Callable[[], Feeder[T, R]]) -> Callable[[Observable[T]], Stream[R]]:
    """Feed each item to a fresh ``make()``, an object that knows no Rx, and emit what it returns.

    ::

        source           --a-----b-----c--|
        lift(Pairs)      --------(ab)-----(c)|

    >>> from reactivex import of
    >>> class Pairs:
    ...     def __init__(self): self.pending = ""
    ...     def feed(self, item):
    ...         self.pending += item
    ...         if len(self.pending) == 2:
    ...             yield self.pending
    ...             self.pending = ""
    ...     def close(self): return [self.pending] if self.pending else []
    >>> list(of("a", "b", "c").pipe(lift(Pairs)))
    ['ab', 'c']

    An exception of the object ends the stream with it; ``close`` is called only when the source completes.

    Raises ``ValidationError("invalid_option")`` if `make` is not a function or class.
    """
    check_function("make", make)

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        feeder = _checked(make())
        waiting: deque[R] = deque()  # the first is being delivered

        def on_next(item: T) -> None:
            try:
                results = _results("feed", feeder, feeder.feed(item))
            except Exception as error:
                observer.on_error(error)
                return
            delivering = bool(waiting)  # further up the stack, where on_next caused this item
            waiting.extend(results)
            while waiting and not delivering:
                observer.on_next(waiting[0])
                waiting.popleft()

        def on_completed() -> None:
            try:
                rest = _results("close", feeder, feeder.close())
            except Exception as error:
                observer.on_error(error)
            else:
                conclude(observer, (*list(waiting)[1:], *rest))

        return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

    return operate(subscribe)


def _checked(feeder: Any) -> Any:
    if not (callable(getattr(feeder, "feed", None)) and callable(getattr(feeder, "close", None))):
        raise TypeError(f"lift(make): make must return an object with feed(item) and close(), not {feeder!r}")
    return feeder


def _results(method: str, feeder: object, results: Any) -> list[Any]:
    if results is None:
        raise TypeError(f"{method}() of {type(feeder).__name__} must return an iterable, not None")
    return list(results)
