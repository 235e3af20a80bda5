"""Start a stream for each item of a source, a bounded number at a time.

=================================  ====================================================================================
event                              effect
=================================  ====================================================================================
an item arrives                    its stream starts if fewer than `limit` are running; otherwise, the item waits
`limit` streams are running        for ``keep_latest`` and ``conflate`` before them, the consumer is busy
an item waits, or `is_behind()`    a source that can wait does so
more than ``LIMIT`` items wait     the source cannot wait, and the streams end with ``StreamError("overflow")``
the source completes or fails      the items that have arrived are finished, and then the end or the error follows
`dispose`                          the source and all running streams are disposed
=================================  ====================================================================================

The source and the streams may use different threads. A lock ensures that only one function is called at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.runtime._concurrency import Bounded, serialized
from rxllm.runtime._held_back import Hold, paced
from rxllm.runtime.back_pressure import LIMIT
from rxllm.values import StreamError

T = TypeVar("T")
R = TypeVar("R")


class Arriving(abc.DisposableBase, Generic[T, R]):
    """Subscribes to ``make(index, item)`` for each item of a source.

    ``on_next(index, result)``, ``on_end(index, error)``, ``on_done()`` and ``on_fatal(error)`` are as in `Bounded`.
    ``on_fatal`` also receives the source's own error. When ``is_behind()`` becomes False, call `resume`.
    """

    def __init__(
        self,
        make: Callable[[int, T], Observable[R]],
        limit: float,
        on_next: Callable[[int, R], None],
        on_end: Callable[[int, Exception | None], None],
        on_done: Callable[[], None],
        on_fatal: Callable[[Any], None],
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make = make
        self._on_done = on_done
        self._on_fatal = on_fatal
        self._guard = RLock()
        self._waiting: deque[Observable[R]] = deque()
        self._count = 0
        self._failure: Exception | None = None
        self._source = SingleAssignmentDisposable()
        self._gate = Hold(is_full=lambda: bool(self._waiting) or is_behind())
        self._bounded: Bounded[R] = Bounded(self, limit, on_next, on_end, self._end, self._fail)
        self._bounded.is_open = True

    def start(self, source: Observable[T], scheduler: abc.SchedulerBase | None) -> None:
        def receive(item: T) -> None:
            if len(self._waiting) >= LIMIT:
                fault = f"{LIMIT} items are waiting for others to finish, and the source cannot wait"
                self._fail(StreamError("overflow", f"{fault}; pass an async generator, or a larger concurrency"))
                return
            self._waiting.append(serialized(self._make(self._count, item), self._guard))
            self._count += 1
            self._bounded.start(scheduler)
            self._gate.closed = self._bounded.is_full

        def end(error: Exception | None = None) -> None:
            self._failure = error
            self._bounded.is_open = False
            self._bounded.start(scheduler)

        arriving = serialized(paced(source, self._gate), self._guard)
        self._source.disposable = arriving.subscribe(receive, end, end, scheduler=scheduler)

    def __iter__(self) -> Arriving[T, R]:
        return self

    def __next__(self) -> Observable[R]:
        if not self._waiting:
            self._gate.let_through()
            raise StopIteration
        stream = self._waiting.popleft()
        self.resume()
        return stream

    def resume(self) -> None:
        """Wake the source if it can continue."""
        self._gate.open()

    def dispose(self) -> None:
        self._waiting.clear()
        self._source.dispose()
        self._bounded.dispose()

    def _end(self) -> None:
        if self._failure is None:
            self._on_done()
        else:
            self._on_fatal(self._failure)

    def _fail(self, error: Any) -> None:
        self.dispose()
        self._on_fatal(error)
