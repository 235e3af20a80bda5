"""Call a check that the user has written, and read its verdict.

=========================  ===========================================
verdict                    outcome
=========================  ===========================================
None, True                 the check passes
False                      the guard trips
non-empty text             the guard trips, and the text is the reason
any other value            the stream ends with ``guard_failed``
=========================  ===========================================

A check returns its verdict, or an awaitable or an Observable that produces it. Only the last item of an Observable
counts. An empty Observable counts as None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from reactivex import Observable, abc
from reactivex import operators as rx_ops
from reactivex.disposable import CompositeDisposable, Disposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.runtime._clock import LoopScheduler
from rxllm.runtime._pump import Pump, pumped
from rxllm.runtime._stream import Stream
from rxllm.values import StreamError
from rxllm.values.argument_checks import shown
from rxllm.values.responses import shorten

_LONGEST_REASON = 400


def result_of(function: Callable[[], Any]) -> Stream[Any]:
    """Return a stream that emits the result of ``function()``."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        value = function()
        if isinstance(value, Observable):
            value = cast(Observable[Any], value).pipe(rx_ops.last_or_default(None))
            if not isinstance(scheduler, LoopScheduler | None):  # virtual time or another clock
                return value.subscribe(observer, scheduler=scheduler)
            value = Stream.of(value)
        elif not inspect.isawaitable(value):
            observer.on_next(value)
            observer.on_completed()
            return Disposable()
        elif isinstance(scheduler, VirtualTimeScheduler):
            _close_unstarted(value)
            message = "an async function needs an event loop; under virtual time, use a plain function or an Observable"
            observer.on_error(TypeError(message))
            return Disposable()

        async def body(pump: Pump[Any]) -> None:
            pump.emit((await value,))

        # The pump emits on the call's loop, in the call's context.
        subscription = pumped(body).subscribe(observer, scheduler=scheduler)
        return CompositeDisposable(subscription, Disposable(partial(_close_unstarted, value)))

    return Stream(subscribe)


def _close_unstarted(value: Any) -> None:
    # Close a coroutine that has not started, because Python would otherwise warn that it was never awaited.
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()


def verdict_error(check: Any, verdict: Any) -> StreamError | None:
    """Return the error for the verdict of `check`, or None if the check passed."""
    name = _name_of(check)
    if verdict is None or verdict is True:
        return None
    if verdict is False:
        return StreamError("guard_tripped", f"the guard {name!r} tripped", metadata={"guard": name})
    if isinstance(verdict, str) and verdict:
        reason = shorten(verdict, _LONGEST_REASON)
        metadata = {"guard": name, "reason": reason}
        return StreamError("guard_tripped", f"the guard {name!r} tripped: {reason}", metadata=metadata)
    remedy = "to pass, return None or True; to stop the stream, return False or the reason as a string"
    message = f"the guard {name!r} returned {shown(verdict)}, which is not a verdict; {remedy}"
    return StreamError("guard_failed", message, metadata={"guard": name})


def check_failed(check: Any, error: Exception) -> StreamError:
    """Return the error for a check that raised an exception."""
    name = _name_of(check)
    description = shorten(f"{type(error).__name__}: {error}", _LONGEST_REASON)
    failure = StreamError("guard_failed", f"the guard {name!r} raised {description}", metadata={"guard": name})
    failure.__cause__ = error
    return failure


def check_late(check: Any, seconds: float) -> StreamError:
    """Return the error for a check that took longer than `seconds`."""
    name = _name_of(check)
    message = f"the guard {name!r} took longer than {seconds:g} s (max_lag)"
    return StreamError("guard_late", message, metadata={"guard": name, "seconds": seconds})


def _name_of(check: Any) -> str:
    while isinstance(check, partial):
        check = cast(Any, check).func
    return getattr(check, "__name__", None) or type(check).__name__
