"""An operator from an object that knows no Rx."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from reactivex import Observable, abc

from rxllm.runtime import Stream, conclude
from rxllm.values.arguments import check_function

T = TypeVar("T")
R = TypeVar("R")
T_in = TypeVar("T_in", contravariant=True)
R_out = TypeVar("R_out", covariant=True)


class Feeder(Protocol[T_in, R_out]):
    """What `lift` lifts: items in, items out, and what is left at the end. A decoder is one."""

    def feed(self, item: T_in, /) -> Iterable[R_out]: ...

    def close(self) -> Iterable[R_out]: ...


def lift(make: Callable[[], Feeder[T, R]]) -> Callable[[Observable[T]], Stream[R]]:
    """An operator that feeds each item to a fresh ``make()`` and emits what it gives back.

    ::

        source           --a-----b-----c--|
        lift(Pairs)      --------(ab)-----(c)|

    >>> from reactivex import of
    >>> class Pairs:
    ...     def __init__(self): self.held = ""
    ...     def feed(self, item):
    ...         self.held += item
    ...         if len(self.held) == 2:
    ...             yield self.held
    ...             self.held = ""
    ...     def close(self): return [self.held] if self.held else []
    >>> list(of("a", "b", "c").pipe(lift(Pairs)))
    ['ab', 'c']

    An exception of the object ends the stream with it; ``close`` is called when the source completes, and then only.

    Raises ``ValidationError("invalid_option")`` for a `make` that is no function or class.
    """
    check_function("make", make)

    def operator(source: Observable[T]) -> Stream[R]:
        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            feeder = _made(make)
            waiting: deque[R] = deque()  # the first of them is being delivered

            def on_next(item: T) -> None:
                try:
                    fed = feeder.feed(item)
                    if fed is None:
                        raise _nothing("feed", feeder)
                    given: list[R] = list(fed)
                except Exception as error:
                    observer.on_error(error)
                    return
                delivering = bool(waiting)  # further up, and it gave this item too
                waiting.extend(given)
                while waiting and not delivering:
                    observer.on_next(waiting[0])
                    waiting.popleft()

            def on_completed() -> None:
                try:
                    left = feeder.close()
                    if left is None:
                        raise _nothing("close", feeder)
                    given: list[R] = list(left)
                except Exception as error:
                    observer.on_error(error)
                else:
                    conclude(observer, (*list(waiting)[1:], *given))

            return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator


def _made(make: Callable[[], Any]) -> Any:
    feeder = make()
    if not (callable(getattr(feeder, "feed", None)) and callable(getattr(feeder, "close", None))):
        raise TypeError(f"lift() takes what makes an object with feed(item) and close(), and it made {feeder!r}")
    return feeder


def _nothing(method: str, feeder: Any) -> TypeError:
    return TypeError(f"{method}() of {type(feeder).__name__} gave None; it gives an iterable")
