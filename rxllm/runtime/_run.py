"""From a stream to its last item: blocking, and awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc, empty

from rxllm.runtime._back_pressure import read_by
from rxllm.runtime._clock import LoopScheduler
from rxllm.runtime._portal import on_portal, running_loop, warn_if_blocking
from rxllm.runtime._stream_arguments import check_source

T = TypeVar("T")


def run(source: Observable[T], scheduler: abc.SchedulerBase | None = None) -> T:
    """Subscribe to `source`, wait until it ends, and give its last item.

    Ctrl-C and a notebook's stop button dispose the subscription, which closes its connections. Works in a script, in a
    thread and in a notebook; on a thread whose event loop is running it warns, because that loop stands still
    meanwhile. Raises the stream's error, ``SequenceContainsNoElementsError`` if there was no item, and
    ``RuntimeError`` on rxllm's own loop; ``ValidationError("invalid_option")`` for what is no Observable.
    """
    check_source(source, "run")
    with on_portal() as portal:
        warn_if_blocking("run() stops", "await stream", stacklevel=4)
        ended = threading.Event()
        outcome: Outcome[T] = Outcome(ended.set)
        subscription = outcome.subscribe_to(source, scheduler or LoopScheduler(portal.loop))
    try:
        while not ended.wait(timeout=3600):
            pass
    finally:
        outcome.awaited = False
        subscription.dispose()
    return outcome.result()


async def last(source: Observable[T]) -> T:
    """The last item of `source`. Cancelling the awaiting task disposes the subscription."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wake() -> None:
        if running_loop() is loop:
            ended.set()
        else:
            loop.call_soon_threadsafe(ended.set)

    outcome: Outcome[T] = Outcome(wake)
    subscription = outcome.subscribe_to(source, LoopScheduler(loop))
    del source  # what only described the call: with thousands of them the garbage collector feels it
    try:
        await ended.wait()
    finally:
        outcome.awaited = False
        subscription.dispose()
    return outcome.result()


class Outcome(abc.ObserverBase[T]):
    """How a subscription ends, and the last item before; `wake` is called then."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.awaited = True
        self._wake = wake
        self._last: tuple[T] | None = None
        self._error: BaseException | None = None

    def subscribe_to(self, source: Observable[T], scheduler: abc.SchedulerBase) -> abc.DisposableBase:
        with read_by(None, self.hear):  # not by the reader of a stream whose tool makes this call
            return source.subscribe(self, scheduler=scheduler)

    def on_next(self, value: T) -> None:
        self._last = (value,)

    def on_error(self, error: Exception) -> None:
        self.hear(error)

    def hear(self, error: BaseException) -> bool:
        """Take an error that nobody else has handled; whether it is still awaited."""
        if self.awaited and self._error is None:
            self._error = error
            self._wake()
        return self.awaited

    def on_completed(self) -> None:
        self._wake()

    def result(self) -> T:
        """The last item. Raises the error instead, where there is one."""
        if self._error is None:
            return self._last[0] if self._last is not None else empty().run()  # reactivex's own error
        try:
            raise self._error
        finally:
            self._error = None  # no cycle of error, frame and outcome
