"""End subscriptions, and report errors that no subscriber has handled.

==========================================  ===========================================  ============================
exception                                   receiver                                     if no caller waits
==========================================  ===========================================  ============================
an ``Exception`` in the stream              ``on_error``, through the operators          the same
an ``Exception`` that no ``on_error`` took  the caller that waits for the stream's end   the loop's handler, or the log
``SystemExit``, ``KeyboardInterrupt``,      the waiting caller, past all operators       the same, and ``on_error``
outcomes of pytest, ...
==========================================  ===========================================  ============================

An ``Exception`` is a failure of the stream. Any other exception is meant for the program: no operator may retry it or
pass it to a model. The callers that wait are ``run``, ``await`` and the iterators, which raise the exception. Otherwise
they would wait for ever if an operator raised in ``on_completed``, where no ``on_error`` is left to call.

The log shows the user's frames of such an error, or all frames if the logger ``rxllm`` is at DEBUG; a failed call takes
one line. Logging leaves ``error.__traceback__`` whole. An error raised to the caller has the same frames as the log.
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
"""The folders of rxllm and reactivex."""


def conclude(observer: abc.ObserverBase[T], items: Iterable[T] = ()) -> None:
    """Emit `items`, then complete.

    Operators call it once their source has ended: no pump is left to pass a subscriber's exception to ``on_error``.
    """
    try:
        for item in items:
            observer.on_next(item)
    except BaseException as error:
        fail(observer, error)
    else:
        observer.on_completed()


def fail(observer: abc.ObserverBase[Any], error: BaseException) -> None:
    """End a subscription with `error`, and report any exception that its handler raises."""
    if isinstance(error, Exception):
        try:
            observer.on_error(error)
        except BaseException as unhandled:
            report_unheard(unhandled)
    elif not _pass_to_caller(error):
        _log(error)
        with contextlib.suppress(BaseException):  # the operators must still release what they hold
            observer.on_error(cast(Exception, error))


def report_unheard(error: BaseException) -> None:
    """Pass an error that no subscriber has handled to the waiting caller, or report it on the call's loop."""
    if not _pass_to_caller(error):
        _log(error)


def _pass_to_caller(error: BaseException) -> bool:
    listener = current_reader.get().on_unhandled
    return listener is not None and listener(error)


def _log(error: BaseException) -> None:
    loop = call_loop()
    if loop.get_exception_handler() is None:  # asyncio's default handler would log it too
        remedy = "give subscribe() an on_error that handles it, or use run(), await or for"
        log.error("unhandled error: %r; %s", error, remedy, exc_info=shown_frames(error))
    else:
        loop.call_exception_handler({"message": "rxllm: unhandled error", "exception": error})


def shown_frames(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """Return the `exc_info` to log for `error`: with the user's frames, or with all frames at DEBUG."""
    user_frames = _user_frames(error.__traceback__)
    is_failed_call = isinstance(error, LLMError) and error.reason != "unknown"
    if log.isEnabledFor(logging.DEBUG) or (user_frames is None and not is_failed_call):
        return type(error), error, error.__traceback__
    return (type(error), error, user_frames) if user_frames is not None else None


def log_hidden(error: LLMError, text: str, *arguments: object) -> None:
    """Log an error that its client will not see, with its traceback, unless it has been logged."""
    if error.is_logged:
        return
    error.is_logged = True
    if error.reason in ("cancelled", "denied"):  # these ends are intended
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
    """Return the user's frames of `trace`, and all frames below the last of them; None if there are none.

    The frame of an rxllm ``__getattr__`` is left out: it only words the error for a misspelt attribute.
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
