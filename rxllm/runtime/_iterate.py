"""From a stream to a ``for`` loop, with back-pressure: at most `maxsize` items wait, then the source waits too.

An iterator subscribes when its first item is asked for. Closing it, leaving its ``with`` block, or dropping it (as
``break`` does) disposes the subscription.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

from reactivex import Observable, abc

from rxllm.runtime._back_pressure import Gate, read_by
from rxllm.runtime._clock import LoopScheduler
from rxllm.runtime._portal import on_portal, running_loop, warn_if_blocking
from rxllm.runtime._stream_arguments import check_source

T = TypeVar("T")


def to_iter(source: Observable[T], maxsize: int = 64) -> Items[T]:
    """An iterator over `source`, best used as ``with to_iter(source) as items:``."""
    check_source(source, "to_iter")
    return Items(source, maxsize)


def to_async_iter(source: Observable[T], maxsize: int = 64) -> AsyncItems[T]:
    """An asynchronous iterator over `source`, best used as ``async with to_async_iter(source) as items:``."""
    check_source(source, "to_async_iter")
    return AsyncItems(source, maxsize)


class Buffer(abc.ObserverBase[T]):
    """What stands between a subscription and its iterator. It knows nothing of the iterator, so that can go."""

    def __init__(self, maxsize: int, wake: Callable[[], object]) -> None:
        self.gate = Gate(maxsize)
        self.ended = False
        self.error: BaseException | None = None
        self._wake = wake

    def on_next(self, value: T) -> None:
        self.gate.waiting.append(value)
        self._wake()

    def on_error(self, error: Exception) -> None:
        self.hear(error)

    def hear(self, error: BaseException) -> bool:
        """Take an error that nobody else has handled; whether the stream is still read."""
        if self.ended:
            return False
        self.error = error
        self.on_completed()
        return True

    def on_completed(self) -> None:
        self.ended = True
        self._wake()

    def close(self) -> None:
        """Forget what waits, and let the source see that nobody is behind."""
        self.ended = True
        self.gate.waiting.clear()
        self.gate.open()
        self._wake()

    def result(self) -> None:
        """Raise how the stream ended, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error


class Items(Iterator[T], Generic[T]):
    """The items of a stream, for ``for``; the stream runs on rxllm's own loop meanwhile."""

    _subscription: abc.DisposableBase | None = None

    def __init__(self, source: Observable[T], maxsize: int = 64) -> None:
        self._source = source
        self._news = threading.Event()
        self._buffer: Buffer[T] = Buffer(maxsize, self._news.set)

    def __next__(self) -> T:
        buffer = self._buffer
        if self._subscription is None:
            with on_portal() as portal, read_by(buffer.gate, buffer.hear):
                warn_if_blocking("a plain for stops", "async for", stacklevel=3)
                self._subscription = self._source.subscribe(buffer, scheduler=LoopScheduler(portal.loop))
        try:
            while not buffer.gate.waiting:
                if buffer.ended:
                    buffer.result()
                    raise StopIteration
                self._news.wait(timeout=3600)
                self._news.clear()
        except BaseException:
            self.close()
            raise
        return cast(T, buffer.gate.take())

    def close(self) -> None:
        """Stop: nothing more comes, and the stream is disposed."""
        subscription, self._subscription = self._subscription or _NOTHING, _NOTHING
        subscription.dispose()
        self._buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._subscription is not None:
            self.close()


class AsyncItems(AsyncIterator[T], Generic[T]):
    """The items of a stream, for ``async for``."""

    _subscription: abc.DisposableBase | None = None

    def __init__(self, source: Observable[T], maxsize: int = 64) -> None:
        self._source = source
        self._news = _News()
        self._buffer: Buffer[T] = Buffer(maxsize, self._news.set)

    async def __anext__(self) -> T:
        buffer = self._buffer
        if self._subscription is None:
            loop = self._news.loop = asyncio.get_running_loop()
            with read_by(buffer.gate, buffer.hear):
                self._subscription = self._source.subscribe(buffer, scheduler=LoopScheduler(loop))
        try:
            while not buffer.gate.waiting:
                if buffer.ended:
                    buffer.result()
                    raise StopAsyncIteration
                await self._news.wait()
        except BaseException:
            self._close()
            raise
        return cast(T, buffer.gate.take())

    async def aclose(self) -> None:
        """Stop: nothing more comes, and the stream is disposed."""
        self._close()

    def _close(self) -> None:
        subscription, self._subscription = self._subscription or _NOTHING, _NOTHING
        subscription.dispose()
        self._buffer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._close()

    def __del__(self) -> None:
        if self._subscription is not None:
            self._close()


class _News:
    """An ``asyncio.Event`` that may be set from any thread, before its loop is known too."""

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
