"""Pickle with cloudpickle what pickle cannot find by its name: lambdas, closures, functions of a notebook."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any


class NotPortable(pickle.PicklingError):
    """An object cannot be pickled; the message names it."""


class _ByValue:
    """A stand-in for a value in a pickle; unpickling it returns the value."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


def portable(value: Any, what: str) -> Any:
    """Return `value` if it can be pickled, otherwise a stand-in.

    Raises ``pickle.PicklingError``, whose message names the value as `what`.
    """
    try:
        pickle.dumps(value)
    except Exception as error:
        return by_value(value, what, error)
    return value


def by_value(value: Any, what: str, reason: Exception | str) -> Any:
    """Return a stand-in for `value`; `reason` is why pickle refuses the value itself."""
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        remedy = "define it in a module, or pip install 'rxllm[cluster]', with which it travels by value"
        raise NotPortable(f"{what} cannot be pickled: {reason}; {remedy}")
    try:
        return _ByValue(cloudpickle.dumps(value))
    except NotPortable as error:  # the error of an object inside it
        raise error if str(error).startswith(what) else NotPortable(f"{what}: {error}") from None
    except Exception as error:
        if isinstance(error.__cause__ or error, RecursionError):  # e.g. a function that names its own tool
            raise NotPortable(f"{what} cannot be pickled: it refers to itself; define it in a module") from None
        # Objects that calls share have a remedy in their own message.
        remedy = "" if "; " in str(error) else "; leave that out of it, or make it where it is used"
        raise NotPortable(f"{what} cannot be pickled: {error}{remedy}") from error


def travels_by_value() -> bool:
    """Whether cloudpickle is installed."""
    return _cloudpickle() is not None


def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError:
        return None
