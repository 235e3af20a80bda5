"""What is given in the place of a stream or of an operator, checked where it is given: later it only looks odd."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Any

from reactivex import Observable

from rxllm.values import ValidationError
from rxllm.values.arguments import call_fault, invalid_option


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
            raise invalid_option(("operators", place), fault)


class OperatorMaker:
    """The function `make` of another package, called `name` here: what it gives is an operator, and it is none.

    Arguments that it does not take are a ``TypeError`` that says whose it is, as ``about()`` does.
    """

    def __init__(self, name: str, make: Callable[..., Any], about: Callable[[], str]) -> None:
        update_wrapper(self, make)
        self.called, self._make, self._about = name, make, about

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._make(*args, **kwargs)
        except TypeError as error:
            fault = call_fault(self._make, *args, **kwargs)
            if fault is None:  # its own
                raise
            what = f"{self.called}: {fault}; {self._about()} has to be a function that makes an operator"
            raise TypeError(what) from error


_TAKE_STREAMS = {
    "hedge": "hedge(events, after=...)",
    "merge_labelled": 'merge_labelled({"a": events, ...})',
    "race": "race(events, ...)",
}


def _fault(operator: Callable[..., Any] | Any) -> str | None:
    if not callable(operator):
        return f"must be a function from an Observable to an Observable, not {operator!r}"
    if isinstance(operator, OperatorMaker):
        return _hint(operator.called)
    module, name = str(getattr(operator, "__module__", "")), str(getattr(operator, "__qualname__", "<"))
    makes_one = module == "reactivex.operators" or module.startswith("rxllm.operators.")
    if module == f"rxllm.operators._{name}" and name in _TAKE_STREAMS:
        return f"{name} takes streams and is no operator: write lambda events: ops.{_TAKE_STREAMS[name]}"
    return _hint(name) if makes_one and name.isidentifier() and not name.startswith("_") else None


def _hint(name: str) -> str:
    return f"{name} makes an operator when it is called: write {name}(...) with its brackets"
