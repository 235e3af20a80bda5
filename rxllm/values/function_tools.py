"""The functions that make tools from a user's own functions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, overload

from rxllm.values.advice import advice, unknown_option
from rxllm.values.argument_checks import invalid_option, must_be, shorten
from rxllm.values.errors import ValidationError
from rxllm.values.tools import FunctionTool, Tool, ToolTimeout, from_function

P = ParamSpec("P")
R = TypeVar("R")

_FLAGS = ("manual", "approval", "timeout", "idempotent", "eager")

_OPTIONS = ("name", "description", "schema", "handler", *_FLAGS, "metadata")


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str,
    description: str = "",
    schema: dict[str, Any] | None = None,
    handler: Callable[..., Any] | None = None,
    manual: bool = False,
    approval: bool = False,
    metadata: dict[str, Any] | None = None,
    timeout: ToolTimeout = "default",
    idempotent: bool = False,
    eager: bool = False,
) -> Tool: ...
@overload
def tool(
    *,
    description: str = "",
    manual: bool = False,
    approval: bool = False,
    timeout: ToolTimeout = "default",
    idempotent: bool = False,
    eager: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a tool from a function or from explicit arguments.

    The decorator uses the function's name, docstring and type hints:

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add(2, 3), add.name, add.description, add.schema["required"]
    (5, 'add', 'Add two numbers.', ['a'])

    ``@tool(name=..., description=...)`` replaces the function's own name and description. A lambda needs a name:
    ``tool(name="double")(lambda x: 2 * x)``.

    To pass your own JSON schema, write ``tool(name="double", description=..., schema={...}, handler=double)``. The
    `handler` receives all arguments in one mapping. If it has a second parameter, it also receives a `ToolContext`.

    * `timeout` is the maximum run time in seconds; None means no limit. The default is the call's ``tool_timeout``.
    * `manual`: rxllm never runs the tool. The chat halts, and the caller provides the result.
    * `approval`: the tool runs only after the caller approves the call.
    * `idempotent`: the tool may run again after an interruption; see ``ops.journaled``.
    * `eager`: the tool starts as soon as its call is complete, while the model is still writing. If the response then
      fails, the result is discarded. Use this option only if an unneeded run does no harm.

    A parameter can have any type that JSON can express:

    * plain types, ``Literal``, enums and datetimes;
    * dataclasses, ``TypedDict``, msgspec and pydantic models;
    * lists, dicts and unions of these.

    The model sees each parameter's type, default, bounds and description. Bounds are written ``Annotated[int,
    Field(ge=1)]``. A description is written ``Annotated[str, "text"]``, or in the docstring: in an ``Args:`` section
    (Google), in a ``Parameters`` section (NumPy), or as ``:param city: ...`` (Sphinx). The rest of the docstring is the
    tool's description. The function receives objects of the annotated types. rxllm fills in `ToolContext` parameters,
    and the model does not see them.

    An ``async def`` function can read an argument while the model is still writing it. Annotate the last parameters
    with ``Stream[str]`` for text, or ``Stream[T]`` for an array. An `eager` tool then starts when the first of these
    arguments begins to arrive. Any other tool receives them when they are complete.

    Raises ``TypeError`` if a JSON schema cannot describe the function's parameters, if their hints cannot be read, or
    if a ``Stream`` parameter breaks the rules above. Raises ``ValidationError("invalid_tool")`` if the tool has no
    name, or if arguments conflict.
    """
    _refuse_unknown(options)
    fields = ["name"] * (name is not None) + sorted(options.keys() - {*_FLAGS})
    if function is None and set(fields) <= {"description"}:
        return partial(from_function, **options)
    if function is None and name is not None:
        schema = options.pop("schema", None)
        return Tool(name=name, **options, **({"schema": schema} if schema is not None else {}))
    if fields and callable(function):
        remedy = _corrected_call(function, {"name": name, **options} if name is not None else options)
        message = f"tool(function) does not take {', '.join(sorted(fields))}; write {remedy}"
        raise ValidationError("invalid_tool", message, errors=[((field,), "not_allowed") for field in fields])
    if fields or not callable(function):
        got = ", ".join(fields) or f"{function!r:.80}"
        message = f"tool() needs a name or a function, but received only {got}; write tool(name='...', ...) or @tool"
        raise ValidationError("invalid_tool", message, errors=[(("name",), "required")])
    return from_function(function, **options)


def _corrected_call(function: Any, options: Mapping[str, Any]) -> str:
    called = getattr(function, "__name__", "function").replace("<lambda>", "function")
    if options.keys() & {"schema", "handler"}:
        return f"tool(name='...', schema={{...}}, handler={called})"
    settings = ", ".join(f"{name}={shorten(repr(value), 40)}" for name, value in options.items())
    return f"tool({settings})({called})"


def as_tool(value: Any) -> Tool:
    """Return a tool unchanged, or make a tool from a function.

    >>> def add(a: int, b: int) -> int: return a + b
    >>> as_tool(add), as_tool(tool(add))
    (FunctionTool('add', ''), FunctionTool('add', ''))

    Raises ``ValidationError("invalid_tool")`` for anything else.
    """
    if not isinstance(value, Tool) and isinstance(around := getattr(value, "__func__", None), FunctionTool):
        value = cast(Any, around).__get__(value.__self__)  # a tool wrapped in a classmethod (Python 3.13+)
    if not isinstance(value, Tool):
        if isinstance(value, type) or not callable(value) or _makes_agents(value):
            fault = f"{must_be('a Tool or a function', value)}; {_remedy_for(value)}"
            raise ValidationError("invalid_tool", fault)
        try:
            value = from_function(value)
        except TypeError as error:
            raise ValidationError("invalid_tool", str(error)) from error
    result = cast(Tool, value)
    if vars(result).get("unbound"):  # getattr would also search for similar names
        message = f"the tool {result.name!r} is a method that is not bound to an object; pass obj.{result.name}"
        raise ValidationError("invalid_tool", message)
    return result


def _remedy_for(value: Any) -> str:
    if hasattr(value, "as_tool") or _makes_agents(value):
        return 'make an agent with engine.as_tool(name="...", description="...")'
    if isinstance(value, Awaitable):
        return advice("Stream", "tools")
    if not isinstance(value, Mapping):
        return "make a tool with rxllm.tool"
    return (
        "write rxllm.tool(name=..., description=..., schema={...}, handler=function), where schema is the "
        "'parameters' of OpenAI's format; if there is no function, write manual=True"
    )


def _makes_agents(value: Any) -> bool:
    """Whether `value` is an engine's ``as_tool`` method, which the user forgot to call."""
    return inspect.ismethod(value) and value.__name__ == "as_tool"


def as_tools(values: Any) -> tuple[Tool, ...]:
    """Return a tuple of tools, making a tool from each function in `values`.

    Raises ``ValidationError("invalid_option")`` if `values` contains anything else.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | Mapping | Awaitable):
        fault = must_be("a list of tools or functions, as in tools=[function]", cast(object, values))
        raise invalid_option(
            "tools", f"{fault}; {advice('Stream', 'tools')}" if isinstance(values, Awaitable) else fault
        )
    tools: list[Tool] = []
    for index, entry in enumerate(cast(Iterable[Any], values)):
        try:
            tools.append(as_tool(entry))
        except ValidationError as error:
            raise invalid_option("tools", f"must be tools or functions; at index {index}: {error.message}") from error
    if fault := name_fault(tools):
        raise invalid_option("tools", fault)
    return tuple(tools)


def name_fault(tools: Iterable[Tool]) -> str | None:
    """Return an error message if two different tools have the same name. Otherwise, return None."""
    by_name: dict[str, Tool] = {}
    for item in tools:
        other = by_name.setdefault(item.name, item)
        if other is not item and other != item:
            both = " and ".join(map(_describe_origin, (other, item)))
            return f"must have different names, but {both} are both named {item.name!r}; rename one of them"
    return None


def _describe_origin(item: Tool) -> str:
    function: Any = item.handler
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    return repr(item if function is None else function)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            message = unknown_option("tool(...)", name, options[name], _OPTIONS, "tool")
            raise ValidationError("invalid_tool", message, errors=[((name,), "not_allowed")])
