"""Operators of text take strings as well as events, such as the captions of another program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, overload

from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.operators._event_operators import EVENTS, not_an_event, operate
from rxllm.runtime import Stream
from rxllm.values import StreamError

Operator = Callable[[Observable[Event]], Stream[Any]]


class TextOperator(Protocol):
    """An operator of events or of strings. It gives back what it was given."""

    @overload
    def __call__(self, source: Observable[str], /) -> Stream[str]: ...
    @overload
    def __call__(self, source: Observable[Event], /) -> Stream[Event]: ...


def for_strings_too(name: str, operator: Operator) -> TextOperator:
    """Return `operator` for streams of strings too. The strings are the deltas of one text, and strings come out again.
    An ``ErrorEvent`` of the operator becomes an ``on_error`` there.

    Error messages include `name`, the operator's name.
    """

    def subscribe(
        source: Observable[Any], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        has_strings: bool | None = None  # unknown before the first item

        def to_events(events: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            def on_next(item: Any) -> None:
                nonlocal has_strings
                if has_strings is None:
                    has_strings = isinstance(item, str)
                if isinstance(item, str) == has_strings:
                    events.on_next(TextDelta(item) if has_strings else item)
                else:
                    events.on_error(_mixed(name, item))

            return source.subscribe(on_next, events.on_error, events.on_completed, scheduler=scheduler)

        def on_next(event: Event | str) -> None:
            if not has_strings or isinstance(event, str):
                observer.on_next(event)
            elif isinstance(event, TextDelta) and event.delta:
                observer.on_next(event.delta)
            elif isinstance(event, ErrorEvent):
                observer.on_error(event.error)

        made = operator(Observable(to_events))
        return made.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    lifted: Any = operate(subscribe)
    return lifted


def _mixed(name: str, item: object) -> StreamError:
    if type(item) not in EVENTS and not isinstance(item, str):
        return not_an_event(name, item)
    expected = "events" if isinstance(item, str) else "strings"
    fault = f"{name}() takes {expected}, not {type(item).__name__}: the stream began with {expected}"
    return StreamError("malformed_event", f"{fault}, and must not have both")
