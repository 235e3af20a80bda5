"""Pickle call settings: without keys and clients, and by value if another process cannot import the object.

==========================  ==========================================================  ==========================
setting                     in a pickle                                                 made by
==========================  ==========================================================  ==========================
a function or tool of a     its name: the module must be there too                      pickle, ``FunctionTool``
module
a lambda, a closure, a      by value, with what it closes over; needs cloudpickle       `portable`, `by_value`
tool of a script
an engine                   its settings, each `portable`, without secret headers       `engine_state`
an adapter over HTTP        its arguments, without clients, keys, secret headers and    ``HTTPBase.__getstate__``
                            secrets in the address; the other process looks up its key
a circuit breaker, traces,  the arguments that make a new one                           their ``__reduce__``
a cassette
a budget, a rate limit,     refused, because calls or a process share it; the error     their ``__reduce__``
an MCP server's process     has the remedy
==========================  ==========================================================  ==========================
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from rxllm.values.secret_names import is_secret_name

_FUNCTIONS = ("operators", "prepare", "observers")
_OBJECTS = ("adapter", "image_adapter", "context", "retry", "tool_executor", "tool_result_encoder")
"""The settings of an engine that may hold any object."""


class NotPortable(pickle.PicklingError):
    """An object cannot be pickled; the message names it."""


def engine_state(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an engine for its pickle. Raises as `portable` does."""
    state = {**settings, "params": {**settings["params"]}}
    for name in _FUNCTIONS:
        state[name] = tuple(portable(entry, f"{name}[{index}]") for index, entry in enumerate(state[name]))
    for name in _OBJECTS:
        state[name] = portable(state[name], f"{name} of the engine")
    if isinstance(headers := state["params"].get("headers"), Mapping):
        state["params"]["headers"] = public_headers(cast(Mapping[Any, Any], headers))
    return state


def public_headers(headers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the headers that hold no secret."""
    return {name: text for name, text in headers.items() if not is_secret_name(name)}


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
        if isinstance(error.__cause__ or error, RecursionError):  # a function may name its own tool
            raise NotPortable(f"{what} cannot be pickled: it refers to itself; define it in a module") from None
        # Objects that calls share have a remedy in their own message.
        remedy = "" if "; " in str(error) else "; leave it out, or make it where it is used"
        raise NotPortable(f"{what} cannot be pickled: {error}{remedy}") from error


def travels_by_value() -> bool:
    """Whether cloudpickle is installed."""
    return _cloudpickle() is not None


def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError:
        return None
