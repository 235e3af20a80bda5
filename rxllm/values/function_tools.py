"""Tools made from functions: the decorator `tool`, and `as_tool` for plain functions."""

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

_OPTIONS = ("name", "description", "schema", "handler", "manual", "approval", "metadata", "timeout", "idempotent")


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
) -> Tool: ...
@overload
def tool(
    *,
    description: str = "",
    manual: bool = False,
    approval: bool = False,
    timeout: ToolTimeout = "default",
    idempotent: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a tool from a function's name, docstring and hints, as a decorator, or from the arguments that you pass.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add(2, 3), add.name, add.description, add.schema["required"]
    (5, 'add', 'Add two numbers.', ['a'])

    ``@tool(name=..., description=..., approval=True)`` overrides the function's own, and suits a lambda:
    ``tool(name="double")(lambda x: 2 * x)``. To pass the JSON schema of the arguments yourself, write
    ``tool(name="double", description=..., schema={...}, handler=double)``: the `handler` is called with one mapping of
    the arguments, and also with a `ToolContext` if it takes two arguments.

    `timeout` is the maximum run time in seconds, None for no limit; by default the option ``tool_timeout`` applies. A
    `manual` tool is never run here: the chat halts, and the caller answers. An `idempotent` tool may be run again if
    it was interrupted, see ``ops.journaled``.

    A hint may be any type that can be read from JSON: plain types, ``Literal``, enums, datetimes, dataclasses,
    ``TypedDict``, msgspec's and pydantic's models, and lists, dicts and unions of such types. The model receives the
    type, the default, the bounds in ``Annotated[int, Field(ge=1)]``, and the text in ``Annotated[str, "text"]`` or in a
    Google-style ``Args:`` section; the function receives objects of these types. Parameters annotated ``ToolContext``
    are filled in and not shown to the model.

    Raises ``TypeError`` for a signature that has no JSON schema, and ``ValidationError("invalid_tool")`` for arguments
    without a name, and for a lambda without ``name=``.
    """
    _refuse_unknown(options)
    fields = ["name"] * (name is not None) + sorted(options.keys() - {"manual", "approval", "timeout", "idempotent"})
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
        message = f"a tool is made from a name or from a function: got {got}; write tool(name='...', ...) or @tool"
        raise ValidationError("invalid_tool", message, errors=[(("name",), "required")])
    return from_function(function, **options)


def _corrected_call(function: Any, options: Mapping[str, Any]) -> str:
    """Return the call to `tool` that should be written when `options` are passed together with a function."""
    called = getattr(function, "__name__", "function").replace("<lambda>", "function")
    if options.keys() & {"schema", "handler"}:
        return f"tool(name='...', schema={{...}}, handler={called})"
    settings = ", ".join(f"{name}={shorten(repr(value), 40)}" for name, value in options.items())
    return f"tool({settings})({called})"


def as_tool(value: Any) -> Tool:
    """Return `value`, a tool or a function, as a tool; a function is converted as ``@tool`` does.

    >>> def add(a: int, b: int) -> int: return a + b
    >>> as_tool(add), as_tool(tool(add))
    (FunctionTool('add', ''), FunctionTool('add', ''))

    Raises ``ValidationError("invalid_tool")``.
    """
    if not isinstance(value, Tool) and isinstance(around := getattr(value, "__func__", None), FunctionTool):
        value = cast(Any, around).__get__(value.__self__)  # a classmethod around a tool, from Python 3.13 on
    if not isinstance(value, Tool):
        if isinstance(value, type) or not callable(value) or _makes_agents(value):
            fault = f"{must_be('a Tool or a function', value)}; {_remedy_for(value)}"
            raise ValidationError("invalid_tool", fault)
        try:
            value = from_function(value)
        except TypeError as error:
            raise ValidationError("invalid_tool", str(error)) from error
    result = cast(Tool, value)
    if vars(result).get("unbound"):  # getattr would search for similar names in a tool without it
        message = f"the tool {result.name!r} is a method without its object; pass obj.{result.name} of an object"
        raise ValidationError("invalid_tool", message)
    return result


def _remedy_for(value: Any) -> str:
    """Return advice for a `value` that is not a tool; a mapping is taken for OpenAI's form."""
    if hasattr(value, "as_tool") or _makes_agents(value):
        return 'make an agent with engine.as_tool(name="...", description="...")'
    if isinstance(value, Awaitable):
        return advice("Stream", "tools")
    if not isinstance(value, Mapping):
        return "make a tool with rxllm.tool"
    return (
        "write rxllm.tool(name=..., description=..., schema={...}, handler=function), where schema is OpenAI's "
        "parameters; without a function write manual=True"
    )


def _makes_agents(value: Any) -> bool:
    """Whether `value` is an engine's method ``as_tool`` instead of its result."""
    return inspect.ismethod(value) and value.__name__ == "as_tool"


def as_tools(values: Any) -> tuple[Tool, ...]:
    """Return several tools or functions as tools. Raises ``ValidationError("invalid_option")``."""
    if not isinstance(values, Iterable) or isinstance(values, str | Mapping | Awaitable):
        fault = must_be("several tools or functions, as in tools=[function]", cast(object, values))
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
    """Return the fault if different tools share a name, since the model could call only one of them."""
    by_name: dict[str, Tool] = {}
    for item in tools:
        other = by_name.setdefault(item.name, item)
        if other is not item and other != item:
            both = " and ".join(map(_describe_origin, (other, item)))
            return f"must have different names, and {both} are both {item.name!r}; rename one, or leave it out"
    return None


def _describe_origin(item: Tool) -> str:
    """Return the full name of a tool's function, the repr of another handler, or the repr of a tool without one."""
    function: Any = item.handler
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    return repr(item if function is None else function)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            message = unknown_option("tool(...)", name, options[name], _OPTIONS, "tool")
            raise ValidationError("invalid_tool", message, errors=[((name,), "not_allowed")])
