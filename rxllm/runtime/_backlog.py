"""The queue of items that wait inside an operator for its consumer or its timer.

=====================  ==============================================================================================
event                  effect
=====================  ==============================================================================================
an item arrives        it is delivered at once or it waits, as the operator decides; its source never waits
a delivery             holds the lock, so only one runs at a time; it runs on the thread that sends the item or the
                       end, or on the clock's thread, where `wake` is scheduled
the source ends        the waiting items are delivered, then the end
the source fails       the waiting items are delivered, then the error; if the subscriber has raised, the items are
                       dropped, since the error may be that exception
the subscriber raises  during an item, the source receives the exception; in `wake` and at the end, the subscriber's
                       own ``on_error`` does
a dispose              drops the waiting items, and disposes the source and the timer
=====================  ==============================================================================================

An operator that follows other rules has its own queue, and its docstring names the rule that differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from threading import RLock
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.runtime._unhandled import conclude, fail

T = TypeVar("T")
R = TypeVar("R")


class Backlog(ABC, Generic[T, R]):
    """One subscription to a source of T by an observer of R. A subclass keeps the waiting items."""

    def __init__(self, observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._lock = RLock()  # a source without a loop may run on another thread than the timer
        self._delivering = False
        self._subscriber_raised = False

    def start(self, source: Observable[T]) -> abc.DisposableBase:
        """Subscribe to `source`."""
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._timer)

    def wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        """Release the items that are due. The subclass schedules this action and keeps the disposable in `_timer`."""
        with self._lock:
            try:
                self._release()
            except BaseException as error:  # raised by the subscriber; no caller would pass it to `on_error`
                self._timer.dispose()
                fail(self._observer, error)

    @abstractmethod
    def _on_next(self, item: T, /) -> None:
        """Deliver or keep `item`, under the lock."""

    @abstractmethod
    def _release(self) -> None:
        """Deliver the waiting items that are due; called under the lock."""

    @abstractmethod
    def _take_all(self) -> Iterable[R]:
        """Remove and return the waiting items; called under the lock."""

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
