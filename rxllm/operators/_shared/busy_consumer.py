"""Keep items while the consumer is busy: the base class of operators that join or drop what waits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.runtime import Gate, clock, conclude, current_gate, fail

T = TypeVar("T")


class WhileBusy(ABC, Generic[T]):
    """One subscription. A subclass keeps what waits, in `_add` and `_take_all`; `_count` items have been added.

    At `_most` of them they pass, and the reader's buffer slows the source down.
    """

    _most = math.inf

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None) -> None:
        self._observer = observer
        self._scheduler = scheduler
        self._gate = current_gate.get()
        self._clock = clock(scheduler) if self._gate is not None else None
        self._wake = SerialDisposable()
        self._lock = RLock()
        self._count = 0
        self._delivering = False
        self._refused = False  # a subscriber has raised

    def start(self, source: Observable[T]) -> abc.DisposableBase:
        subscription = source.subscribe(self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, self._wake)

    @abstractmethod
    def _add(self, item: T) -> None:
        """Let `item` wait."""

    @abstractmethod
    def _take_all(self) -> Iterable[T]:
        """Return what waits; then nothing waits."""

    def _is_free(self, gate: Gate) -> bool:
        """Whether the reader is not busy."""
        return gate.idle

    def _when_free(self, gate: Gate, wake: Callable[[], None]) -> None:
        """Call `wake` once it is not."""
        gate.when_idle(wake)

    def _on_next(self, item: T) -> None:
        with self._lock:
            if not (self._count or self._delivering or (self._gate is not None and not self._is_free(self._gate))):
                self._deliver(item)
                if not self._count:
                    return
            else:
                if not self._count and self._gate is not None:
                    self._when_free(self._gate, self._soon)
                self._count += 1
                try:
                    self._add(item)
                except Exception as error:  # raised by the user's function that joins two items
                    self._on_error(error)
                    return
            if self._delivering:
                return
            if self._gate is None or self._count >= self._most or self._is_free(self._gate):
                self._release()

    def _soon(self) -> None:
        # The consumer that takes an item may be on another thread; it should not do this work.
        if self._clock is not None and not self._wake.is_disposed:
            self._wake.disposable = self._clock.schedule(self._release_now)

    def _release_now(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            try:
                self._release()
            except BaseException as error:  # raised by the subscriber; no caller would deliver it
                fail(self._observer, error)

    def _release(self) -> None:
        while self._count and not self._delivering:
            for item in self._waiting():
                self._deliver(item)

    def _waiting(self) -> Iterable[T]:
        if not self._count:
            return ()
        self._count = 0
        return self._take_all()

    def _deliver(self, item: T) -> None:
        self._delivering = True
        try:
            self._observer.on_next(item)
        except BaseException:
            self._refused = True
            raise
        finally:
            self._delivering = False

    def _on_completed(self) -> None:
        with self._lock:
            self._wake.dispose()
            conclude(self._observer, self._waiting())

    def _on_error(self, error: Exception) -> None:
        with self._lock:
            self._wake.dispose()
            try:
                for item in () if self._refused else self._waiting():  # a refused error is the subscriber's
                    self._observer.on_next(item)
            except Exception as refusal:
                error = refusal
            self._observer.on_error(error)
