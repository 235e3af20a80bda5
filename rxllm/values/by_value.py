"""Pickle with cloudpickle what pickle cannot find by its name: lambdas, closures, functions of a notebook."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any


class NotPortable(pickle.PicklingError):
    """What cannot be pickled, by its name in the message."""


class _ByValue:
    """Stands for a value in a pickle; what is read back is the value itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


def portable(value: Any, what: str) -> Any:
    """Return `value` if it can be pickled, else what stands for it in a pickle.

    Raises ``pickle.PicklingError``, which names `what` cannot travel.
    """
    try:
        pickle.dumps(value)
    except Exception as error:
        return by_value(value, what, error)
    return value


def by_value(value: Any, what: str, reason: Exception | str) -> Any:
    """Return what stands for `value` in a pickle; `reason` says why it cannot be itself."""
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        remedy = "define it in a module, or pip install 'rxllm[cluster]', with which it travels by value"
        raise NotPortable(f"{what} cannot be pickled: {reason}; {remedy}")
    try:
        return _ByValue(cloudpickle.dumps(value))
    except NotPortable as error:  # something in it
        raise error if str(error).startswith(what) else NotPortable(f"{what}: {error}") from None
    except Exception as error:
        if isinstance(error.__cause__ or error, RecursionError):  # a function that names the tool made of it
            raise NotPortable(f"{what} cannot be pickled: it refers to itself; define it in a module") from None
        # What calls share says itself what to write.
        remedy = "" if "; " in str(error) else "; leave that out of it, or make it where it is used"
        raise NotPortable(f"{what} cannot be pickled: {error}{remedy}") from error


def travels_by_value() -> bool:
    """Whether cloudpickle is there."""
    return _cloudpickle() is not None


def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError:
        return None
