"""Reactivex schedulers that run timers on an event loop.

==================  ====================================================  ==========================================
scheduler           when an action without a due time runs                used by
==================  ====================================================  ==========================================
`LoopScheduler`     soon, on the loop                                     ``run``, ``await``, and rxllm's operators
`PacedScheduler`    soon, on the loop, but not while the reader's gate    iterators
                    is full
`CallScheduler`     at once, on the caller's thread                       ``Stream.subscribe`` without a scheduler
==================  ====================================================  ==========================================

They can be used from any thread. Their timers run even while a gate is full.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

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
    """Runs actions on `loop` or, if `loop` is None, on the portal's loop. Any thread can use the scheduler."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None, fail: Callable[[BaseException], object] = report_unheard
    ) -> None:
        super().__init__()
        self.chosen = loop
        self._fail = fail  # called with every exception that an action raises

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self.chosen or portal().loop

    @cached_property
    def _timers(self) -> set[asyncio.TimerHandle]:
        live = live_on(self._loop)
        return set() if live is None else live.timers

    def plain(self) -> LoopScheduler:
        """Return a plain `LoopScheduler` for the same loop. rxllm's own operators use it."""
        return self if type(self) is LoopScheduler else LoopScheduler(self._loop, self._fail)

    @property
    def runs_here(self) -> bool:
        """Whether the scheduler's loop is running on this thread."""
        return running_loop() is self._loop

    @property
    def has_ended(self) -> bool:
        """Whether the loop has ended. If it has, nothing can run on it."""
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
        # Remove the timer from the loop, which would otherwise keep the timer's action in memory.
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
    """A scheduler that makes sources such as ``range`` wait while an iterator's gate is full."""

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
    """A scheduler like reactivex's default one, except that its timers run on the event loop."""

    def __init__(self, fail: Callable[[BaseException], object] = report_unheard) -> None:
        super().__init__(chosen_loop(), fail)

    @cached_property
    def _timers(self) -> set[asyncio.TimerHandle]:
        return set()  # exit does not wait for these timers, because an `interval` never ends

    def schedule(self, action: typing.ScheduledAction[S], state: S | None = None) -> abc.DisposableBase:
        return CurrentThreadScheduler.singleton().schedule(action, state)


def clock(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """Return the scheduler that a subscription's timers should use."""
    if scheduler is None:
        return LoopScheduler(call_loop())
    return scheduler.plain() if isinstance(scheduler, LoopScheduler) else scheduler


def schedule_in(place: SerialDisposable, scheduler: abc.SchedulerBase, action: typing.ScheduledAction[Any]) -> None:
    """Schedule `action` in place of the one that `place` holds.

    The place is taken before the action is scheduled. If two threads do this at once, the action of the last one to
    take the place runs. In the other order, a thread could cancel an action that was scheduled after its own had run.
    """
    timer = place.disposable = SingleAssignmentDisposable()
    timer.disposable = scheduler.schedule(action)


def loop_of(scheduler: abc.SchedulerBase | None) -> asyncio.AbstractEventLoop:
    """Return the event loop on which a call that has this `scheduler` should run."""
    chosen = scheduler.chosen if isinstance(scheduler, LoopScheduler) else None
    return chosen if chosen is not None and not chosen.is_closed() else call_loop()


def unpaced(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase | None:
    """Replace an iterator's scheduler with one that never waits."""
    return scheduler.plain() if isinstance(scheduler, PacedScheduler) else scheduler


def stopwatch(scheduler: abc.SchedulerBase | None) -> Callable[[], float]:
    """Return a function that returns the current time of `scheduler`, in seconds."""
    if scheduler is None or isinstance(scheduler, LoopScheduler):
        return time.perf_counter
    return lambda: scheduler.now.timestamp()
