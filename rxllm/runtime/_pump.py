"""The pump: an asyncio task that drives one subscription.

============================  =======================================================================================
state                         effect of disposing
============================  =======================================================================================
not started yet               the body never runs
held while connecting         the task is cancelled at `release`, or after `HOLD_SECONDS` if the transport never reports
                              that it has connected; cancelling a connect would cost httpcore a pool slot
running                       the task is cancelled once, after `grace` seconds
delivering to the subscriber  the task is not cancelled; `emit` returns False, and the body then returns
held while closing            the task is cancelled only if the body has not ended after `HOLD_SECONDS`
============================  =======================================================================================

A pump can be disposed from any thread. `dispose` returns at once, and nothing is delivered afterwards.

The body closes its resources before it returns. If the subscriber raises an exception, the exception terminates the
body, and is delivered once to the subscriber's own ``on_error``. If the subscriber has none, ``_unhandled`` handles
the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from reactivex import abc

from rxllm.runtime._clock import loop_of
from rxllm.runtime._stream import Stream
from rxllm.runtime._unhandled import fail, report_unheard
from rxllm.runtime.context_variables import current_gate, current_place
from rxllm.runtime.portal import call_context, live_on, running_loop, start_on
from rxllm.values import StreamError
from rxllm.values.argument_checks import check

T = TypeVar("T")
Body = Callable[["Pump[T]"], Awaitable[None]]

HOLD_SECONDS = 15.0
"""The maximum number of seconds for which a held pump delays a cancellation."""


def pumped(body: Body[T]) -> Stream[T]:
    """Return a Stream that runs ``body(pump)`` each time it is subscribed to."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        pump = Pump(observer, body, loop_of(scheduler))
        pump.start()
        return pump

    return Stream(subscribe)


def from_async_iter(factory: Callable[[], AsyncIterable[T]]) -> Stream[T]:
    """Return a Stream that emits the items of ``factory()``.

    Each subscription calls `factory` once. When the subscription ends, the async iterator is closed.

    >>> async def count():
    ...     yield 1
    ...     yield 2
    >>> list(from_async_iter(count))
    [1, 2]

    Raises ``ValidationError("invalid_option")`` if `factory` is not a function.
    """
    remedy = (
        "a function that returns a new async iterator, such as an async generator function "
        "(the function itself, not its result)"
    )
    check("factory", factory, callable(factory), remedy)

    async def body(pump: Pump[T]) -> None:
        items: Any = factory()
        async with aclosing(items) if hasattr(items, "aclose") else contextlib.nullcontext():
            async for item in items:
                if not pump.emit((item,)):
                    return
                await pump.ready()

    return pumped(body)


class Pump(abc.DisposableBase, Generic[T]):
    """The task that drives one subscription."""

    def __init__(self, observer: abc.ObserverBase[T], body: Body[T], loop: asyncio.AbstractEventLoop) -> None:
        self.disposed = False
        self.emitted = 0
        self.grace = 0.0
        self.read = current_place.get().is_read
        self._observer = observer
        self._body = body
        self._loop = loop
        self._gate = current_gate()
        self._task: asyncio.Task[None] | None = None
        self._holding = False
        self._hold_timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        self._delivering = False  # stays True if the subscriber raises an exception

    def start(self) -> None:
        context = call_context()
        if running_loop() is self._loop:
            context.run(self._begin)
        else:
            start_on(self._loop, self._begin, context)

    def emit(self, items: Sequence[T]) -> bool:
        """Deliver `items` to the subscriber. Return False if the subscription has been disposed."""
        on_next = self._observer.on_next
        self.emitted += len(items)
        self._delivering = True
        for item in items:
            if self.disposed:
                break
            on_next(item)
        self._delivering = False
        return not self.disposed

    @property
    def refused(self) -> bool:
        """Whether the current exception was raised by the subscriber."""
        return self._delivering

    @property
    def behind(self) -> bool:
        """Whether the consumer is behind, so that `ready` would wait."""
        return self._gate is not None and self._gate.full

    async def ready(self) -> None:
        if self._gate is not None and self._gate.full:
            await self._gate.wait()

    @contextlib.contextmanager
    def holding(self) -> Generator[None]:
        """Delay cancellation until the ``with`` block ends, but by at most `HOLD_SECONDS`.

        Check `disposed` afterwards.
        """
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def hold(self) -> None:
        """Delay cancellation until `release` is called or the pump's body ends, but by at most `HOLD_SECONDS`."""
        self._holding = True

    def release(self) -> None:
        """Stop delaying cancellation. If the pump was disposed in the meantime, cancel the task."""
        self._holding = False
        if self.disposed:
            self._cancel()

    def interrupt(self) -> bool:
        """Cancel the task, unless the pump is held, is delivering items or has been disposed.

        Return whether the task was cancelled.
        """
        if self._task is None or self._holding or self.disposed or self._delivering:
            return False
        return self._task.cancel()

    def dispose(self) -> None:
        if self.disposed:
            return
        self.disposed = True
        if running_loop() is self._loop:
            self._cancel()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so its task has ended too
                self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        if not self.disposed:
            self._task = self._loop.create_task(self._run(), name="rxllm-call")
            live = live_on(self._loop)
            if live is not None:
                live.calls.add(self)
                self._task.add_done_callback(lambda task: live.calls.discard(self))

    def _cancel(self) -> None:
        if self._task is None or self._cancelled or self._delivering:
            return
        seconds = HOLD_SECONDS if self._holding else self.grace
        if seconds:
            self._hold_timer = self._hold_timer or self._loop.call_later(seconds, self._end_hold)
            return
        self._cancelled = True
        self._task.cancel()

    def _end_hold(self) -> None:
        self.grace = 0.0
        self.release()

    async def _run(self) -> None:
        try:
            await self._body(self)
        except asyncio.CancelledError:
            if not self.disposed:  # the loop is ending, and has cancelled its tasks
                self._finish(StreamError("cancelled", "the event loop ended the call"))
                raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not self._is_running():  # the task outlived its loop
                raise
            self._finish(error)
        else:
            self._finish(None)
        finally:
            if self._hold_timer is not None:  # a pending timer would keep the subscriber in memory
                self._hold_timer.cancel()

    def _is_running(self) -> bool:
        return running_loop() is self._loop and asyncio.current_task() is self._task

    def _finish(self, error: BaseException | None) -> None:
        if error is None:
            try:
                self._observer.on_completed()
            except BaseException as unhandled:
                report_unheard(unhandled)
        elif not self.disposed:
            fail(self._observer, error)
        elif self.refused or not isinstance(error, Exception):
            report_unheard(error)
