"""Time on an event loop: reactivex schedulers that any thread may use, and clocks for operators.

==================  ==========================================  ============================================
scheduler           an action without a due time                used by
==================  ==========================================  ============================================
`LoopScheduler`     runs soon, on the loop                      ``run``, ``await``, and rxllm's operators
`PacedScheduler`    the same, but waits while the gate is full  iterators
`CallScheduler`     runs at once, on the caller's thread        ``subscribe`` of a Stream without a scheduler
==================  ==========================================  ============================================

In all three, timers run on the loop and do not wait for the gate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from reactivex import abc, typing
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler
from reactivex.scheduler.periodicscheduler import PeriodicScheduler

from rxllm.runtime._unhandled import report_unheard
from rxllm.runtime.back_pressure import Gate
from rxllm.runtime.context_variables import current_gate
from rxllm.runtime.portal import call_loop, chosen_loop, has_ended, live_on, portal, running_loop, start_on

S = TypeVar("S")


class LoopScheduler(PeriodicScheduler):
    """Runs actions on `loop`, or on the portal's loop, which is started on first use.

    Unlike reactivex's schedulers, it never blocks in dispose, and any thread may call it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None, fail: Callable[[BaseException], object] = report_unheard
    ) -> None:
        super().__init__()
        self.chosen = loop
        self._fail = fail  # receives what an action raises

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self.chosen or portal().loop

    @cached_property
    def _timers(self) -> set[asyncio.TimerHandle]:
        live = live_on(self._loop)
        return set() if live is None else live.timers

    def plain(self) -> LoopScheduler:
        """Return the plain `LoopScheduler` that rxllm's own operators use instead."""
        return self if type(self) is LoopScheduler else LoopScheduler(self._loop, self._fail)

    @property
    def runs_here(self) -> bool:
        """Whether its loop runs on this thread."""
        return running_loop() is self._loop

    @property
    def has_ended(self) -> bool:
        """Whether its loop has ended. Nothing can be scheduled then, and dispose has nothing to cancel."""
        return has_ended(self._loop)

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
                    self._fail(error)

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
        # A disposed timer that stayed in the loop would keep its action in memory until it was due.
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


class PacedScheduler(LoopScheduler):
    """The scheduler of an iterator: sources that schedule each item, such as ``range``, wait while its gate is full.

    Behind an operator that has its own gate, they wait for both gates.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: Gate) -> None:
        super().__init__(loop)
        self._gate = gate

    def schedule(self, action: typing.ScheduledAction[S], state: S | None = None) -> abc.DisposableBase:
        gate = current_gate() or self._gate
        if not gate.full:
            return super().schedule(action, state)
        pending = SingleAssignmentDisposable()

        def resume() -> None:
            if not pending.is_disposed:
                pending.disposable = self.schedule_relative(0.0, action, state)

        gate.when_open(resume)
        return pending


class CallScheduler(LoopScheduler):
    """Acts as reactivex does without a scheduler, but runs timers on the loop instead of on one thread each."""

    def __init__(self, fail: Callable[[BaseException], object] = report_unheard) -> None:
        super().__init__(chosen_loop(), fail)

    @cached_property
    def _timers(self) -> set[asyncio.TimerHandle]:
        return set()  # the exit does not wait for these timers, since an `interval` has no end

    def schedule(self, action: typing.ScheduledAction[S], state: S | None = None) -> abc.DisposableBase:
        return CurrentThreadScheduler.singleton().schedule(action, state)


def clock(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """Return the scheduler that times a subscription: its own, or one on the call's loop."""
    if scheduler is None:
        return LoopScheduler(call_loop())
    return scheduler.plain() if isinstance(scheduler, LoopScheduler) else scheduler


def loop_of(scheduler: abc.SchedulerBase | None) -> asyncio.AbstractEventLoop:
    """Return the loop of a call that is subscribed to with `scheduler`; on another thread, the subscriber's loop."""
    chosen = scheduler.chosen if isinstance(scheduler, LoopScheduler) else None
    return chosen if chosen is not None and not chosen.is_closed() else call_loop()


def unpaced(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase | None:
    """Return `scheduler`, or, for an iterator's scheduler, one that does not wait for the reader."""
    return scheduler.plain() if isinstance(scheduler, PacedScheduler) else scheduler


def stopwatch(scheduler: abc.SchedulerBase | None) -> Callable[[], float]:
    """Return a function that returns the scheduler's time in seconds: monotonic on a loop and without a scheduler."""
    if scheduler is None or isinstance(scheduler, LoopScheduler):
        return time.perf_counter
    return lambda: scheduler.now.timestamp()
