"""What the operators' options, and what comes to them, must be. Not an operator."""

from __future__ import annotations

from types import UnionType
from typing import Any

from rxllm.events import EVENT_CLASSES
from rxllm.runtime import is_seconds
from rxllm.values import StreamError, ValidationError

EVENTS = frozenset[type[Any]](EVENT_CLASSES)


def refused(name: str, why: str) -> ValidationError:
    """The error for an option that makes no sense."""
    return ValidationError("invalid_option", errors=[((name,), why)])


def seconds(name: str, held: Any) -> float:
    """`held`, a number of seconds from 0 on. Raises ``ValidationError("invalid_option")``."""
    if not is_seconds(held):
        raise refused(name, f"must be a number of seconds, 0 or more, not {held!r}")
    return float(held)


def function(name: str, held: Any) -> None:
    """Raises ``ValidationError("invalid_option")`` unless `held` can be called."""
    if not callable(held):
        raise refused(name, f"must be a function, not {held!r}")


def instance(name: str, held: Any, cls: type[Any] | UnionType, what: str) -> None:
    """Raises ``ValidationError("invalid_option")`` unless `held` is a `cls`, which is called `what`."""
    if not isinstance(held, cls):
        raise refused(name, f"must be {what}, not {held!r}")


def classes(name: str, held: tuple[Any, ...]) -> None:
    """Raises ``ValidationError("invalid_option")`` unless all of `held` can be asked for with ``isinstance``."""
    try:
        isinstance(None, held)
    except TypeError:
        raise refused(name, f"must be classes, not {held!r}") from None


def no_event(operator: str, item: Any) -> StreamError:
    """The error for an `item` that is none of the `EVENTS` that `operator` takes; it may be secret: it is not shown."""
    hint = "put it behind stream(...) or the like, and before text(), which makes something else of the events"
    return StreamError("malformed_event", f"{operator}() takes events, and got a {type(item).__name__}: {hint}")
