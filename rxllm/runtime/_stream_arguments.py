"""Check arguments that stand for a stream or an operator, where they are passed: later the mistake only looks odd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from typing import Any

from reactivex import Observable

from rxllm.values import ValidationError
from rxllm.values.argument_checks import call_fault, invalid_option, must_be


def check_source(source: Any, name: str) -> None:
    """Raise ``ValidationError("invalid_option")`` unless `source` is an Observable; `name` is the function's."""
    if not isinstance(source, Observable):
        fault = must_be("an Observable, such as rxllm.generate(...) returns", source)
        raise ValidationError("invalid_option", f"{name}: source {fault}", errors=[(("source",), fault)])


def check_streams(name: str, streams: Sequence[Any]) -> None:
    """Raise ``ValidationError("invalid_option")`` unless `streams` are Observables, at least one."""
    if not streams:
        raise invalid_option(name, "must be at least one")
    for index, stream in enumerate(streams):
        if not isinstance(stream, Observable):
            raise invalid_option((name, index), must_be("an Observable", stream))


def check_operators(operators: Iterable[Any]) -> None:
    """Raise ``ValidationError("invalid_option")`` for anything that is not an operator, such as a function that makes
    one.
    """
    for place, operator in enumerate(operators):
        fault = _fault(operator)
        if fault is not None:
            raise invalid_option(("operators", place), fault)


class OperatorMaker:
    """The function `make` of another package, called `name` here: it makes an operator, and is not one itself.

    Arguments that it does not take raise a ``TypeError`` that names its package with the words of ``about()``.
    """

    def __init__(self, name: str, make: Callable[..., Any], about: Callable[[], str]) -> None:
        update_wrapper(self, make)
        self.called, self._make, self._about = name, make, about

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._make(*args, **kwargs)
        except TypeError as error:
            fault = call_fault(self._make, *args, **kwargs)
            if fault is None:  # raised inside `make`: its own
                raise
            message = f"{self.called}: {fault}; {self._about()} has to be a function that makes an operator"
            raise TypeError(message) from error

    def __repr__(self) -> str:
        return f"<ops.{self.called}, a function that makes an operator: {self._about()}>"


def _fault(operator: Callable[..., Any] | Any) -> str | None:
    if not callable(operator):
        return must_be("a function from an Observable to an Observable", operator)
    if isinstance(operator, OperatorMaker):
        return _hint(operator.called)
    module, name = str(getattr(operator, "__module__", "")), str(getattr(operator, "__qualname__", "<"))
    makes_operator = module == "reactivex.operators" or module.startswith("rxllm.operators.")
    return _hint(name) if makes_operator and name.isidentifier() and not name.startswith("_") else None


def _hint(name: str) -> str:
    return f"{name} makes an operator when it is called: write {name}(...) with its brackets"
