"""Wait for the last item of a stream, or iterate over its items.

A source waits once there are `maxsize` unread items. A source that cannot wait is cut off once there are `limit` unread
items. An iterator has three states:

==========  ==================================================  =====================================================
state       ends when                                           behaviour of the iterator
==========  ==================================================  =====================================================
fresh       the ``with`` block is entered, or the first item    it has no subscription yet, and no call is running
            is requested
subscribed  the stream ends, `close` is called, the ``with``    it returns items from its `Buffer`, or waits for one;
            block is left, or the iterator is dropped           if the stream fails, it raises the error once
closed      (never)                                             it has disposed of its subscription and has no more
                                                                items
==========  ==================================================  =====================================================
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

from reactivex import Observable, abc, empty
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.runtime._clock import LoopScheduler, PacedScheduler
from rxllm.runtime._unhandled import shorten_traceback
from rxllm.runtime.back_pressure import LIMIT, MAX_WAITING, Endings, Gate, read_by
from rxllm.runtime.portal import awaiting_loop, has_ended, on_portal, running_loop, warn_if_blocking
from rxllm.runtime.stream_arguments import check_source
from rxllm.values import StreamError

T = TypeVar("T")


# Iterating over a stream with back-pressure: while `maxsize` items are unread, the source waits


_FORKED = "this process was forked while the stream was being read, and the call runs in the parent; read a new stream"


def to_iter(source: Observable[T], maxsize: int = MAX_WAITING, *, limit: int | None = None) -> Items[T]:
    """Iterate over `source`: ``with to_iter(source) as items:``.

    Once there are `maxsize` unread items (or `limit`, if that is lower), the source waits. If it cannot wait, it is cut
    off once there are `limit` unread items (65,536 by default). The iterator then returns the items that arrived before
    the cut, and raises ``StreamError("overflow")``.
    """
    check_source(source, "to_iter")
    return Items(source, maxsize, limit)


def to_async_iter(source: Observable[T], maxsize: int = MAX_WAITING, *, limit: int | None = None) -> AsyncItems[T]:
    """Iterate over `source`: ``async with to_async_iter(source) as items:``.

    For `maxsize` and `limit`, see `to_iter`.
    """
    check_source(source, "to_async_iter")
    return AsyncItems(source, maxsize, limit)


class Buffer(abc.ObserverBase[T]):
    """Holds the unread items of a subscription.

    A buffer must not refer to its iterator. Otherwise, an iterator that has been dropped would not be
    garbage-collected.
    """

    def __init__(self, maxsize: int, limit: int | None, wake: Callable[[], object]) -> None:
        self._limit = max(LIMIT, maxsize) if limit is None else limit
        if self._limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self.gate = Gate(min(maxsize, self._limit))
        self.endings = Endings()
        self.ended = False
        self.error: BaseException | None = None
        self._wake = wake
        self._subscription = SingleAssignmentDisposable()

    def subscribe_to(self, source: Observable[T], loop: asyncio.AbstractEventLoop) -> abc.DisposableBase:
        with read_by(self.gate, self.take_error, self.endings):
            self._subscription.disposable = source.subscribe(self, scheduler=PacedScheduler(loop, self.gate))
        return self._subscription

    def on_next(self, value: T) -> None:
        if len(self.gate.waiting) >= self._limit:
            self._cut_off()
            return
        self.gate.waiting.append(value)
        self._wake()

    def _cut_off(self) -> None:
        fault = f"{self._limit} items are waiting for the reader, and the source cannot wait"
        remedy = "thin them out with ops.keep_latest() or ops.conflate(), use a source that can wait (such as"
        error = StreamError("overflow", f"{fault}; {remedy} rxllm.from_async_iter(...)), or pass a larger limit=")
        if self.take_error(error):
            self._subscription.dispose()

    def on_error(self, error: Exception) -> None:
        self.take_error(error)

    def take_error(self, error: BaseException) -> bool:
        """Keep `error` for the reader to raise. Return False if the stream has already ended."""
        if self.ended:
            return False
        self.error = error
        self.on_completed()
        return True

    def on_completed(self) -> None:
        self.ended = True
        self._wake()

    def close(self) -> None:
        self.ended = True
        self.gate.waiting.clear()
        self.gate.open()
        self._wake()

    def failure(self) -> BaseException | None:
        """Return the error that ended the stream. Later calls return None."""
        error, self.error = self.error, None
        if error is not None:
            shorten_traceback(error)
        return error


class _Reader(Generic[T]):
    """Base class for iterators. If an iterator is dropped, it disposes of its subscription."""

    _subscription: abc.DisposableBase | None = None
    _buffer: Buffer[T]

    def _close(self) -> None:
        subscription, self._subscription = self._subscription or _NOTHING, _NOTHING
        subscription.dispose()
        self._buffer.close()

    def __del__(self) -> None:
        if self._subscription is not None:
            self._close()


class Items(_Reader[T], Iterator[T]):
    """Iterates over a stream on rxllm's own event loop."""

    def __init__(self, source: Observable[T], maxsize: int = MAX_WAITING, limit: int | None = None) -> None:
        self._source = source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup = threading.Event()
        self._buffer: Buffer[T] = Buffer(maxsize, limit, self._wakeup.set)

    def __next__(self) -> T:
        buffer = self._buffer
        if self._subscription is None:
            self._start()
        try:
            while not buffer.gate.waiting:
                if buffer.ended:
                    self.close()
                    raise buffer.failure() or StopIteration
                if self._loop is not None and has_ended(self._loop):
                    raise StreamError("cancelled", _FORKED)
                buffer.gate.request()
                self._wakeup.wait(timeout=3600)
                self._wakeup.clear()
        except BaseException:
            self._close()
            raise
        return cast(T, buffer.gate.take())

    def close(self) -> None:
        """Dispose of the subscription, and end the iteration."""
        self._close()
        if self._loop is not None:
            self._buffer.endings.wait_blocking(self._loop)

    def __enter__(self) -> Self:
        if self._subscription is None:
            self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self) -> None:
        with on_portal() as portal:
            warn_if_blocking("a plain `for` loop blocks", "async for", stacklevel=4)
            self._loop = portal.loop
            self._subscription = self._buffer.subscribe_to(self._source, portal.loop)


class AsyncItems(_Reader[T], AsyncIterator[T]):
    """Iterates over a stream in an ``async for`` loop."""

    def __init__(self, source: Observable[T], maxsize: int = MAX_WAITING, limit: int | None = None) -> None:
        self._source = source
        self._wakeup = _Wakeup()
        self._buffer: Buffer[T] = Buffer(maxsize, limit, self._wakeup.set)

    async def __anext__(self) -> T:
        buffer = self._buffer
        if self._subscription is None:
            self._start()
        try:
            while not buffer.gate.waiting:
                if buffer.ended:
                    await self.aclose()
                    raise buffer.failure() or StopAsyncIteration
                buffer.gate.request()
                await self._wakeup.wait()
        except BaseException:
            self._close()
            raise
        return cast(T, buffer.gate.take())

    async def aclose(self) -> None:
        """Dispose of the subscription, and end the iteration."""
        self._close()
        await self._buffer.endings.wait()

    async def __aenter__(self) -> Self:
        if self._subscription is None:
            self._start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def _start(self) -> None:
        loop = self._wakeup.loop = awaiting_loop()
        self._subscription = self._buffer.subscribe_to(self._source, loop)


class _Wakeup:
    """An ``asyncio.Event`` that any thread can set."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def set(self) -> None:
        if self.loop is None or running_loop() is self.loop:
            self._event.set()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


class _Nothing(abc.DisposableBase):
    def dispose(self) -> None:
        pass


_NOTHING: Any = _Nothing()


# Getting the last item of a stream: `run` blocks, and `last` is awaited


def run(source: Observable[T], scheduler: abc.SchedulerBase | None = None) -> T:
    """Wait until `source` ends, and return its last item.

    This works in scripts, threads and notebooks. It warns if it blocks a running event loop, except in notebooks.
    Ctrl-C disposes of the subscription and closes its connections.

    If the stream fails, `run` raises the stream's error. Raises ``SequenceContainsNoElementsError`` if the stream has
    no items. Raises ``RuntimeError`` if `run` is called on rxllm's own loop. Raises
    ``ValidationError("invalid_option")`` if `source` is not an Observable.
    """
    check_source(source, "run")
    source = getattr(source, "_whole", source)
    with on_portal() as portal:
        warn_if_blocking("run() blocks", "await stream", stacklevel=4)
        ended = threading.Event()
        waiter: _Waiter[T] = _Waiter(ended.set)
        subscription = waiter.subscribe_to(source, scheduler or LoopScheduler(portal.loop))
    try:
        while not ended.wait(timeout=3600):
            pass
    finally:
        waiter.awaited = False
        subscription.dispose()
        waiter.endings.wait_blocking(portal.loop)
    if waiter.failed:
        raise waiter.failure()
    return waiter.result()


async def last(source: Observable[T]) -> T:
    """Return the last item of `source`. If the task is cancelled, the subscription is disposed.

    Raises ``EngineError("wrong_loop")`` if no asyncio loop is running, as is the case under trio.
    """
    loop = awaiting_loop()
    source = getattr(source, "_whole", source)
    ended = asyncio.Event()

    def wake() -> None:
        if running_loop() is loop:
            ended.set()
        else:
            loop.call_soon_threadsafe(ended.set)

    waiter: _Waiter[T] = _Waiter(wake)
    subscription = waiter.subscribe_to(source, LoopScheduler(loop))
    del source  # keeping thousands of sources would slow down the garbage collector
    try:
        await ended.wait()
    finally:
        waiter.awaited = False
        subscription.dispose()
        await waiter.endings.wait()
    if waiter.failed:
        raise waiter.failure()
    return waiter.result()


class _Waiter(abc.ObserverBase[T]):
    """An observer that keeps the last item or the error, and calls `wake` when the stream ends."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.awaited = True
        self.endings = Endings()
        self._wake = wake
        self._last: tuple[T] | None = None
        self._error: BaseException | None = None

    def subscribe_to(self, source: Observable[T], scheduler: abc.SchedulerBase) -> abc.DisposableBase:
        # A tool that reads the source may have a reader of its own. That reader's gate must not delay the source.
        with read_by(None, self.take_error, self.endings):
            return source.subscribe(self, scheduler=scheduler)

    def on_next(self, value: T) -> None:
        self._last = (value,)

    def on_error(self, error: Exception) -> None:
        self.take_error(error)

    def take_error(self, error: BaseException) -> bool:
        """Keep the first error. Return False if no caller is waiting for it."""
        if self.awaited and self._error is None:
            self._error = error
            self._wake()
        return self.awaited

    def on_completed(self) -> None:
        self._wake()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def failure(self) -> BaseException:
        """Return the error. It is not kept, because that would create a reference cycle."""
        error, self._error = cast(BaseException, self._error), None
        shorten_traceback(error)
        return error

    def result(self) -> T:
        return self._last[0] if self._last is not None else empty().run()  # this raises reactivex's own error
