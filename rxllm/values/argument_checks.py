"""Check arguments, and raise the error that names the argument, what it must be, and what it was.

Every check raises ``ValidationError("invalid_option")``.

>>> check_count("top", 0)
Traceback (most recent call last):
    ...
rxllm.ValidationError: top must be a whole number of at least 1, not 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Integral, Real
from types import UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rxllm.values.errors import EngineError, ValidationError
from rxllm.values.json_text import is_encodable
from rxllm.values.secret_names import masked

P = ParamSpec("P")
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])

SHOWN = 80
"""The number of characters of a wrong value that a message shows."""


def invalid_option(name: str | tuple[str | int, ...], fault: str) -> ValidationError:
    """Return the error for the argument `name`, or for the place in it that a path leads to."""
    return ValidationError("invalid_option", errors=[((name,) if isinstance(name, str) else name, fault)])


def must_be(expected: str, value: object) -> str:
    """Return the fault of a `value` that is not `expected`: ``must be a string, not 3``."""
    return f"must be {expected}, not {shown(value)}"


def shown(value: object) -> str:
    """Return the repr of `value` without its secrets, cut to `SHOWN` characters."""
    try:
        text = repr(masked(value))
    except Exception as error:  # the number is too long, or the caller's repr raises
        return f"a {type(value).__name__} that cannot be shown ({error})"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def shorten(text: str, width: int = 60) -> str:
    """Return `text` on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def check(name: str, value: object, fits: bool, expected: str) -> None:
    """Raise unless `value` `fits`."""
    if not fits:
        raise invalid_option(name, must_be(expected, value))


def check_seconds(name: str, value: Any) -> float:
    """Return `value`, a finite number of seconds of at least 0."""
    check(name, value, is_seconds(value), "a number of seconds, 0 or more")
    return float(value)


def check_count(name: str, value: Any) -> None:
    """Raise unless `value` is a whole number of at least 1."""
    check(name, value, is_count(value), "a whole number of at least 1")


def check_function(name: str, value: object) -> None:
    """Raise unless `value` can be called."""
    check(name, value, callable(value), "a function")


def check_instance(name: str, value: object, cls: type[Any] | UnionType, expected: str) -> None:
    """Raise unless `value` is a `cls`."""
    check(name, value, isinstance(value, cls), expected)


def check_classes(name: str, value: tuple[Any, ...]) -> None:
    """Raise unless all of `value` are classes, as ``isinstance`` takes them."""
    try:
        isinstance(None, value)
    except TypeError:
        raise invalid_option(name, must_be("classes", value)) from None


def is_seconds(value: Any) -> bool:
    """Whether `value` is a finite number of at least 0."""
    return type(value) is not bool and isinstance(value, Real) and 0 <= cast(Any, value) < math.inf


def is_positive(value: Any) -> bool:
    """Whether `value` is a finite number above 0."""
    return is_seconds(value) and value > 0


def is_name(value: Any) -> bool:
    """Whether `value` is text that is not empty and can be encoded: half a surrogate pair has no UTF-8."""
    return isinstance(value, str) and bool(value) and is_encodable(value)


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number of at least 1."""
    return is_whole(value) and value >= 1


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number, Python's or numpy's."""
    return type(value) is not bool and isinstance(value, Integral)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for the message about an unknown `name`: the closest of the `known` names, "" if none is close.

    >>> did_you_mean("opnai", ["openai", "ollama"])
    " (did you mean 'openai'?)"
    """
    from difflib import get_close_matches  # needed for errors only

    by_lower = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.7)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def no_attribute(owner: str, name: str, known: Iterable[str], remedies: Mapping[str, str] = {}) -> AttributeError:
    """Return the error for an attribute that is not `known`; `remedies` has what to write instead, by name."""
    remedy = ""
    if name in remedies:
        remedy = f"; write {remedies[name]}"
    elif not name.startswith("_"):
        remedy = did_you_mean(name, (other for other in known if not other.startswith("_")))
    # If it had the object too, Python would append its own guess.
    return AttributeError(f"{owner} has no attribute {name!r}{remedy}", name=name)


def call_fault(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TypeError | None:
    """Return why `function` cannot be called with these arguments; None if it can, or if that cannot be known."""
    from inspect import signature  # costly, and needed only for functions of the user

    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return error
    except ValueError:  # functions written in C may have no signature
        pass
    return None


def explains_options(
    advice: Callable[[str, str, Any], str],
) -> Callable[[Callable[Concatenate[S, P], None]], Callable[Concatenate[S, P], None]]:
    """Decorate an ``__init__``: for arguments that do not fit it raises ``EngineError("unknown_option")``.

    `advice` is a function of the class's name, and an unknown option and its value. It returns what to write instead,
    "" if it does not know.
    """

    def decorate(init: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(init)
        def explaining(self: S, *args: P.args, **kwargs: P.kwargs) -> None:
            try:
                init(self, *args, **kwargs)
            except TypeError:
                if call_fault(init, self, *args, **kwargs) is None:  # an error from inside
                    raise
                message = _misfit(type(self).__name__, init, kwargs, advice)
                raise EngineError("unknown_option", message) from None

        return explaining

    return decorate


def explains_call(example: str) -> Callable[[F], F]:
    """Decorate a function: arguments that do not fit it are a ``TypeError`` that ends with an `example` of its call."""

    def decorate(function: F) -> F:
        @wraps(function)
        def explaining(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                fault = call_fault(function, *args, **kwargs)
                if fault is None:  # an error from inside
                    raise
                got = f", got {shown(args[-1])}" if "positional" in str(fault) else ""
                raise TypeError(f"{function.__name__}: {fault}{got}; write {example}") from None

        return cast(F, explaining)

    return decorate


def _misfit(cls: str, init: Callable[..., Any], options: dict[str, Any], advice: Callable[[str, str, Any], str]) -> str:
    from inspect import signature

    parameters = [*signature(init).parameters.values()][1:]
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    unknown = next((name for name in options if name not in names), None)
    if unknown is None:
        return f"{cls} takes its options by keyword: {', '.join(names)}"
    remedy = advice(cls, unknown, options[unknown])
    near = "" if remedy else did_you_mean(unknown, names)
    return f"{cls} has no option {unknown!r}{near}; {remedy or 'it takes ' + ', '.join(names)}"
