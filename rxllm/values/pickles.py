"""Functions that pickle engines, adapters, tools and functions for another process.

Pickles contain no API keys and no HTTP clients. cloudpickle is needed for objects that cannot be imported by name.

=========================  ==============================================================  =========================
object                     what its pickle contains                                        implemented by
=========================  ==============================================================  =========================
a function or a tool that  its name; the other process must be able to import the module   pickle, ``FunctionTool``
is defined in a module
a lambda, a closure, or a  the object itself and the variables that it uses                `portable`, `by_value`
tool defined in a script
an engine                  its settings, without secret headers; each setting is pickled   `engine_state`
                           as in this table
an HTTP adapter            its arguments, without clients, API keys, secret headers or     ``HTTPBase.__getstate__``
                           secrets in the URL; the other process looks up its own API key
a circuit breaker, traces  the arguments for making a new one in the other process         its ``__reduce__``
or a cassette
a budget, a rate limit or  nothing: it is shared by calls or is a local process, so        its ``__reduce__``
an MCP server's process    pickling it raises an error that suggests a remedy
=========================  ==============================================================  =========================
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from rxllm.values.secret_names import is_secret_name

_FUNCTIONS = ("operators", "prepare", "observers")
_OBJECTS = ("adapter", "image_adapter", "context", "retry", "tool_executor", "tool_result_encoder")
"""The names of engine settings whose value can be any object."""


class NotPortable(pickle.PicklingError):
    """Raised if an object cannot be pickled."""


def engine_state(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's settings in a form that can be pickled."""
    state = {**settings, "params": {**settings["params"]}}
    for name in _FUNCTIONS:
        state[name] = tuple(portable(entry, f"{name}[{index}]") for index, entry in enumerate(state[name]))
    for name in _OBJECTS:
        state[name] = portable(state[name], f"{name} of the engine")
    if isinstance(headers := state["params"].get("headers"), Mapping):
        state["params"]["headers"] = public_headers(cast(Mapping[Any, Any], headers))
    return state


def public_headers(headers: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: text for name, text in headers.items() if not is_secret_name(name)}


class _ByValue:
    """An object that is pickled in place of a value. Unpickling it returns the value."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


def portable(value: Any, what: str) -> Any:
    """Return `value` if it can be pickled, or otherwise an object that can be pickled in its place.

    Raises ``pickle.PicklingError`` if there is no such object. `what` names the value in the error's message.
    """
    try:
        pickle.dumps(value)
    except Exception as error:
        return by_value(value, what, error)
    return value


def by_value(value: Any, what: str, reason: Exception | str) -> Any:
    """Return an object that can be pickled in place of `value`.

    `reason` explains why `value` itself cannot be pickled. `what` names the value in an error's message.
    """
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        remedy = "define it in a module, or install cloudpickle: pip install 'rxllm[cluster]'"
        raise NotPortable(f"{what} cannot be pickled: {reason}; {remedy}")
    try:
        return _ByValue(cloudpickle.dumps(value))
    except NotPortable as error:  # raised for an object inside `value`
        raise error if str(error).startswith(what) else NotPortable(f"{what}: {error}") from None
    except Exception as error:
        if isinstance(error.__cause__ or error, RecursionError):  # a function can refer to its own tool
            raise NotPortable(f"{what} cannot be pickled: it refers to itself; define it in a module") from None
        # An error about an object shared between calls already suggests a remedy.
        remedy = "" if "; " in str(error) else "; leave it out, or create it in the process that uses it"
        raise NotPortable(f"{what} cannot be pickled: {error}{remedy}") from error


def travels_by_value() -> bool:
    """Whether cloudpickle is installed."""
    return _cloudpickle() is not None


def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError:
        return None
