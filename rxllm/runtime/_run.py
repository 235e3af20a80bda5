"""Get the last item of a stream: blocking, with `run`, and awaited, with `last`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from reactivex import Observable, abc, empty

from rxllm.runtime._back_pressure import read_by
from rxllm.runtime._clock import LoopScheduler
from rxllm.runtime._endings import Endings
from rxllm.runtime._portal import awaiting_loop, on_portal, running_loop, warn_if_blocking
from rxllm.runtime._stream_arguments import check_source
from rxllm.runtime._unhandled import shorten_traceback

T = TypeVar("T")


def run(source: Observable[T], scheduler: abc.SchedulerBase | None = None) -> T:
    """Subscribe to `source`, wait until it ends, and return its last item.

    Ctrl-C and a notebook's stop button dispose the subscription, which closes its connections. Works in a script, in a
    thread and in a notebook; on a thread whose event loop is running it warns, because that loop is blocked meanwhile.
    Raises the stream's error, ``SequenceContainsNoElementsError`` if there was no item, ``RuntimeError`` on rxllm's own
    loop, and ``ValidationError("invalid_option")`` if `source` is not an Observable.
    """
    check_source(source, "run")
    source = getattr(source, "_whole", source)
    with on_portal() as portal:
        warn_if_blocking("run() stops", "await stream", stacklevel=4)
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
    """Return the last item of `source`. Cancelling the awaiting task disposes the subscription.

    Raises ``EngineError("wrong_loop")`` under trio, and wherever else no loop of asyncio runs.
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
    del source  # it has only described the call, and with thousands of calls the garbage collector feels it
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
    """Keeps the last item of a subscription, or its error, and calls `wake` at the end."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.awaited = True
        self.endings = Endings()
        self._wake = wake
        self._last: tuple[T] | None = None
        self._error: BaseException | None = None

    def subscribe_to(self, source: Observable[T], scheduler: abc.SchedulerBase) -> abc.DisposableBase:
        with read_by(
            None, self.take_error, self.endings
        ):  # in a tool, the reader of the tool's own stream sets no pace here
            return source.subscribe(self, scheduler=scheduler)

    def on_next(self, value: T) -> None:
        self._last = (value,)

    def on_error(self, error: Exception) -> None:
        self.take_error(error)

    def take_error(self, error: BaseException) -> bool:
        """Keep an error that nobody else has handled, and return whether somebody still waits for it."""
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
        """Return the error, once: a waiter that kept it would be a cycle of error, frame and waiter."""
        error, self._error = cast(BaseException, self._error), None
        shorten_traceback(error)
        return error

    def result(self) -> T:
        """Return the last item."""
        return self._last[0] if self._last is not None else empty().run()  # reactivex's own error
