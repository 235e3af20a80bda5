"""What is given in the place of a stream or of an operator, checked where it is given: later it only looks odd."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from reactivex import Observable

from rxllm.values import ValidationError


def check_source(given: Any, name: str) -> None:
    """Raises ``ValidationError("invalid_option")`` where `given` is no Observable; `name` is the function's."""
    if not isinstance(given, Observable):
        what = f"must be an Observable, such as rxllm.generate(...) gives, not {given!r}"
        raise ValidationError("invalid_option", f"{name}: source {what}", errors=[(("source",), what)])


def check_operators(given: Iterable[Any]) -> None:
    """Raises ``ValidationError("invalid_option")`` for what is no operator, and for what would only make one."""
    for place, operator in enumerate(given):
        fault = _fault(operator)
        if fault is not None:
            raise ValidationError("invalid_option", errors=[(("operators", place), fault)])


def _fault(operator: Callable[..., Any] | Any) -> str | None:
    if not callable(operator):
        return f"must be a function from an Observable to an Observable, not {operator!r}"
    module, name = str(getattr(operator, "__module__", "")), str(getattr(operator, "__qualname__", "<"))
    makes_one = module == "reactivex.operators" or module.startswith("rxllm.operators.")
    if makes_one and name.isidentifier() and not name.startswith("_"):
        return f"{name} makes an operator when it is called: write {name}(...) with its brackets"
    return None
