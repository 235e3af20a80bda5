"""Check arguments that must be streams or operators, and describe the origin of a stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from inspect import iscoroutinefunction
from types import BuiltinFunctionType, CoroutineType
from typing import Any, NamedTuple

from reactivex import Observable

from rxllm.values import ChatResult, Response, StepResult, ValidationError
from rxllm.values.advice import advice, first_code
from rxllm.values.argument_checks import call_fault, did_you_mean, invalid_option, must_be


def check_source(source: Any, name: str) -> None:
    if not isinstance(source, Observable):
        fault = must_be("an Observable, such as the result of rxllm.generate(...)", source)
        raise ValidationError("invalid_option", f"{name}: source {fault}", errors=[(("source",), fault)])


def check_streams(name: str, streams: Sequence[Any]) -> None:
    """Raise ``ValidationError("invalid_option")`` if there are no `streams`, or if one of them is not an Observable."""
    if not streams:
        raise invalid_option(name, "must contain at least one stream")
    for index, stream in enumerate(streams):
        if not isinstance(stream, Observable):
            raise invalid_option((name, index), must_be("an Observable", stream))


def check_operators(operators: Iterable[Any]) -> None:
    """Raise ``ValidationError("invalid_option")`` if one of `operators` is not an operator.

    ``ops.text`` makes an operator, but it is not an operator itself.
    """
    for place, operator in enumerate(operators):
        fault = _fault(operator)
        if fault is not None:
            raise invalid_option(("operators", place), fault)


def awaited_elsewhere(method: str, fn: Any) -> Any:
    """Return `fn` as a function that raises ``ValidationError("invalid_option")`` where it would return a coroutine.

    `method` is the Stream's method that takes the function, and that would not await it. A coroutine function raises
    the error at once. A class or a built-in function never returns a coroutine, and is returned as it is.
    """
    if iscoroutinefunction(fn):
        raise _not_awaited(method)
    if isinstance(fn, type | BuiltinFunctionType) or not callable(fn):
        return fn

    function: Callable[..., Any] = fn

    def call(*args: Any) -> Any:
        result = function(*args)
        if type(result) is CoroutineType:
            result.close()  # otherwise, Python warns that it was never awaited
            raise _not_awaited(method)
        return result

    return call


def _not_awaited(method: str) -> ValidationError:
    fault = f"must not be async, because {method} does not await it; write .pipe(ops.map_async(fn, concurrency=8))"
    return invalid_option("the function", fault)


class OperatorMaker:
    """Wraps another package's function that makes an operator.

    If it is called with wrong arguments, the ``TypeError`` contains ``about()``, which describes the package.
    """

    def __init__(self, name: str, make: Callable[..., Any], about: Callable[[], str]) -> None:
        update_wrapper(self, make)
        self.called, self._make, self._about = name, make, about

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._make(*args, **kwargs)
        except TypeError as error:
            fault = call_fault(self._make, *args, **kwargs)
            if fault is None:  # `make` itself raised it
                raise
            message = f"{self.called}: {fault}; {self._about()} must be a function that makes an operator"
            raise TypeError(message) from error

    def __repr__(self) -> str:
        return f"<ops.{self.called}, a function that makes an operator: {self._about()}>"


def _fault(operator: Callable[..., Any] | Any) -> str | None:
    if not callable(operator):
        return must_be("a function that takes an Observable and returns one", operator)
    if isinstance(operator, OperatorMaker):
        return _hint(operator.called)
    module, name = str(getattr(operator, "__module__", "")), str(getattr(operator, "__qualname__", "<"))
    makes_operator = module == "reactivex.operators" or module.startswith("rxllm.operators.")
    return _hint(name) if makes_operator and name.isidentifier() and not name.startswith("_") else None


def _hint(name: str) -> str:
    return f"{name} is a function that makes an operator: write {name}(...), with parentheses"


class Origin(NamedTuple):
    """The call that returned a Stream.

    `items` describes what the Stream emits. It is a word such as ``"events"`` or, if there is only one item, the item's
    class.
    """

    function: str = ""
    model: str = ""
    items: type[Any] | str = "items"
    call: tuple[Any, Mapping[str, Any]] | None = None

    def piped(self) -> Origin:
        return self if self.items == "items" else self._replace(items="items", call=None)

    def describe(self) -> str:
        items = self.items if isinstance(self.items, str) else f"one {self.items.__name__}"
        source = f" from {self.function}" if self.function else ""
        model = f" with {self.model}" if self.model else ""
        # asyncio shows this repr in one of its errors.
        readings = ".run(), await, asyncio.ensure_future(...), for or .subscribe()"
        return f"<Stream of {items}{source}{model}; nothing is sent until {readings}>"

    def missing_attribute(self, name: str, methods: Iterable[str]) -> str:
        fault = f"'Stream' object has no attribute {name!r}"
        if name.startswith("_"):
            return fault
        if isinstance(self.items, str) and name in _operator_names():
            return f"{fault}; {advice('Stream', 'operator', operator=name)}"
        if remedy := advice("Stream attributes", name):
            return f"{fault}: {remedy}"
        call, attribute = self._result_with(name)
        guess = "" if call else did_you_mean(name, methods)
        if guess:
            return f"{fault}{guess}"
        if call:
            return f"{fault}: {advice('Stream', 'result', call=call, attribute=attribute)}"
        return f"{fault}: {advice('Stream', 'attribute')}"

    def still_to_run(self, fault: str) -> str:
        call = f"{self.function}(...)" if self.function else "the stream"
        return f"{fault}: {advice('Stream', 'item', call=call)}"

    def _result_with(self, name: str) -> tuple[str, str]:
        """Return a pair: the code of a call whose result contains `name`, and the path to `name` in that result.

        If there is no such call, the code is "".
        """
        call = f"{self.function}(...)"
        if self.items == "events":
            folds = {Response: "to_response", ChatResult: "to_chat_result", StepResult: "to_step_result"}
            calls: dict[Any, str] = {cls: f"{call}.pipe(ops.{fold}())" for cls, fold in folds.items()}
        else:
            calls = {} if isinstance(self.items, str) else {self.items: call}
        for cls, call in calls.items():
            path = first_code((base.__name__ for base in cls.__mro__), name) or name
            first = path.partition(".")[0]
            if first in cls.__dataclass_fields__ or hasattr(cls, first):
                return call, path
        return "", name


class NotEncodable:
    """Raises a clear error if an encoder tries to encode a Stream.

    This object is the first entry in ``vars(stream)``, so FastAPI finds it before anything else.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # doctest and inspect look up this name on every object
            raise AttributeError(name)
        raise TypeError(advice("Stream", "json"))


def _operator_names() -> Iterable[str]:
    operators = sys.modules.get("rxllm.operators")  # the operators are in a higher layer, so they are not imported here
    return getattr(operators, "__all__", ())
