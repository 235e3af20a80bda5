"""Bounded concurrency for streams, and the limiter protocol."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

T = TypeVar("T")


class Bounded(abc.DisposableBase, Generic[T]):
    """Subscribes to at most `limit` sources at a time.

    ``on_next(index, item)`` is called for each item. ``on_end(index, error)`` is called when a source ends, and
    ``on_done()`` is called when all sources have ended. If an error is not an ``Exception``, all sources are disposed,
    and the error is passed to ``on_fatal``.

    While `is_open` is True, more sources may be added. Call `start` each time one is added, and once more after you
    have set `is_open` to False.
    """

    def __init__(
        self,
        sources: Iterable[Observable[T]],
        limit: float,
        on_next: Callable[[int, T], None],
        on_end: Callable[[int, Exception | None], None],
        on_done: Callable[[], None],
        on_fatal: Callable[[Any], None],
    ) -> None:
        self._sources = enumerate(sources)
        self._limit = limit
        self._on_next = on_next
        self._on_end = on_end
        self._on_done = on_done
        self._on_fatal = on_fatal
        self.is_open = False
        self._live: dict[int, SingleAssignmentDisposable] = {}
        self._disposed = False
        self._running = 0
        self._exhausted = False
        self._filling = False

    def start(self, scheduler: abc.SchedulerBase | None) -> None:
        """Subscribe to more sources, until `limit` of them are running."""
        if self._filling:  # a source ended at once, in the loop below
            return
        self._filling = True
        while self._running < self._limit and not self._exhausted and not self._disposed:
            index, source = next(self._sources, (-1, None))
            if source is None:
                if self.is_open:
                    break
                self._exhausted = True
            else:
                self._subscribe(index, source, scheduler)
        self._filling = False
        if self._exhausted and not self._running and not self._disposed:
            self._on_done()

    @property
    def is_full(self) -> bool:
        """Whether `limit` sources are running."""
        return self._running >= self._limit

    def stop(self, index: int) -> None:
        """Unsubscribe from the source at `index` if it is running, without calling `on_end`.

        The next call to `start` can then start another source.
        """
        if (subscription := self._live.pop(index, None)) is not None:
            self._running -= 1
            subscription.dispose()

    def dispose(self) -> None:
        self._disposed = True
        while self._live:  # other threads can remove entries
            with contextlib.suppress(KeyError):
                self._live.popitem()[1].dispose()

    def _subscribe(self, index: int, source: Observable[T], scheduler: abc.SchedulerBase | None) -> None:
        subscription = SingleAssignmentDisposable()
        self._live[index] = subscription
        self._running += 1

        def end(error: BaseException | None = None) -> None:
            if not isinstance(error, Exception | None):
                self.dispose()
                self._on_fatal(error)
                return
            self._running -= 1
            if (ended := self._live.pop(index, None)) is not None:
                ended.dispose()
            self._on_end(index, error)
            self.start(scheduler)

        subscription.disposable = source.subscribe(
            lambda item: self._on_next(index, item), end, end, scheduler=scheduler
        )
        if self._disposed:
            subscription.dispose()


def serialized(stream: Observable[T], guard: threading.RLock) -> Observable[T]:
    """Return `stream` such that its observer holds `guard` while it is called."""

    def guard_call(fn: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            with guard:
                fn(*args)

        return call

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        handlers = map(guard_call, (observer.on_next, observer.on_error, observer.on_completed))
        return stream.subscribe(*handlers, scheduler=scheduler)

    return Observable(subscribe)


@runtime_checkable
class Limiter(Protocol):
    """A limiter for ``ops.rate_limited(limiter)``.

    A limiter can be shared by several processes or machines. Each call acquires a permit, and settles it exactly once:
    when the call ends.

    >>> class AtMost:
    ...     def __init__(self, calls):
    ...         self.places = asyncio.Semaphore(calls)
    ...     async def acquire(self, tokens):
    ...         await self.places.acquire()
    ...     def settle(self, permit, tokens):
    ...         self.places.release()
    ...     def hold_back(self, seconds):
    ...         pass
    >>> import asyncio
    >>> from rxllm import Engine, Fake, generate, operators as ops
    >>> generate(Engine(Fake("Hi"), operators=[ops.rate_limited(AtMost(2))]), "Hello").run().output_text
    'Hi'

    Calls use the limiter from their own loops and threads. `settle` and `hold_back` must not block.
    """

    def acquire(self, tokens: int, /) -> Awaitable[Any]:
        """Wait until a call that uses up to `tokens` tokens may start.

        Return a permit for the call. `tokens` covers both the messages and the answer. If this method raises an
        exception, the call fails with that exception. If the call is disposed, the wait is cancelled.
        """
        ...

    def settle(self, permit: Any, tokens: int, /) -> None:
        """Record that the call with this `permit` has ended.

        `tokens` is how many tokens the call used, either as reported by the provider or as an estimate.
        """
        ...

    def hold_back(self, seconds: float, /) -> None:
        """Do not start any calls for the next `seconds` seconds, because the provider has asked for this."""
        ...
