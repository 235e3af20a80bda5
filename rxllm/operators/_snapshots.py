"""Emit the response so far at intervals."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream, clock, fail
from rxllm.values import Response
from rxllm.values.argument_checks import check_seconds


def snapshots(every: float = 0.1) -> Callable[[Observable[Event]], Stream[Response[Any]]]:
    """Emit the `Response` so far for a display: at once, then `every` so many seconds while it grows, and at the end.

    ::

        source           --H--i-----!-----end|
        snapshots(4)     --H---Hi---Hi!---Hi!|

    >>> from rxllm import Fake, stream_generate
    >>> events = stream_generate(Fake(["Hi", ("delay", 0.3), "!"]), "Hello")
    >>> [so_far.output_text for so_far in events.pipe(snapshots(0.2))]
    ['', 'Hi', 'Hi!']

    With 0 seconds there is one for each event. The last one is the result of `to_response`, with an ``ErrorEvent`` as
    its error; an ``on_error`` comes after the response so far. In a chat it is the current step's response. A snapshot
    costs time in proportion to its text, and is made only when it is emitted; while nothing changes no timer runs.

    Raises ``ValidationError("invalid_option")`` unless `every` is a number of seconds.
    """
    period = check_seconds("every", every)
    return operate(lambda source, observer, scheduler: _Snapshots(observer, period, scheduler).start(source))


class _Snapshots:
    """One subscription. `emitted` is the state of the last snapshot."""

    def __init__(
        self, observer: abc.ObserverBase[Response[Any]], period: float, scheduler: abc.SchedulerBase | None
    ) -> None:
        self._observer = observer
        self._period = period
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._lock = RLock()  # a source without a loop may run on another thread than the timer
        self._state = StreamCollector()
        self._emitted: StreamCollector | None = None
        self._armed = False  # while a timer runs
        self._subscriber_raised = False

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._timer)

    def _on_next(self, event: Event) -> None:
        with self._lock:
            try:
                if type(event) not in EVENTS:
                    raise not_an_event("snapshots", event)
                self._state = self._state.apply_event(event)
            except Exception as error:  # a raw usage with unknown keys
                self._observer.on_error(error)
                return
            if not self._armed:
                self._emit_if_new()

    def _emit_if_new(self) -> None:
        if self._state is self._emitted:
            return
        self._emitted = self._state
        if self._period:
            self._armed = True
            self._timer.disposable = clock(self._scheduler).schedule_relative(self._period, self._wake)
        self._emit()

    def _emit(self) -> None:
        try:
            self._observer.on_next(self._state.to_response())
        except BaseException:
            self._subscriber_raised = True
            raise

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._armed = False
            try:
                self._emit_if_new()
            except BaseException as error:  # the subscriber raised, and nothing above would deliver it
                fail(self._observer, error)

    def _on_completed(self) -> None:
        self._conclude(self._observer.on_completed)

    def _on_error(self, error: Exception) -> None:
        self._conclude(lambda: self._observer.on_error(error))

    def _conclude(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._timer.dispose()
            if self._state is not self._emitted and not self._subscriber_raised:
                try:
                    self._emit()
                except Exception as error:
                    self._observer.on_error(error)
                    return
            end()
