"""Hold items back until a consumer, a timer or a check releases them.

A `Backlog` stores items while its source continues to emit:

==========================  =========================================================================================
event                       effect
==========================  =========================================================================================
an item arrives             the operator delivers the item at once or stores it; the source never waits
an item is delivered        a lock ensures that only one item is delivered at a time; the item is delivered on the
                            thread on which the source emits or ends, or (in `wake`) on the clock's thread
the source ends             the waiting items are delivered, and then the end
the source fails            the waiting items are delivered, and then the error; however, if the subscriber has raised
                            an exception, the items are dropped, because the error might be that exception
the subscriber raises an    while the source is emitting an item, the exception propagates to the source; in `wake`
exception                   and at the end, it is passed to the subscriber's own ``on_error``
the subscription is         the waiting items are dropped, and the source and the timer are disposed
disposed
==========================  =========================================================================================

If an operator has a queue of its own, its docstring describes how the queue differs from a `Backlog`.

A `Hold` makes a source wait; see `paced`. The source waits for both the operator's gate and the reader's gate. A call
made by the subscriber waits only for the reader's gate.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from threading import RLock
from typing import Any, Generic, TypeVar

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.runtime._stream import Stream
from rxllm.runtime._unhandled import conclude, fail
from rxllm.runtime.back_pressure import Gate
from rxllm.runtime.context_variables import current_gate, current_reader

T = TypeVar("T")
R = TypeVar("R")


class Backlog(ABC, Generic[T, R]):
    """Receives items of type T, and emits items of type R."""

    def __init__(self, observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._lock = RLock()  # the timer and a source that has no loop can run on different threads
        self._delivering = False
        self._subscriber_raised = False

    def start(self, source: Observable[T]) -> abc.DisposableBase:
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._timer)

    def wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        """Deliver the items that are due. This is called by the clock."""
        with self._lock:
            try:
                self._release()
            except BaseException as error:  # no caller will pass the error to `on_error`
                self._timer.dispose()
                fail(self._observer, error)

    @abstractmethod
    def _on_next(self, item: T, /) -> None:
        """Acquire the lock, and either deliver or store `item`."""

    @abstractmethod
    def _release(self) -> None:
        """Deliver the items that are due. The caller must hold the lock."""

    @abstractmethod
    def _take_all(self) -> Iterable[R]:
        """Remove and return the waiting items. The caller must hold the lock."""

    def _deliver(self, item: R) -> None:
        self._delivering = True
        try:
            self._observer.on_next(item)
        except BaseException:
            self._subscriber_raised = True
            raise
        finally:
            self._delivering = False

    def _on_completed(self) -> None:
        with self._lock:
            self._timer.dispose()
            conclude(self._observer, self._take_all())

    def _on_error(self, error: Exception) -> None:
        with self._lock:
            self._timer.dispose()
            try:
                for item in self._take_all():
                    if not self._subscriber_raised:
                        self._deliver(item)
            except Exception as raised:
                error = raised
            self._observer.on_error(error)


_Listen = Callable[[Callable[[], None]], None]


def _wake_now(wake: Callable[[], None]) -> None:
    wake()


class Hold(Gate):
    """A gate that an operator puts in front of the reader's gate.

    It is full once `maxsize` items are waiting or, if `is_full` is given, while ``is_full()`` is True. The operator
    must call `open` when ``is_full()`` becomes False. While `closed` is True, `idle` and `requested` are False.
    """

    def __init__(
        self,
        maxsize: int = 1,
        *,
        is_full: Callable[[], bool] | None = None,
        before_tools: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__(maxsize)
        self.closed = False
        self._is_full = is_full
        self._before_tools = before_tools
        self._reader = current_gate()

    @property
    def full(self) -> bool:
        return not self._has_room() or (self._reader is not None and self._reader.full)

    @property
    def idle(self) -> bool:
        return self._is_idle() and (self._reader is None or self._reader.idle)

    @property
    def requested(self) -> bool:
        return self._is_idle() and (self._reader is None or self._reader.requested)

    def let_through(self) -> None:
        """Set `closed` to False. If no item is waiting, wake the waiting sources."""
        self.closed = False
        self._wake_if_idle()

    def take(self) -> Any:
        item = super().take()
        self._wake_if_idle()
        return item

    def when_open(self, wake: Callable[[], None]) -> None:
        at_reader = _wake_now if self._reader is None else self._reader.when_open
        self._wake_when_both(self._has_room, super().when_open, at_reader, wake)

    def when_idle(self, wake: Callable[[], None]) -> None:
        at_reader = _wake_now if self._reader is None else self._reader.when_idle
        self._wake_when_both(self._is_idle, super().when_idle, at_reader, wake)

    def when_requested(self, wake: Callable[[], None]) -> None:
        at_reader = _wake_now if self._reader is None else self._reader.when_requested
        self._wake_when_both(self._is_requested, super().when_requested, at_reader, wake)

    def before_tools(self, start: Callable[[], None]) -> None:
        reader = self._reader
        start_at_reader = start if reader is None else lambda: reader.before_tools(start)
        if self._before_tools is None:
            start_at_reader()
        else:
            self._before_tools(start_at_reader)

    def _wake_when_both(
        self, is_ready: Callable[[], bool], at_gate: _Listen, at_reader: _Listen, wake: Callable[[], None]
    ) -> None:
        # While we wait for one gate, the other may change again.
        def recheck() -> None:
            if is_ready():
                at_reader(finish)
            else:
                at_gate(recheck)

        def finish() -> None:
            if is_ready():
                wake()
            else:
                at_gate(recheck)

        recheck()

    def _has_room(self) -> bool:
        return super()._has_room() if self._is_full is None else not self._is_full()

    def _is_idle(self) -> bool:
        return not (self.waiting or self.closed)

    def _is_requested(self) -> bool:
        return self._is_idle()

    def _wake_if_idle(self) -> None:
        if self._is_idle():
            self._wake(self._idlers)
            self._wake(self._suppliers)


class _ReaderObserver(abc.ObserverBase[Any]):
    """Calls `observer` with `current_reader` set to the `Reader` that was current when `observer` subscribed."""

    __slots__ = ("_observer", "_reader")

    def __init__(self, observer: abc.ObserverBase[Any]) -> None:
        self._observer = observer
        self._reader = current_reader.get()

    def on_next(self, value: Any) -> None:
        token = current_reader.set(self._reader)
        try:
            self._observer.on_next(value)
        finally:
            current_reader.reset(token)

    def on_error(self, error: Exception) -> None:
        token = current_reader.set(self._reader)
        try:
            self._observer.on_error(error)
        finally:
            current_reader.reset(token)

    def on_completed(self) -> None:
        token = current_reader.set(self._reader)
        try:
            self._observer.on_completed()
        finally:
            current_reader.reset(token)


@contextlib.contextmanager
def behind(gate: Gate | None) -> Generator[None]:
    """Make the sources in the ``with`` block wait for `gate`. If `gate` is None, the sources never wait."""
    token = current_reader.set(replace(current_reader.get(), gate=gate))
    try:
        yield
    finally:
        current_reader.reset(token)


def noting_times(source: Observable[T]) -> Stream[T]:
    """Make `source` record the times of attempts that failed or lost a race.

    They are recorded only if the reader asks for them, because times differ from run to run.
    """

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        token = current_reader.set(replace(current_reader.get(), is_timed=True))
        try:
            return source.subscribe(observer, scheduler=scheduler)
        finally:
            current_reader.reset(token)

    return Stream(subscribe)


def paced(source: Observable[T], gate: Gate | None) -> Stream[T]:
    """Make `source` wait for `gate`. If `gate` is None, the source never waits."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        subscriber = _ReaderObserver(observer)
        with behind(gate):
            return source.subscribe(subscriber, scheduler=scheduler)

    return Stream(subscribe)
