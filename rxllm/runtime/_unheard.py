"""Errors that have nowhere to go.

An ``Exception`` is a failure of the stream and travels through the operators, as ``on_error``. Whatever else is raised
(``SystemExit``, ``KeyboardInterrupt``, the outcomes of pytest) is meant for the program: no operator may retry it or
tell it to a model, so it goes straight to whoever waits for the stream and is raised there. Where nobody waits it is
logged once.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, cast

from reactivex import abc

from rxllm.runtime._pacing import is_heard
from rxllm.runtime._portal import call_loop


def fail(observer: abc.ObserverBase[Any], error: BaseException) -> None:
    """End a subscription with `error`; what its handler raises is reported."""
    if isinstance(error, Exception):
        try:
            observer.on_error(error)
        except BaseException as unheard:
            report_unheard(unheard)
    elif not is_heard(error):
        _log(error)
        with contextlib.suppress(BaseException):  # the operators must still let go of what they hold
            observer.on_error(cast(Exception, error))


def report_unheard(error: BaseException) -> None:
    """Tell whoever waits for the end, or else the call's loop, of an error that no subscriber handled."""
    if not is_heard(error):
        _log(error)


def _log(error: BaseException) -> None:
    loop = call_loop()
    if loop.get_exception_handler() is None:  # asyncio's own would log it too
        logging.getLogger("rxllm").error("nobody handled this error: %r", error, exc_info=error)
    else:
        loop.call_exception_handler({"message": "rxllm: nobody handled this error", "exception": error})
