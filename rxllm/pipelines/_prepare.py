"""Prepare a request before its model is asked: change it, refuse it, or check it while the model answers.

===============  ==========================  =======================================================================
the check        the events of the answer    the end of the answer
===============  ==========================  =======================================================================
is running       wait                        waits
has passed       are released, in order      follows the last of them
has failed       are dropped                 is the error of the check; the connection of the answer is closed
===============  ==========================  =======================================================================
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from reactivex import Observable, abc
from reactivex import operators as rx_ops
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable

from rxllm.engine import Alongside, Prepare
from rxllm.events import Event
from rxllm.pipelines._deferred import Deferred
from rxllm.runtime import LoopScheduler, Pump, Stream, current_scope, fail, pumped, scoped
from rxllm.values import Request, ValidationError
from rxllm.values.argument_checks import must_be

Answer = Callable[[Request], Stream[Event]]


def prepared(functions: Sequence[Prepare], request: Request, answer: Answer, index: int = 0) -> Stream[Event]:
    """Return ``answer(request)``, with the request that `functions` make of it, one after another, from `index` on.

    As long as they are plain functions this is done at once, and nothing is added to the stream.
    """
    if index == len(functions):
        return answer(request)
    function = functions[index]

    def go_on(result: Any) -> Stream[Event]:
        return prepared(functions, _check_request(result, index), answer, index + 1)

    if isinstance(function, Alongside):
        return _held_back(partial(function.check, request), Deferred(lambda: go_on(request)))
    result = function(request)
    return _after(result, go_on) if isinstance(result, Observable) or inspect.isawaitable(result) else go_on(result)


def _check_request(result: Any, index: int) -> Request:
    if isinstance(result, Request):
        return result
    fault = f"{must_be('a function that returns the Request, changed or not', result)}; to refuse it, raise an error"
    raise ValidationError("invalid_request", errors=[(("prepare", index), fault)])


def _result(function: Callable[[], Any]) -> Stream[Any]:
    """Emit the result of ``function()``, which may be an awaitable, or an Observable, whose last item it is."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        value = function()
        if isinstance(value, Observable):
            value = cast(Observable[Any], value).pipe(rx_ops.last_or_default(None))
            if not isinstance(scheduler, LoopScheduler | None):  # virtual time
                return value.subscribe(observer, scheduler=scheduler)
            value = Stream.of(value)
        elif not inspect.isawaitable(value):
            observer.on_next(value)
            observer.on_completed()
            return Disposable()

        async def body(pump: Pump[Any]) -> None:
            pump.emit((await value,))

        # On the loop and in the context of the call, whichever thread the result comes from.
        subscription = pumped(body).subscribe(observer, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(partial(_close_unstarted, value)))

    return Stream(subscribe)


def _close_unstarted(value: Any) -> None:
    # Python warns about a coroutine that nobody has begun to await.
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()


def _after(value: Any, go_on: Callable[[Any], Observable[Event]]) -> Stream[Event]:
    """Return the events of ``go_on(result)``, where `value` is an awaitable or an Observable of the result."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        scope = current_scope.get()

        def following(result: Any) -> Stream[Event]:
            return scoped(Deferred(lambda: go_on(result)), scope)

        return _result(lambda: value).flat_map(following).subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


def _held_back(check: Callable[[], Any], answer: Observable[Event]) -> Stream[Event]:
    """Return the events of `answer`, held back until ``check()`` has passed."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return _HeldBack(observer).start(_result(check), answer, scheduler)

    return Stream(subscribe)


class _HeldBack:
    """One subscription to a check and the answer that waits for it."""

    def __init__(self, observer: abc.ObserverBase[Event]) -> None:
        self._observer = observer
        self._lock = threading.Lock()  # the two may be on different threads; held for decisions only
        self._waiting: deque[Event] | None = deque()  # None once all of them have been released
        self._end: Callable[[], None] | None = None  # of the answer, if it came while events waited
        self._answer = SingleAssignmentDisposable()

    def start(
        self, check: Observable[Any], answer: Observable[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        checking = check.subscribe(on_error=self._refuse, on_completed=self._release, scheduler=scheduler)
        if not self._answer.is_disposed:  # it is where the check has failed at once
            self._answer.disposable = answer.subscribe(
                self._receive,
                lambda error: self._finish(partial(self._observer.on_error, error)),
                lambda: self._finish(self._observer.on_completed),
                scheduler=scheduler,
            )
        return CompositeDisposable(checking, self._answer)

    def _receive(self, event: Event) -> None:
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(event)
                return
        self._observer.on_next(event)

    def _finish(self, end: Callable[[], None]) -> None:
        with self._lock:
            if self._waiting is not None:
                self._end = end
                return
        end()

    def _refuse(self, error: Exception) -> None:
        self._answer.dispose()
        self._observer.on_error(error)

    def _release(self) -> None:
        try:
            while (event := self._next()) is not None:  # more may come meanwhile
                self._observer.on_next(event)
        except BaseException as error:  # a subscriber's, which nobody above would deliver
            self._answer.dispose()
            fail(self._observer, error)
        else:
            if self._end is not None:
                self._end()

    def _next(self) -> Event | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._waiting = None
            return None
