"""The end of a subscription that was made without a scheduler: on which loop it is called, and what it raises.

==============================  ==================================================================================
an item                         the subscriber
==============================  ==================================================================================
arrives on the loop that was    is called at once
running at the subscription
arrives on another thread       is called soon, on that loop; items keep their order
arrives, and no loop was        is called at once, on that thread
running, or that has ended
==============================  ==================================================================================

An exception that it raises where no source can catch it, in a timer or on its own loop, ends the subscription and is
passed to its ``on_error``, once.
"""

from __future__ import annotations

import contextlib
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar, cast

from reactivex import abc
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.observer import AutoDetachObserver

from rxllm.runtime._back_pressure import LIMIT
from rxllm.runtime._portal import chosen_loop, running_loop
from rxllm.runtime._unhandled import fail, report_unheard
from rxllm.values import StreamError

T = TypeVar("T")


class Subscriber(abc.ObserverBase[T], abc.DisposableBase):
    """Calls `observer` on the loop that runs here, if any; `subscription` is what a dispose or a failure disposes."""

    def __init__(self, observer: AutoDetachObserver[T]) -> None:
        self.subscription = SingleAssignmentDisposable()
        self._observer = observer
        self._emit = observer.on_next
        here = running_loop()
        self._loop = here if chosen_loop() is here else None  # where `run` blocks the loop, the call is on another
        self._thread = get_ident()  # where the loop runs; on 3.11, to ask for the running loop is a system call
        self._waiting: deque[Callable[[], None]] = deque()  # the first is being delivered

    @property
    def entry(self) -> abc.ObserverBase[T]:
        """Where its items go: with a loop to this object, and without one right to the observer."""
        return self._observer if self._loop is None else self

    def on_next(self, value: T) -> None:
        if (get_ident() == self._thread and not self._waiting) or self._is_here:
            self._emit(value)
        elif len(self._waiting) < LIMIT:
            self._hand_over(lambda: self._emit(value))
        else:
            self.subscription.dispose()
            fault = f"the source does not wait for the subscriber's loop: {LIMIT} items wait"
            remedy = "thin them out where they are pushed, as .throttle_first(0.1) does, or push them on the loop"
            self.on_error(StreamError("overflow", f"{fault}; {remedy}"))

    def on_error(self, error: Exception) -> None:
        if self._is_here:
            self._observer.on_error(error)
        else:
            self._hand_over(lambda: self._observer.on_error(error))

    def on_completed(self) -> None:
        if self._is_here:
            self._observer.on_completed()
        else:
            self._hand_over(self._observer.on_completed)

    def fail(self, error: BaseException) -> None:
        """End the subscription with `error`, which the subscriber has raised."""
        self.subscription.dispose()
        if self._observer.is_stopped:
            report_unheard(error)
        else:
            fail(self._observer, error)

    def dispose(self) -> None:
        self._observer.dispose()
        self.subscription.dispose()

    @property
    def _is_here(self) -> bool:
        return (get_ident() == self._thread and not self._waiting) or cast(AbstractEventLoop, self._loop).is_closed()

    def _hand_over(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)
        with contextlib.suppress(RuntimeError):  # the loop ends just now, and the subscription with it
            cast(AbstractEventLoop, self._loop).call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        try:
            self._waiting[0]()
        except BaseException as error:
            self.fail(error)
        finally:
            self._waiting.popleft()


def as_observer(on_next: Any, on_error: abc.OnError | None, on_completed: abc.OnCompleted | None) -> Any:
    """Return reactivex's observer of an observer or of three functions, any of which may be None."""
    if callable(getattr(on_next, "on_next", None)):
        return AutoDetachObserver(on_next.on_next, on_next.on_error, on_next.on_completed)
    return AutoDetachObserver(on_next, on_error, on_completed)
