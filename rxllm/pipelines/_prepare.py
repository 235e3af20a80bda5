"""The stage of a call in which the request is changed, refused or checked.

A check can run alongside the answer:

===============  =========================================  ========================================================
check            events of the answer                       end of the answer
===============  =========================================  ========================================================
running          They are held back.                        It is also held back.
passed           They are released in order.                It follows the last event.
failed           They are dropped.                          ``on_error`` receives the check's error instead, and the
                                                            answer's connection is closed.
===============  =========================================  ========================================================
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from reactivex import Observable, abc, throw
from reactivex import operators as rx_ops
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable

from rxllm import operators as ops
from rxllm.engine import Alongside, Prepare, Prepared
from rxllm.events import Event, MessageCompleted, MessageStarted, UsageUpdated
from rxllm.runtime import Deferred, Hold, Stream, current_scope, fail, paced, result_of, scoped, verdict_error
from rxllm.runtime.back_pressure import HELD_BACK
from rxllm.values import LLMError, Message, Request, Usage, ValidationError
from rxllm.values.argument_checks import must_be
from rxllm.values.errors import with_origin

T = TypeVar("T")
Answer = Callable[[Request], Stream[Event]]


def prepare_request(functions: Sequence[Prepare], request: Request, answer: Answer, index: int = 0) -> Stream[Event]:
    """Apply `functions`, starting at `index`, to `request`, and return the answer to the resulting request."""
    if index == len(functions):
        return answer(request)
    function = functions[index]

    def answer_result(result: Any) -> Stream[Event]:
        if isinstance(result, Prepared):
            return annotate_answer(answer_result(result.request), result)
        if isinstance(result, Request):
            return prepare_request(functions, result, answer, index + 1)
        fault = must_be("a function that returns a Request (the one that it was given, or a modified copy)", result)
        raise ValidationError(
            "invalid_request", errors=[(("prepare", index), f"{fault}; to refuse a request, raise an error")]
        )

    if isinstance(function, Alongside):
        return _hold_back(_run_check(function, request), Deferred(lambda: answer_result(request)))
    result = function(request)
    is_pending = isinstance(result, Observable) or inspect.isawaitable(result)
    return _await_result(result, answer_result) if is_pending else answer_result(result)


def _await_result(value: Any, answer_result: Callable[[Any], Observable[Event]]) -> Stream[Event]:
    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        scope = current_scope.get()

        def following(result: Any) -> Stream[Event]:
            return scoped(Deferred(lambda: answer_result(result)), scope)

        return result_of(lambda: value).flat_map(following).subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


def annotate_answer(answer: Observable[Event], prepared: Prepared) -> Stream[Event]:
    """Add the metadata, event and usage of `prepared` to the events of `answer`.

    ::

        answer    --start-------------H--i--usage------end--|
        result    --start+-event-use--H--i--usage+use--end+-|
    """

    def failed(error: Exception, _: Any) -> Observable[Event]:
        return throw(_with_usage(error, prepared.usage))

    return Stream.of(answer.pipe(ops.lift(lambda: _Annotator(prepared)), rx_ops.catch(failed)))


def _with_usage(error: Exception, usage: Usage) -> Exception:
    if not isinstance(error, LLMError) or usage == Usage():
        return error
    noted = type(error).from_fields({**error.fields(), "metadata": {**error.metadata, "usage": usage}})
    return with_origin(noted, error)


class _Annotator:
    """Adds the contents of a `Prepared` to one answer, and adds them again if the step is restarted."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._usage: Usage | None = None  # the last emitted usage

    def feed(self, event: Event) -> Iterator[Event]:
        match event:
            case MessageStarted():
                self._usage = None
                yield msgspec.structs.replace(event, message=self._noted(event.message))
                if self._prepared.event is not None:
                    yield self._prepared.event
                yield from self._total(Usage())
            case MessageCompleted():
                yield msgspec.structs.replace(event, message=self._noted(event.message))
            case UsageUpdated():
                yield from self._total(event.usage)
            case _:
                yield event

    def close(self) -> tuple[Event, ...]:
        return ()

    def _noted(self, message: Message) -> Message:
        return replace(message, metadata={**message.metadata, **self._prepared.metadata})

    def _total(self, usage: Usage) -> Iterator[Event]:
        total = self._prepared.usage + usage
        if total not in (self._usage, Usage()):
            self._usage = total
            yield UsageUpdated(total)


def _run_check(guard: Alongside, request: Request) -> Stream[None]:
    def judge(verdict: Any) -> None:
        if (error := verdict_error(guard.check, verdict)) is not None:
            raise error

    return result_of(partial(guard.check, request)).map(judge)


def _hold_back(check: Observable[Any], answer: Observable[Event]) -> Stream[Event]:
    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return _HeldBack(observer).start(check, answer, scheduler)

    return Stream(subscribe)


class _HeldBack:
    """One subscription to a check and the answer that waits for it.

    This class is not a `Backlog`, because a `Backlog` cannot pause the answer. An error from the answer also waits
    for the check.
    """

    def __init__(self, observer: abc.ObserverBase[Event]) -> None:
        self._observer = observer
        # The check and the answer can run on different threads. No event is emitted while the lock is held.
        self._lock = threading.Lock()
        self._waiting: deque[Event] | None = deque()  # None once all events have been released
        self._gate = Hold(is_full=self._is_full)
        # Ends the subscription. It is set if the answer ends before the check does.
        self._end: Callable[[], None] | None = None
        self._answer = SingleAssignmentDisposable()

    def start(
        self, check: Observable[Any], answer: Observable[Event], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        checking = check.subscribe(on_error=self._refuse, on_completed=self._release, scheduler=scheduler)
        if not self._answer.is_disposed:  # The check may have failed immediately.
            self._answer.disposable = paced(answer, self._gate).subscribe(
                self._receive,
                lambda error: self._finish(partial(self._observer.on_error, error)),
                lambda: self._finish(self._observer.on_completed),
                scheduler=scheduler,
            )
        return CompositeDisposable(checking, self._answer)

    def _is_full(self) -> bool:
        waiting = self._waiting
        return waiting is not None and len(waiting) >= HELD_BACK

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
            while (event := self._next()) is not None:  # more events may arrive during this loop
                self._observer.on_next(event)
        except BaseException as error:  # the subscriber raised an error, and no caller would report it
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
        self._gate.open()
        return None
