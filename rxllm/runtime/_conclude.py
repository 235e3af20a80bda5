"""The end of a stream that says something more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from reactivex import abc

from rxllm.runtime._unheard import fail

T = TypeVar("T")


def conclude(observer: abc.ObserverBase[T], items: Iterable[T] = ()) -> None:
    """Emit `items`, then complete.

    For operators whose source has ended: its pump is gone, so a subscriber's exception is given to ``on_error`` here.
    """
    try:
        for item in items:
            observer.on_next(item)
    except BaseException as error:
        fail(observer, error)
    else:
        observer.on_completed()
