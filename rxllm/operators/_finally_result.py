"""Call a function with the result when a stream ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from inspect import CORO_CREATED, getcoroutinestate, isawaitable, iscoroutine
from typing import Any, Generic, TypeVar, overload

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable
from reactivex.scheduler import CurrentThreadScheduler, VirtualTimeScheduler

from rxllm.events import ErrorEvent, Event, StepRestarted
from rxllm.operators._event_operators import EVENTS, not_an_event, operate
from rxllm.operators._fold import to_response
from rxllm.runtime import Stream, call_context, call_loop, report_unheard, running_loop, shown_frames
from rxllm.runtime.context_variables import current_place, current_reader, subscriber_error
from rxllm.runtime.portal import live_on, start_on
from rxllm.telemetry import Outcome
from rxllm.values import LLMError, Response, StreamError
from rxllm.values.argument_checks import call_fault, check, check_function, invalid_option

R = TypeVar("R")

Fold = Callable[[Observable[Event]], Observable[R]]

log = logging.getLogger("rxllm")

SECONDS = 30.0
"""The number of seconds that an asynchronous function may take before it is cancelled."""

_running = set[asyncio.Task[None]]()
"""The running tasks. They are kept here because an event loop holds only weak references to its tasks."""


@overload
def finally_result(
    fn: Callable[[Response[Any], Outcome], object], fold: None = None
) -> Callable[[Observable[Event]], Stream[Event]]: ...
@overload
def finally_result(
    fn: Callable[[R, Outcome], object], fold: Fold[R]
) -> Callable[[Observable[Event]], Stream[Event]]: ...
def finally_result(
    fn: Callable[[Any, Outcome], object], fold: Fold[Any] | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Call ``fn(result, outcome)`` once, however the stream ends.

    ::

        source                   --start--H--i--end--|
        finally_result(fn)       --start--H--i--end--|     fn(Response('Hi'), "completed"), before the end
        disposed after H         --start--H                fn(Response('H'), "cancelled"), soon after

    >>> from rxllm import Fake, stream_generate
    >>> save = lambda response, outcome: print(outcome, response.output_text)
    >>> events = stream_generate(Fake(["Once ", "upon ", "a ", "time"]), "A story!").pipe(finally_result(save))
    >>> last = events.run()
    completed Once upon a time

    `fold` turns the events into the result. The default is ``ops.to_response()``. For a chat, pass
    ``ops.to_chat_result(thread)``. For a session's turn, pass ``ops.to_session(session, keep_partial=True)``.

    =============  =====================================================================================================
    outcome        meaning
    =============  =====================================================================================================
    ``completed``  The stream completed.
    ``failed``     The stream ended with an ``ErrorEvent`` or ``on_error``, its subscriber raised an exception, or the
                   event loop ended. The result has the error of the ``ErrorEvent``, or the ``LLMError`` passed to
                   ``on_error``.
    ``cancelled``  The stream was disposed of by ``dispose()``, ``break``, ``task.cancel()``, ``take``, ``switch_map``,
                   Ctrl-C, ...
    =============  =====================================================================================================

    `fn` runs on the call's event loop, after the source has ended or been disposed of. An ``async`` `fn` is cancelled
    after 30 seconds. A plain function blocks the loop, so it should be quick. The subscriber is notified of the end
    once `fn` is done. ``run()``, ``await`` and an iterator's ``with`` block always wait for `fn`. ``dispose()`` does
    not. Exceptions raised by `fn` are logged.

    The interpreter waits for `fn` before it exits. When ``asyncio.run`` ends, it cancels an ``async`` `fn`. Under
    virtual time, `fn` must be a plain function. ``dispose()`` then calls it directly.

    Raises ``ValidationError("invalid_option")`` unless `fn` takes two arguments. `fold` must produce a result even for
    an empty or failed stream.
    """
    check_function("fn", fn)
    check("fn", fn, call_fault(fn, None, "completed") is None, "a function that takes a result and an outcome")
    chosen = to_response() if fold is None else fold
    check_function("fold", chosen)
    _check_fold(chosen)
    return operate(lambda source, observer, scheduler: _Ending(fn, chosen, observer, scheduler).start(source))


def _check_fold(fold: Fold[Any]) -> None:
    for kind, events in (("without events", ()), ("that failed", (ErrorEvent(StreamError("truncated")),))):
        try:
            state = _FoldSubscription(fold)
            for event in events:
                state.add(event)
            state.result()
        except Exception as error:
            remedy = "pass, for example, ops.to_response(), ops.to_chat_result(thread) or ops.to_session(session)"
            raise invalid_option("fold", f"has no result for a stream {kind}: {error!r}; {remedy}") from error


class _FoldSubscription(Generic[R]):
    def __init__(self, fold: Fold[R]) -> None:
        self._observer: abc.ObserverBase[Event] | None = None
        self._results: list[R] = []
        self._errors: list[Exception] = []
        at_once = CurrentThreadScheduler.singleton()  # run the fold on the delivering thread
        fold(Stream(self._connect)).subscribe(self._results.append, self._errors.append, scheduler=at_once)

    def _connect(
        self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        self._observer = observer
        return Disposable()

    def add(self, event: Event) -> None:
        if self._observer is not None:
            self._observer.on_next(event)

    def result(self) -> R:
        if self._observer is not None:
            self._observer.on_completed()
        if self._errors:
            raise self._errors[0]
        if len(self._results) != 1:
            raise ValueError(f"it emitted {len(self._results)} items, not one")
        return self._results[0]


class _Ending:
    """Calls `fn` once, when a subscription ends.

    Completion, an error and disposal can race on different threads. The first of them acquires `_ended`, and the others
    are ignored. When the interpreter exits, the subscription is disposed of in the same way as a model call.
    """

    emitted, read = 1, True  # the portal expects these attributes

    def __init__(
        self,
        fn: Callable[[Any, Outcome], object],
        fold: Fold[Any],
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._fn = fn
        self._state = _FoldSubscription(fold)
        self._observer = observer
        self._scheduler = scheduler
        self._loop = None if isinstance(scheduler, VirtualTimeScheduler) else call_loop()
        self._live = live_on(self._loop) if self._loop is not None and current_place.get().is_read else None
        self._context = call_context()
        self._endings = current_reader.get().endings
        self._release_reader: Callable[[], None] = lambda: None
        self._ended = threading.Lock()
        self._has_failed = False

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        if self._endings is not None:
            self._endings.expect()
        if self._loop is not None and self._live is not None:
            start_on(self._loop, self._register)
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, Disposable(self.dispose))  # disposes of the source first

    def _register(self) -> None:
        if self._live is not None and not self._ended.locked():
            self._live.calls.add(self)

    def _on_next(self, event: Event) -> None:
        if type(event) not in EVENTS:
            self._on_error(not_an_event("finally_result", event))
            return
        if type(event) is ErrorEvent or type(event) is StepRestarted:
            self._has_failed = type(event) is ErrorEvent
        self._state.add(event)
        self._observer.on_next(event)

    def _on_completed(self) -> None:
        self._end("failed" if self._has_failed else "completed", self._observer.on_completed)

    def _on_error(self, error: Exception) -> None:
        self._end("failed", lambda: self._observer.on_error(error), error)

    def _end(self, outcome: Outcome, notify: Callable[[], None], error: Exception | None = None) -> None:
        if not self._take_end():
            return
        if isinstance(error, LLMError):
            self._state.add(ErrorEvent(error))
        if self._loop is None or running_loop() is self._loop:
            self._call(outcome, notify)
        else:
            self._call_soon(outcome, notify)

    def dispose(self) -> None:
        if self._take_end():
            # This stream is also disposed of when an ErrorEvent is turned into an exception.
            has_failed = self._has_failed or subscriber_error.get() is not None
            self._call_soon("failed" if has_failed else "cancelled", lambda: None)

    def _take_end(self) -> bool:
        """Return True only the first time the stream ends. From then on, the reader waits until `fn` is done."""
        is_first = self._ended.acquire(blocking=False)
        if is_first and self._endings is not None:
            self._release_reader = self._endings.begin()
        return is_first

    def _call_soon(self, outcome: Outcome, notify: Callable[[], None]) -> None:
        """Call `fn` on the call's event loop. This method can be called from any thread."""

        def call() -> None:
            try:
                self._call(outcome, notify)
            except BaseException as error:
                report_unheard(error)

        if self._loop is None:  # Virtual time has no event loop.
            call()
            return
        try:
            start_on(self._loop, call, self._context)
        except RuntimeError:
            log.warning("finally_result: %s was not called, because its event loop was closed", self._name)
            self._release_reader()

    def _call(self, outcome: Outcome, notify: Callable[[], None]) -> None:
        if self._live is not None:
            self._live.calls.discard(self)

        def finish() -> None:
            self._release_reader()
            notify()

        returned: Any = None
        try:
            returned = self._fn(self._state.result(), outcome)
        except Exception as error:
            self._log(error)
        except BaseException as error:  # for example SystemExit
            report_unheard(error)
        if not isawaitable(returned):
            finish()
        elif self._loop is None:
            self._log(TypeError("an async function needs an event loop; under virtual time, use a plain function"))
            if iscoroutine(returned):
                returned.close()
            finish()
        else:
            waiting = self._wait(returned, finish)
            task = asyncio.get_running_loop().create_task(waiting, name="rxllm-finally", context=self._context)
            _running.add(task)
            task.add_done_callback(_running.discard)
            task.add_done_callback(lambda task: self._close_unawaited(returned))

    def _close_unawaited(self, returned: Awaitable[Any]) -> None:
        if iscoroutine(returned) and getcoroutinestate(returned) == CORO_CREATED:
            returned.close()
            self._log_cancelled()

    def _log_cancelled(self) -> None:
        log.warning("finally_result: %s was cancelled, because the event loop ended", self._name)
        self._release_reader()

    async def _wait(self, pending: Awaitable[Any], finish: Callable[[], None]) -> None:
        limit = asyncio.timeout(SECONDS)
        try:
            async with limit:
                await pending
        except TimeoutError as error:
            self._log(TimeoutError(f"it took longer than {SECONDS:g} s") if limit.expired() else error)
        except Exception as error:
            self._log(error)
        except asyncio.CancelledError:
            self._log_cancelled()
            raise
        except BaseException as error:
            report_unheard(error)
        try:
            finish()
        except BaseException as error:
            report_unheard(error)

    def _log(self, error: Exception) -> None:
        log.error("finally_result: %s failed: %r", self._name, error, exc_info=shown_frames(error))

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__qualname__", type(self._fn).__name__)
