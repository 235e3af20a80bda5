"""Tools made from functions: the decorator `tool`, and `as_tool` for functions that are passed as they are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import partial
from importlib import import_module
from itertools import takewhile
from operator import attrgetter
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_type_hints, overload

from rxllm.values.argument_checks import did_you_mean, invalid_option, must_be
from rxllm.values.by_value import by_value, travels_by_value
from rxllm.values.codec import value
from rxllm.values.errors import ToolError, ValidationError
from rxllm.values.json_text import described
from rxllm.values.responses import shorten
from rxllm.values.tools import Parameter, Tool, ToolContext, ToolTimeout, convert, is_context, object_schema

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


@value
class FunctionTool(Tool, Generic[P, R]):
    """A tool made from a function by the decorator; calling it calls the function.

    In the body of a class it is a method: ``obj.method`` is the tool of that object.
    """

    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter], repr=False, compare=False)
    context: tuple[str, ...] = field(default=(), repr=False, compare=False)
    unbound: bool = field(default=False, repr=False, compare=False)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        handler = cast(Callable[..., Any], self.handler)
        place = (str(getattr(handler, "__module__", None)), getattr(handler, "__qualname__", type(handler).__name__))
        found = _imported(*place)
        is_there = found is self or (found is handler and _from_function(handler) == self)
        if is_there and not (place[0] == "__main__" and travels_by_value()):
            return _imported_tool, place
        fault = f"it is not the value of {'.'.join(place)}; decorate a function of a module"
        return _restored, (by_value(vars(self), f"the tool {self.name!r}", fault),)

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(
        self: FunctionTool[Concatenate[Any, Q], R], instance: object, owner: type[Any] | None = None
    ) -> FunctionTool[Q, R]: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        if instance is None or not self.unbound:
            return self
        return replace(self, handler=MethodType(cast(Callable[..., Any], self.handler), instance), unbound=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cast(Callable[P, R], self.handler)(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return the function with its arguments bound by keyword, converted to their annotated types.

        Raises ``ToolError("invalid_arguments")`` if they do not fit.
        """
        try:
            keywords = convert(self.parameters, arguments)
        except ValidationError as error:
            message = f"the arguments do not fit: {shorten(described(list(error.errors)), 400)}"
            call_id = context.tool_call.id
            raise ToolError("invalid_arguments", message, tool_name=self.name, tool_call_id=call_id) from error
        keywords |= dict.fromkeys(self.context, context)
        return partial(cast(Callable[..., Any], self.handler), **keywords)


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
    """Make a tool: as a decorator, from a function's name, docstring and hints; with ``name=``, also from arguments.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add(2, 3), add.name, add.description, add.schema["required"]
    (5, 'add', 'Add two numbers.', ['a'])

    ``@tool(name=..., description=..., approval=True)`` sets these in place of the function's own. It goes round a
    lambda too: ``tool(name="double")(lambda x: 2 * x)``. Without a function to read them from,
    ``tool(name="double", description=..., schema={...}, handler=double)`` takes the JSON schema of the arguments and a
    `handler`, which is called with one mapping of the arguments, and with a `ToolContext` if it takes two.

    `timeout` is the longest run in seconds, None for no limit; without one the option ``tool_timeout`` counts. A
    `manual` tool is never run here: the chat halts, and the caller answers. An `idempotent` tool may be run again if
    it was interrupted, see ``ops.journaled``.

    A hint is any type that JSON can be read as: plain ones and ``Literal``, enums, datetimes, dataclasses,
    ``TypedDict``, msgspec's and pydantic's models, lists, dicts and unions of these. The model is told of the type, the
    default, the bounds in ``Annotated[int, Field(ge=1)]`` and the text in ``Annotated[str, "text"]`` or in a
    Google-style ``Args:`` section; the function receives objects of these types. Parameters annotated ``ToolContext``
    are filled in and are not shown to the model.

    Raises ``TypeError`` for a signature that has no JSON schema, and ``ValidationError("invalid_tool")`` for arguments
    without a name and for a lambda, which has none.
    """
    _refuse_unknown(options)
    fields = ["name"] * (name is not None) + sorted(options.keys() - {"manual", "approval", "timeout", "idempotent"})
    if function is None and fields == ["description"]:
        return partial(_from_function, **options)
    if function is None and name is not None:
        schema = options.pop("schema", None)
        return Tool(name=name, **options, **({"schema": schema} if schema is not None else {}))
    if fields and callable(function):
        remedy = _call_of(function, {"name": name, **options} if name is not None else options)
        message = f"a function stands alone in tool(...): got {', '.join(sorted(fields))} beside it; write {remedy}"
        raise ValidationError("invalid_tool", message, errors=[((field,), "not_allowed") for field in fields])
    if fields or not (function is None or callable(function)):
        got = ", ".join(fields) or f"{function!r:.80}"
        message = f"a tool is made from a name or from a function: got {got}; write tool(name='...', ...) or @tool"
        raise ValidationError("invalid_tool", message, errors=[(("name",), "required")])
    if function is None:
        return partial(_from_function, **options)
    return _from_function(function, **options)


_UNREAD = ".run() or await is missing, as in tools=mcp.tools(url).run()"


def _call_of(function: Any, options: Mapping[str, Any]) -> str:
    """Return the call of `tool` that `options` beside a function stand for."""
    called = getattr(function, "__name__", "function").replace("<lambda>", "function")
    if options.keys() & {"schema", "handler"}:
        return f"tool(name='...', schema={{...}}, handler={called})"
    settings = ", ".join(f"{name}={shorten(repr(value), 40)}" for name, value in options.items())
    return f"tool({settings})({called})"


def as_tool(value: Any) -> Tool:
    """Return `value`, a tool or a function, as a tool; a function becomes what ``@tool`` makes of it.

    >>> def add(a: int, b: int) -> int: return a + b
    >>> as_tool(add), as_tool(tool(add))
    (FunctionTool('add', ''), FunctionTool('add', ''))

    Raises ``ValidationError("invalid_tool")``.
    """
    around: Any = getattr(value, "__func__", None)
    if isinstance(around, FunctionTool):  # what a classmethod round a tool gives, from Python 3.13 on
        value = cast(Any, around).__get__(value.__self__)
    if not isinstance(value, Tool):
        if isinstance(value, type) or not callable(value) or _makes_agents(value):
            fault = f"{must_be('a Tool or a function', value)}; {_made_of(value)}"
            raise ValidationError("invalid_tool", fault)
        try:
            value = _from_function(value)
        except TypeError as error:
            raise ValidationError("invalid_tool", str(error)) from error
    result = cast(Tool, value)
    if vars(result).get("unbound"):  # not by getattr: a tool that lacks it would look for what may have been meant
        message = f"the tool {result.name!r} is a method without its object; pass obj.{result.name} of an object"
        raise ValidationError("invalid_tool", message)
    return result


def _made_of(value: Any) -> str:
    """Return how to make a tool of what is none; OpenAI's form has its name, description and schema."""
    if hasattr(value, "as_tool") or _makes_agents(value):
        return 'make an agent with engine.as_tool(name="...", description="...")'
    if isinstance(value, Awaitable):
        return _UNREAD
    if not isinstance(value, Mapping):
        is_engine = callable(getattr(value, "as_tool", None))
        return "write engine.as_tool(name=...)" if is_engine else "make a tool with rxllm.tool"
    return (
        "write rxllm.tool(name=..., description=..., schema={...}, handler=function), where schema is OpenAI's "
        "parameters; without a function write manual=True"
    )


def _makes_agents(value: Any) -> bool:
    """Whether `value` is the method of an engine that makes an agent of it, and not the agent."""
    return inspect.ismethod(value) and value.__name__ == "as_tool"


def as_tools(values: Any) -> tuple[Tool, ...]:
    """Return several tools or functions as tools. Raises ``ValidationError("invalid_option")``."""
    if not isinstance(values, Iterable) or isinstance(values, str | Mapping | Awaitable):
        fault = must_be("several tools or functions, as in tools=[function]", cast(object, values))
        raise invalid_option("tools", f"{fault}; {_UNREAD}" if isinstance(values, Awaitable) else fault)
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
    """Return the fault of two different tools of one name: the model could call only one of them."""
    by_name: dict[str, Tool] = {}
    for item in tools:
        other = by_name.setdefault(item.name, item)
        if other is not item and other != item:
            both = " and ".join(map(_place_of, (other, item)))
            return f"must have different names, and {both} are both {item.name!r}; rename one, or leave it out"
    return None


def _place_of(item: Tool) -> str:
    """Return the full name of a tool's function, the repr of another handler, or the tool's own without one."""
    function: Any = item.handler
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    return repr(item if function is None else function)


_OPTIONS = ("name", "description", "schema", "handler", "manual", "approval", "metadata", "timeout", "idempotent")
_MEANT = {
    **dict.fromkeys(("tool_timeout", "timeout_seconds", "time_limit"), "timeout"),
    **dict.fromkeys(("needs_approval", "requires_approval", "require_approval", "confirm"), "approval"),
    **dict.fromkeys(("parameters", "input_schema", "args_schema", "inputSchema"), "schema"),
    **dict.fromkeys(("function", "func", "fn", "callback"), "handler"),
}
"""What other libraries call the arguments of `tool`."""


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            near = f" (did you mean {_MEANT[name]!r}?)" if name in _MEANT else did_you_mean(name, _OPTIONS)
            message = f"tool has no option {name!r}{near}; it takes {', '.join(_OPTIONS)}"
            raise ValidationError("invalid_tool", message, errors=[((name,), "not_allowed")])


def renamed(settings: Tool, function: Callable[P, R]) -> FunctionTool[P, R]:
    """Return the tool of `function` with the name and flags of `settings`, and its description if there is one."""
    if not callable(function):
        raise TypeError(f"the tool {settings.name!r} has no function to call; pass handler=function")
    if settings != replace(settings, schema=Tool("").schema, handler=None):
        message = f"the tool {settings.name!r} has a schema or handler of its own and decorates no function"
        raise TypeError(message)
    result = _from_function(
        function,
        name=settings.name,
        description=settings.description,
        manual=settings.manual,
        approval=settings.approval,
        timeout=settings.timeout,
        idempotent=settings.idempotent,
    )
    return replace(result, metadata=settings.metadata)


def _from_function(
    function: Callable[P, R],
    *,
    name: str | None = None,
    description: str = "",
    manual: bool = False,
    approval: bool = False,
    timeout: ToolTimeout = "default",
    idempotent: bool = False,
) -> FunctionTool[P, R]:
    name = _name_of(function) if name is None else name
    signed = _signed(name, function)
    unbound = bool(signed) and signed[0].name in ("self", "cls") and signed[0].annotation is inspect.Parameter.empty
    parameters, context = _parameters(name, function, signed[unbound:])
    try:
        schema = object_schema(parameters)
    except Exception as error:  # msgspec's and pydantic's own
        raise _no_schema(name, error) from error
    docstring = _docstring_of(function)
    for parameter, text in _parameter_docs(docstring).items():
        if parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    description = description or re.split(r"\n\s*\n|\n\s*Args:", docstring)[0].strip()
    flags: dict[str, Any] = {"manual": manual, "approval": approval, "timeout": timeout, "idempotent": idempotent}
    known: dict[str, Any] = {"parameters": parameters, "context": context, "unbound": unbound}
    return FunctionTool(name, description, schema, function, **flags, **known)


def _imported(module: str, name: str) -> Any:
    """Return what `name` stands for in `module`; None if there is nothing."""
    try:
        return attrgetter(name)(import_module(module))
    except (AttributeError, ImportError):
        return None


def _imported_tool(module: str, name: str) -> Tool:
    found = _imported(module, name)
    return found if isinstance(found, Tool) else as_tool(found)


def _restored(fields: Mapping[str, Any]) -> Tool:
    result = cast(Tool, object.__new__(FunctionTool))
    vars(result).update(fields)
    return result


def _name_of(function: Any) -> str:
    """Return the name of a function, of the one in a ``partial``, or of a callable object's class."""
    name = getattr(function, "__name__", None)
    if name is None and isinstance(function, partial):
        return _name_of(cast(Any, function).func)
    if name == "<lambda>":
        message = (
            "a lambda has no name by which the model could call it; write a function with def or tool(name='...')(...)"
        )
        raise ValidationError("invalid_tool", message, errors=[(("name",), "required")])
    return name or type(function).__name__


def _function_in(function: Any) -> Any:
    """Return what has the hints and the docstring: the function itself, in a ``partial``, or a ``__call__``."""
    while isinstance(function, partial):
        function = cast(Any, function).func
    return function if hasattr(function, "__name__") else type(function).__call__


def _docstring_of(function: Any) -> str:
    own = inspect.getdoc(function) if hasattr(function, "__name__") else None
    inner = _function_in(function).__doc__
    return own or inspect.cleandoc(inner or "")


def _signed(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of `function` that are not filled in by a ``partial``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise TypeError(f"the tool {name!r} has no signature that Python knows; write a function around it") from error
    filled_in: Mapping[str, Any] = cast(Any, function).keywords if isinstance(function, partial) else {}
    return [parameter for parameter in parameters if parameter.name not in filled_in]


def _parameters(
    name: str, function: Callable[..., Any], signed: Iterable[inspect.Parameter]
) -> tuple[dict[str, Parameter], tuple[str, ...]]:
    """Return the parameters that the model gives, and the names of those that receive the context."""
    try:
        hints = get_type_hints(_function_in(function), include_extras=True)
    except NameError as error:
        message = f"the tool {name!r} has a hint that cannot be resolved: {error}; define that type in the module"
        raise TypeError(message) from error
    parameters: dict[str, Parameter] = {}
    context: list[str] = []
    for parameter in signed:
        hint = hints.get(parameter.name, Any)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            message = f"the tool {name!r} cannot have the parameter {parameter}: the model gives arguments by name"
            raise TypeError(message)
        if is_context(hint):
            context.append(parameter.name)
            continue
        try:
            parameters[parameter.name] = Parameter.of(hint, parameter.default)
        except Exception as error:  # pydantic's own
            raise _no_schema(name, error) from error
    return parameters, tuple(context)


def _no_schema(name: str, error: Exception) -> TypeError:
    return TypeError(f"the tool {name!r} has a parameter whose type has no JSON schema: {str(error).splitlines()[0]}")


def _parameter_docs(docstring: str) -> dict[str, str]:
    _, _, rest = docstring.partition("Args:\n")
    section = "".join(takewhile(lambda line: line[0].isspace(), rest.splitlines(keepends=True)))
    indent = re.match(r"[ \t]*", section)
    entries = re.split(rf"^{indent[0] if indent else ''}(\w+)(?:\s*\([^)]*\))?:", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2], strict=True)}
