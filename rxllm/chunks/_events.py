"""What the operators from chunks to events have in common. Not an operator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from reactivex import Observable, abc

from rxllm.events import Event
from rxllm.runtime import Stream, conclude
from rxllm.values import LLMError

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)


class Reader(Protocol[T_in]):
    """Chunks in, lawful events out. `said` tells whether there has been one, `ended` whether the last is given."""

    @property
    def said(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    def feed(self, chunk: T_in, /) -> Iterable[Event]: ...

    def close(self) -> Iterable[Event]: ...

    def fail(self, error: Exception, /) -> Iterable[Event]: ...


def events_of(make: Callable[[], Reader[T]]) -> Callable[[Observable[T]], Stream[Event]]:
    """Feed a fresh ``make()``. An error of the source, of ``feed`` or of ``close`` is what ``fail`` makes of it and a
    normal end; an ``LLMError`` of the source before the first event, and what ``fail`` raises, goes to ``on_error``.
    """

    def operator(source: Observable[T]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            reader = make()
            waiting = deque[Event]()  # what a chunk gives that comes while another is being delivered, comes later
            delivering = False  # stays True when a subscriber raises: that error is its own, and no part of the stream

            def on_next(chunk: T) -> None:
                nonlocal delivering
                try:
                    waiting.extend(reader.feed(chunk))
                except Exception as error:  # no chunk, or one of wrong types
                    fail(error)
                    return
                if delivering:
                    return
                delivering = True
                while waiting:
                    observer.on_next(waiting.popleft())
                delivering = False
                if reader.ended:
                    observer.on_completed()

            def on_error(error: Exception) -> None:
                if delivering or (isinstance(error, LLMError) and not reader.said):
                    observer.on_error(error)
                else:
                    fail(error)

            def on_completed() -> None:
                try:
                    events = reader.close()
                except Exception as error:  # raised from here, it would reach nobody
                    fail(error)
                else:
                    end(events)

            def fail(error: Exception) -> None:
                try:
                    events = reader.fail(error)
                except Exception as another:
                    observer.on_error(another)
                else:
                    end(events)

            def end(events: Iterable[Event]) -> None:
                nonlocal delivering
                waiting.extend(events)
                if not delivering:
                    delivering = True
                    conclude(observer, tuple(waiting))

            return source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)

        return Stream(subscribe)

    return operator
