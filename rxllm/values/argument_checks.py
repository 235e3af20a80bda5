"""Functions that check arguments and raise ``ValidationError("invalid_option")`` for invalid ones.

>>> check_count("top", 0)
Traceback (most recent call last):
    ...
rxllm.ValidationError: top must be an integer >= 1, not 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, cast

from rxllm.values.errors import ValidationError
from rxllm.values.json_text import is_encodable
from rxllm.values.secret_names import masked

F = TypeVar("F", bound=Callable[..., Any])

SHOWN = 80
"""The maximum number of characters of a value to show in an error message."""


def invalid_option(name: str | tuple[str | int, ...], fault: str) -> ValidationError:
    """Return a ``ValidationError`` that reports an invalid argument.

    `name` is the argument's name or, if only part of the argument is invalid, the path to that part.
    """
    return ValidationError("invalid_option", errors=[((name,) if isinstance(name, str) else name, fault)])


def must_be(expected: str, value: object) -> str:
    """Return a message such as ``must be a string, not 3``."""
    return f"must be {expected}, not {shown(value)}"


def shown(value: object) -> str:
    """Return the repr of `value`. Secrets are masked, and the text is truncated to `SHOWN` characters."""
    try:
        text = repr(masked(value))
    except Exception as error:  # raised for a huge int, or by a user's own ``__repr__``
        return f"a {type(value).__name__} that cannot be shown ({error})"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def shorten(text: str, width: int = 60) -> str:
    """Return `text` as a single line, truncated to at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def check(name: str, value: object, fits: bool, expected: str) -> None:
    """Raise ``ValidationError("invalid_option")`` unless `fits` is True."""
    if not fits:
        raise invalid_option(name, must_be(expected, value))


def check_seconds(name: str, value: Any) -> float:
    """Return `value` as a float.

    Raises ``ValidationError("invalid_option")`` unless `value` is a finite number >= 0.
    """
    check(name, value, is_seconds(value), "a non-negative number of seconds")
    return float(value)


def check_count(name: str, value: Any) -> None:
    """Raise ``ValidationError("invalid_option")`` unless `value` is an integer >= 1."""
    check(name, value, is_count(value), "an integer >= 1")


def check_function(name: str, value: object) -> None:
    check(name, value, callable(value), "a function")


def check_instance(name: str, value: object, cls: type[Any] | UnionType, expected: str) -> None:
    check(name, value, isinstance(value, cls), expected)


def check_classes(name: str, value: tuple[Any, ...]) -> None:
    """Raise ``ValidationError("invalid_option")`` unless `value` can be passed to ``isinstance``."""
    try:
        isinstance(None, value)
    except TypeError:
        raise invalid_option(name, must_be("classes", value)) from None


def is_seconds(value: Any) -> bool:
    """Whether `value` is a finite number >= 0."""
    return type(value) is not bool and isinstance(value, Real) and 0 <= cast(Any, value) < math.inf


def is_positive(value: Any) -> bool:
    """Whether `value` is a finite number > 0."""
    return is_seconds(value) and value > 0


def is_name(value: Any) -> bool:
    """Whether `value` is a non-empty string that can be encoded as UTF-8."""
    return isinstance(value, str) and bool(value) and is_encodable(value)


def is_count(value: Any) -> bool:
    """Whether `value` is an integer >= 1."""
    return is_whole(value) and value >= 1


def is_whole(value: Any) -> bool:
    """Whether `value` is an int or a numpy integer, but not a bool."""
    return type(value) is not bool and isinstance(value, Integral)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint that suggests the closest known name, or "" if no known name is close.

    >>> did_you_mean("opnai", ["openai", "ollama"])
    " (did you mean 'openai'?)"
    """
    from difflib import get_close_matches

    by_lower = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.7)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def call_fault(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TypeError | None:
    """Return a ``TypeError`` if the arguments do not match the function's signature, or None if they do.

    If the signature cannot be read, return None.
    """
    from inspect import signature  # slow to import

    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return error
    except ValueError:  # many functions written in C have no signature
        pass
    return None


def explains_call(example: str) -> Callable[[F], F]:
    """Decorate a function so that the ``TypeError`` for wrong arguments shows an `example` call."""

    def decorate(function: F) -> F:
        @wraps(function)
        def explaining(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                fault = call_fault(function, *args, **kwargs)
                if fault is None:  # raised inside the function
                    raise
                got = f", got {shown(args[-1])}" if "positional" in str(fault) else ""
                raise TypeError(f"{function.__name__}: {fault}{got}; write {example}") from None

        return cast(F, explaining)

    return decorate
