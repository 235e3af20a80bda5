"""End a subscription whatever its subscriber raises, and report errors that nobody has handled.

==========================================  ===========================================  ============================
what is raised                              where it goes                                if nobody waits for the end
==========================================  ===========================================  ============================
an ``Exception`` in the stream              ``on_error``, through the operators          the same
an ``Exception`` that no ``on_error`` took  to whoever waits for the stream's end        the loop's handler, or the log
``SystemExit``, ``KeyboardInterrupt``,      to whoever waits, past all operators         the same, and ``on_error``
outcomes of pytest, ...
==========================================  ===========================================  ============================

An ``Exception`` is a failure of the stream. Everything else that can be raised is meant for the program: no operator
may retry it or tell it to a model. ``run``, ``await`` and the iterators wait; what they wait for is raised there. An
operator that raises where there is no ``on_error`` left to call, in ``on_completed``, would otherwise leave them
waiting for ever.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from reactivex import abc

from rxllm.runtime._portal import call_loop

T = TypeVar("T")

ErrorListener = Callable[[BaseException], bool]
"""Takes an error, and returns whether somebody still waits for it."""

error_listener: contextvars.ContextVar[ErrorListener | None] = contextvars.ContextVar(
    "rxllm_error_listener", default=None
)
"""The listener of whoever waits for the end of what is subscribed to here."""


def conclude(observer: abc.ObserverBase[T], items: Iterable[T] = ()) -> None:
    """Emit `items`, then complete.

    For operators whose source has ended: its pump is gone, so a subscriber's exception is passed to ``on_error`` here.
    """
    try:
        for item in items:
            observer.on_next(item)
    except BaseException as error:
        fail(observer, error)
    else:
        observer.on_completed()


def fail(observer: abc.ObserverBase[Any], error: BaseException) -> None:
    """End a subscription with `error`; what its handler raises is reported."""
    if isinstance(error, Exception):
        try:
            observer.on_error(error)
        except BaseException as unhandled:
            report_unheard(unhandled)
    elif not _is_taken(error):
        _log(error)
        with contextlib.suppress(BaseException):  # the operators must still release what they hold
            observer.on_error(cast(Exception, error))


def report_unheard(error: BaseException) -> None:
    """Pass an error that no subscriber has handled to whoever waits for the end, or else to the call's loop."""
    if not _is_taken(error):
        _log(error)


def _is_taken(error: BaseException) -> bool:
    listener = error_listener.get()
    return listener is not None and listener(error)


def _log(error: BaseException) -> None:
    loop = call_loop()
    if loop.get_exception_handler() is None:  # asyncio's own would log it too
        logging.getLogger("rxllm").error("nobody handled this error: %r", error, exc_info=error)
    else:
        loop.call_exception_handler({"message": "rxllm: nobody handled this error", "exception": error})
