"""Time on an event loop: a reactivex scheduler that any thread may use, and clocks for operators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from reactivex import abc, typing
from reactivex.disposable import Disposable, SerialDisposable
from reactivex.scheduler.periodicscheduler import PeriodicScheduler

from rxllm.runtime._portal import call_loop, live_on, running_loop, start_on
from rxllm.runtime._unhandled import report_unheard

S = TypeVar("S")


class LoopScheduler(PeriodicScheduler):
    """Runs actions on `loop`. Unlike reactivex's own it never blocks in dispose, and every thread may call it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        live = live_on(loop)
        self._timers: set[asyncio.TimerHandle] = set() if live is None else live.timers

    @property
    def runs_here(self) -> bool:
        """Whether its loop runs on this thread."""
        return running_loop() is self._loop

    @property
    def has_ended(self) -> bool:
        """Whether its loop is closed: then nothing can be scheduled, and dispose has nothing to cancel."""
        return self._loop.is_closed()

    def schedule(self, action: typing.ScheduledAction[S], state: S | None = None) -> abc.DisposableBase:
        return self.schedule_relative(0.0, action, state)

    def schedule_relative(
        self, duetime: typing.RelativeTime, action: typing.ScheduledAction[S], state: S | None = None
    ) -> abc.DisposableBase:
        seconds = self.to_seconds(duetime)
        subscription = SerialDisposable()

        def invoke() -> None:
            if not subscription.is_disposed:
                try:
                    subscription.disposable = self.invoke_action(action, state=state)
                except BaseException as error:
                    report_unheard(error)

        def arm() -> None:
            if seconds > 0:

                def fire() -> None:
                    self._timers.discard(handle)
                    invoke()

                handle = self._loop.call_later(seconds, fire)
                self._timers.add(handle)
                subscription.disposable = Disposable(lambda: self._cancel(handle))
            else:
                self._loop.call_soon(invoke)

        if self.runs_here:
            arm()
        else:
            start_on(self._loop, arm)
        return subscription

    def _cancel(self, handle: asyncio.TimerHandle) -> None:
        # If a disposed timer were only ignored, what it refers to would stay in memory until its time.
        def cancel() -> None:
            handle.cancel()
            self._timers.discard(handle)

        if self.runs_here:
            cancel()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(cancel)

    def schedule_absolute(
        self, duetime: typing.AbsoluteTime, action: typing.ScheduledAction[S], state: S | None = None
    ) -> abc.DisposableBase:
        return self.schedule_relative(self.to_datetime(duetime) - self.now, action, state)


def clock(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """Return the scheduler that sets the time of a subscription: its own, else one on the loop of the call."""
    return scheduler if scheduler is not None else LoopScheduler(call_loop())


def stopwatch(scheduler: abc.SchedulerBase | None) -> Callable[[], float]:
    """Return a function that gives the scheduler's time in seconds; on a loop, or without one, it is monotonic."""
    if scheduler is None or isinstance(scheduler, LoopScheduler):
        return time.perf_counter
    return lambda: scheduler.now.timestamp()
