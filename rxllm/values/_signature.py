"""Whether a function takes the arguments that it is to be called with."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any


def unfit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TypeError | None:
    """Why `function` cannot be called with these arguments; None if it can, or if nobody knows."""
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return error
    except ValueError:  # one written in C may have no signature
        pass
    return None
