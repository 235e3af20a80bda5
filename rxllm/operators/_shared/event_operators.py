"""Make an operator that handles each item, extracts from some events, or folds all events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxllm.collector import StreamCollector
from rxllm.events import EVENT_CLASSES, ErrorEvent, Event, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream, conclude
from rxllm.values import ChatResult, Response, StepResult, StreamError, Thread, Turn

T = TypeVar("T")
R = TypeVar("R")

MakeHandler = Callable[[abc.OnNext[R], abc.OnError], abc.OnNext[T]]
"""Takes the observer's ``on_next`` and ``on_error``; returns the handler of one subscription's items."""

EVENTS = frozenset[type[Any]](EVENT_CLASSES)
DELTAS = frozenset({TextDelta, ThinkingDelta, ToolCallDelta})

_EVENTS_OF: dict[type[Any], str] = {
    Response: "stream_generate",
    StepResult: "stream_step",
    ChatResult: "stream",
    Turn: "session.stream_start",
}
"""The function that emits the events of a result."""


def not_an_event(operator: str, item: object) -> StreamError:
    """Return the error for an `item` that is not an event. It shows only the class: the item may be secret."""
    remedy = "put it after stream(...) or the like, and before text(), which turns events into something else"
    if function := _EVENTS_OF.get(type(item)):
        remedy = f"the result is all that is left of them; write {function}(...) for the events"
    return StreamError("malformed_event", f"{operator}() takes events, not {type(item).__name__}: {remedy}")


def handle_each(make_handler: MakeHandler[R, T]) -> Callable[[Observable[T]], Stream[R]]:
    """Call the handler of a fresh ``make_handler(on_next, on_error)`` with each item; the end and errors pass."""

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        handler = make_handler(observer.on_next, observer.on_error)
        return source.subscribe(handler, observer.on_error, observer.on_completed, scheduler=scheduler)

    return operate(subscribe)


def extract(
    name: str, make: Callable[[], Callable[[Event], Iterable[R]]], *types: type[Event]
) -> Callable[[Observable[Event]], Stream[R]]:
    """Emit what a fresh ``make()`` returns for each event of `types`; an ``ErrorEvent`` becomes ``on_error``.

    `name` is the operator's, for the error about an item that is not an event.
    """
    wanted = frozenset((*types, ErrorEvent))  # most events are not

    def make_handler(on_next: abc.OnNext[R], on_error: abc.OnError) -> abc.OnNext[Event]:
        read = make()

        def handle(event: Event) -> None:
            if type(event) not in wanted:
                if type(event) not in EVENTS:
                    on_error(not_an_event(name, event))
                return
            if isinstance(event, ErrorEvent):
                on_error(event.error)
                return
            try:
                results = read(event)
            except Exception as error:  # a raw usage with unknown keys
                on_error(error)
                return
            for result in results:
                on_next(result)

        return handle

    return handle_each(make_handler)


class Fold:
    """The state after the events so far. Most events are deltas, and are folded together."""

    def __init__(self, name: str, thread: Thread | None = None) -> None:
        self._name = name
        self._state = StreamCollector(thread)
        self._deltas: list[Any] = []  # since the last other event

    def add(self, event: Event) -> None:
        if type(event) in DELTAS:
            self._deltas.append(event)
            return
        try:
            if type(event) not in EVENTS:
                raise not_an_event(self._name, event)
            self._state = self._state.apply_deltas(self._deltas).apply_event(event)
        finally:
            self._deltas.clear()

    @property
    def state(self) -> StreamCollector:
        return self._state.apply_deltas(self._deltas)


def fold_events(
    name: str, project: Callable[[StreamCollector], R], thread: Thread | None = None
) -> Callable[[Observable[Event]], Stream[R]]:
    """Fold the whole stream, then emit ``project(state)``; exceptions become ``on_error``. `name` as in `extract`."""

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        fold = Fold(name, thread)

        def on_next(event: Event) -> None:
            try:
                fold.add(event)
            except Exception as error:  # a raw usage with unknown keys
                observer.on_error(error)

        def on_completed() -> None:
            try:
                result = project(fold.state)
            except Exception as error:
                observer.on_error(error)
            else:
                conclude(observer, (result,))

        return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

    return operate(subscribe)
