"""An engine's `prepare`: what becomes of a request before its model is asked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.engine import Alongside, Prepare
from rxllm.events import Event
from rxllm.runtime import Stream, from_async_iter
from rxllm.values import Request, ValidationError
from rxllm.values.arguments import must_be

Answer = Callable[[Request], Stream[Event]]


def answered(functions: Sequence[Prepare], request: Request, answer: Answer, first: int = 0) -> Stream[Event]:
    """``answer(request)``, with the request that `functions` make of it, one after another.

    As long as they are plain functions this is done at once, and nothing is added to the stream.
    """
    guards: list[Observable[Any]] = []
    for place, function in enumerate(functions[first:], first):
        if isinstance(function, Alongside):
            guards.append(_resolved(function.check, request))
        elif inspect.iscoroutinefunction(function):
            return _later(None, request, functions, place, guards, answer)
        else:
            result: Any = function(request)
            if isinstance(result, Observable) or inspect.isawaitable(result):
                return _later(result, request, functions, place, guards, answer)
            request = _checked(result, place)
    events = answer(request)
    for guard in guards:
        events = _guarded(events, guard)
    return events


def _later(
    result: Any,
    request: Request,
    functions: Sequence[Prepare],
    place: int,
    guards: list[Observable[Any]],
    answer: Answer,
) -> Stream[Event]:
    """The same from `place` on, where the function is asynchronous; `result` is what it returned, if it was called."""
    function = cast(Callable[[Request], Any], functions[place])
    ready = _resolved(function, request) if result is None else _resolved(lambda _: result, request)

    def go_on(item: Any) -> Stream[Event]:
        return answered(functions, _checked(item, place), answer, place + 1)

    events = _then(ready, go_on)
    for guard in guards:
        events = _guarded(events, guard)
    return events


def _resolved(function: Callable[[Request], Any], request: Request) -> Observable[Any]:
    """The result of ``function(request)``, which may be an awaitable or an Observable, whose last item it is."""

    async def results() -> AsyncIterator[Any]:
        result = function(request)
        if isinstance(result, Observable):
            result = await Stream.of(cast(Observable[Any], result))
        elif inspect.isawaitable(result):
            result = await result
        yield result

    return from_async_iter(results)


def _checked(result: Any, place: int) -> Request:
    if isinstance(result, Request):
        return result
    fault = f"{must_be('a function that returns the Request, changed or not', result)}; to refuse it, raise an error"
    raise ValidationError("invalid_request", errors=[(("prepare", place), fault)])


def _then(source: Observable[Any], go_on: Callable[[Any], Observable[Event]]) -> Stream[Event]:
    """The events of ``go_on(item)``, with the one item of `source`."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        current = SerialDisposable()

        def on_next(item: Any) -> None:
            events = go_on(item)
            subscription = current.disposable = SingleAssignmentDisposable()
            subscription.disposable = events.subscribe(observer, scheduler=scheduler)

        first = current.disposable = SingleAssignmentDisposable()
        first.disposable = source.subscribe(on_next, observer.on_error, scheduler=scheduler)
        return current

    return Stream(subscribe)


def _guarded(events: Observable[Event], guard: Observable[Any]) -> Stream[Event]:
    """`events`, held back until `guard` has completed; its error ends them, and closes their connection."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        waiting: list[Event] | None = []
        end: Callable[[], None] | None = None
        answer = SingleAssignmentDisposable()

        def on_next(event: Event) -> None:
            if waiting is None:
                observer.on_next(event)
            else:
                waiting.append(event)

        def finish(terminal: Callable[[], None]) -> None:
            nonlocal end
            if waiting is None:
                terminal()
            else:
                end = terminal

        def passed() -> None:
            nonlocal waiting
            released, waiting = waiting or [], None
            for event in released:
                observer.on_next(event)
            if end is not None:
                end()

        def refused(error: Exception) -> None:
            answer.dispose()
            observer.on_error(error)

        def fail(error: Exception) -> None:
            finish(lambda: observer.on_error(error))

        def complete() -> None:
            finish(observer.on_completed)

        check = guard.subscribe(on_error=refused, on_completed=passed, scheduler=scheduler)
        answer.disposable = events.subscribe(on_next, fail, complete, scheduler=scheduler)
        return CompositeDisposable(check, answer)

    return Stream(subscribe)
