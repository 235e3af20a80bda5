"""End subscriptions, and report errors that no subscriber has handled.

=====================================  ==================================  ==========================================
exception                              destination if a caller is waiting  destination if no caller is waiting
=====================================  ==================================  ==========================================
an ``Exception`` in the stream         ``on_error``, through the           ``on_error``, through the operators
                                       operators
an ``Exception`` that no ``on_error``  the waiting caller                  the event loop's exception handler, or
has handled                                                                the log
``SystemExit``, ``KeyboardInterrupt``  the waiting caller, without         the event loop's exception handler, or
or a pytest outcome such as a skip     passing through the operators       the log, and then ``on_error``
=====================================  ==================================  ==========================================

An ``Exception`` means that the stream has failed. Any other exception must reach the program, so operators must not
retry it. A caller is waiting if it uses ``run``, ``await`` or an iterator; these raise the exception. Unhandled errors
are passed to the caller directly, because ``on_error`` cannot be called after ``on_completed``.

The log shows only the user's frames or, at DEBUG level, all frames. If there are no user frames, a failed call is
logged in one line, and any other error is logged with all its frames. Errors that are raised keep only the frames that
the log would show.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar, cast

import reactivex
from reactivex import abc

from rxllm.runtime.context_variables import current_reader
from rxllm.runtime.portal import call_loop
from rxllm.values import LLMError, ToolError

T = TypeVar("T")

log = logging.getLogger("rxllm")

_INTERNAL = tuple(os.path.join(os.path.dirname(file), "") for file in (os.path.dirname(__file__), reactivex.__file__))
"""The directories of rxllm and reactivex. Frames from code in these directories do not count as the user's frames."""


def conclude(observer: abc.ObserverBase[T], items: Iterable[T] = ()) -> None:
    """Emit `items`, and then complete. If the subscriber raises an exception, pass it to ``on_error``."""
    try:
        for item in items:
            observer.on_next(item)
    except BaseException as error:
        fail(observer, error)
    else:
        observer.on_completed()


def fail(observer: abc.ObserverBase[Any], error: BaseException) -> None:
    """End the stream with `error`. If ``on_error`` raises an exception, report it."""
    if isinstance(error, Exception):
        try:
            observer.on_error(error)
        except BaseException as unhandled:
            report_unheard(unhandled)
    elif not _pass_to_caller(error):
        _log(error)
        with contextlib.suppress(BaseException):  # this makes the operators release their resources
            observer.on_error(cast(Exception, error))


def report_unheard(error: BaseException) -> None:
    """Pass an unhandled error to the caller that is waiting. If no caller is waiting, log the error."""
    if not _pass_to_caller(error):
        _log(error)


def _pass_to_caller(error: BaseException) -> bool:
    listener = current_reader.get().on_unhandled
    return listener is not None and listener(error)


def _log(error: BaseException) -> None:
    loop = call_loop()
    if loop.get_exception_handler() is None:  # asyncio's default handler would log it again
        remedy = "pass an on_error to subscribe(), or read the stream with run(), await or for"
        log.error("unhandled error: %r; %s", error, remedy, exc_info=shown_frames(error))
    else:
        loop.call_exception_handler({"message": "rxllm: unhandled error", "exception": error})


def shown_frames(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """Return the `exc_info` of `error` with only the frames to log, or None if there are none."""
    user_frames = _user_frames(error.__traceback__)
    is_failed_call = isinstance(error, LLMError) and error.reason != "unknown"
    if log.isEnabledFor(logging.DEBUG) or (user_frames is None and not is_failed_call):
        return type(error), error, error.__traceback__
    return (type(error), error, user_frames) if user_frames is not None else None


def log_hidden(error: LLMError, text: str, *arguments: object) -> None:
    """Log an error that the client will not see. If the error has already been logged, do nothing."""
    if error.is_logged:
        return
    error.is_logged = True
    if error.reason in ("cancelled", "denied"):  # the call was ended deliberately
        level = logging.DEBUG
    else:
        level = logging.WARNING if isinstance(error, ToolError) else logging.ERROR
    log.log(level, f"{text}: %r", *arguments, error, exc_info=(type(error), error, error.__traceback__))


def shorten_traceback(error: BaseException) -> None:
    """Reduce the tracebacks of `error` and its causes to the frames that `shown_frames` returns."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        shown = shown_frames(cause)
        cause.__traceback__ = None if shown is None else shown[2]
        cause = cause.__cause__


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the user's frames in `trace`, and all frames deeper than the innermost user frame.

    Return None if there are no user frames. The frame of rxllm's own ``__getattr__`` is left out, because it only
    raises the error for a misspelt attribute.
    """
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    is_below = True
    for frame in reversed(frames):
        is_user_frame = not frame.tb_frame.f_code.co_filename.startswith(_INTERNAL)
        if is_user_frame or (is_below and frame.tb_frame.f_code.co_name != "__getattr__"):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        is_below = is_below and not is_user_frame
    return None if is_below else kept
