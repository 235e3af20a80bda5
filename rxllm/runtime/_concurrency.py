"""Bounded concurrency for streams, and the protocol for call limiters."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

T = TypeVar("T")


class Bounded(abc.DisposableBase, Generic[T]):
    """Subscribes to at most `limit` of the `sources` at a time, and passes the index of each source to the callbacks.

    ``on_next(index, item)`` is called for each item, and ``on_end(index, error)`` when a source ends. ``on_done()`` is
    called when all sources have ended. If an error is not an ``Exception``, all sources are disposed, and
    ``on_fatal(error)`` is called.

    While `is_open` is True, the iterator may be exhausted for a while, because more sources can follow. Call `start`
    when there is another source, and after setting `is_open` to False.
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
        """Subscribe to sources until `limit` of them are running."""
        if self._filling:  # a source ended while being subscribed to; the outer loop subscribes to the next one
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

    def stop(self, index: int) -> None:
        """Dispose a source if it is running. Its place is free from the next `start` on; `on_end` is not called."""
        if (subscription := self._live.pop(index, None)) is not None:
            self._running -= 1
            subscription.dispose()

    def dispose(self) -> None:
        self._disposed = True
        while self._live:  # other threads can remove entries during the loop
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


@runtime_checkable
class Limiter(Protocol):
    """A limiter for ``ops.rate_limited(limiter)`` that several processes or machines can share.

    A call acquires a permit before it runs. When the call ends, for whatever reason, it settles its permit once.

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

    The methods are called on the event loops and threads of the calls. `settle` and `hold_back` must not block.
    """

    def acquire(self, tokens: int, /) -> Awaitable[Any]:
        """Wait until a call of up to `tokens` tokens may start, and return its permit.

        `tokens` covers the call's messages and its answer. If this method raises an exception, the call fails with
        it. If the call is disposed while waiting, the wait is cancelled.
        """
        ...

    def settle(self, permit: Any, tokens: int, /) -> None:
        """Record that the call with this `permit` has ended and has used `tokens` tokens.

        `tokens` is the provider's count, or an estimate if there is none.
        """
        ...

    def hold_back(self, seconds: float, /) -> None:
        """Start no new calls for `seconds` seconds, because the provider rate-limited a call or asked for a pause."""
        ...
