"""The response so far, now and then."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.collector import StreamCollector
from rxllm.events import Event
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.runtime import Stream, clock, fail
from rxllm.values import Response
from rxllm.values.arguments import check_seconds


def snapshots(every: float = 0.1) -> Callable[[Observable[Event]], Stream[Response[Any]]]:
    """The `Response` so far, for a display: at once, then every so many seconds while it grows, and the whole at last.

    ::

        source           --H--i-----!--end|
        snapshots(4)     --H---Hi---Hi!---Hi!|

    >>> from rxllm import Fake, stream_generate
    >>> events = stream_generate(Fake(["Hi", ("delay", 0.02), "!"]), "Hello")
    >>> [so_far.output_text for so_far in events.pipe(snapshots(0.01))]
    ['', 'Hi', 'Hi!']

    The last one is what `to_response` gives, an error in the stream included; an ``on_error`` follows the response as
    far as it came. Over the steps of a chat it is the current step's response. A snapshot costs as much as its text is
    long, and is made only when it is emitted; while nothing happens no timer runs.

    Raises ``ValidationError("invalid_option")`` for an `every` that is no number of seconds; 0 is at every event.
    """
    period = check_seconds("every", every)

    def operator(source: Observable[Event]) -> Stream[Response[Any]]:
        def subscribe(
            observer: abc.ObserverBase[Response[Any]], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _Snapshots(observer, period, scheduler).start(source)

        return Stream(subscribe)

    return operator


class _Snapshots:
    """One subscription. `told` is the state that was emitted last."""

    def __init__(
        self, observer: abc.ObserverBase[Response[Any]], period: float, scheduler: abc.SchedulerBase | None
    ) -> None:
        self._observer = observer
        self._period = period
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._lock = RLock()  # a source without a loop may be on another thread than the timer
        self._state = StreamCollector()
        self._told: StreamCollector | None = None
        self._waiting = False  # while a timer runs
        self._refused = False  # whether a subscriber has raised

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
            if not self._waiting:
                self._tell()

    def _tell(self) -> None:
        if self._state is self._told:
            return
        self._told = self._state
        if self._period:
            self._waiting = True
            self._timer.disposable = clock(self._scheduler).schedule_relative(self._period, self._go_on)
        self._emit()

    def _emit(self) -> None:
        try:
            self._observer.on_next(self._state.to_response())
        except BaseException:
            self._refused = True
            raise

    def _go_on(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._waiting = False
            try:
                self._tell()
            except BaseException as error:  # the subscriber's; nobody above would deliver it
                fail(self._observer, error)

    def _on_completed(self) -> None:
        self._conclude(self._observer.on_completed)

    def _on_error(self, error: Exception) -> None:
        self._conclude(lambda: self._observer.on_error(error))

    def _conclude(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._timer.dispose()
            if self._state is not self._told and not self._refused:
                try:
                    self._emit()
                except Exception as error:
                    self._observer.on_error(error)
                    return
            end()
