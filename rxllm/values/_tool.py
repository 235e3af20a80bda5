"""Tools: what the model may ask for, and what its answer means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from importlib import import_module
from itertools import takewhile
from operator import attrgetter
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, get_args, get_type_hints, overload

import msgspec

from rxllm.values._call import ToolContext
from rxllm.values._value import Value, value
from rxllm.values.errors import ToolError, ValidationError

P = ParamSpec("P")
R = TypeVar("R")


@value
class Tool(Value):
    """A function that the model may call.

    `schema` is the JSON schema of its arguments, an object. `manual` tools are never run here: the chat halts and the
    caller answers. `approval` tools run once somebody has said yes. A tool with a `handler` is code and has no JSON.
    """

    name: str
    description: str = ""
    schema: dict[str, Any] = field(  # pyright: ignore[reportIncompatibleMethodOverride]
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    handler: Callable[..., Any] | None = field(default=None, repr=False)
    manual: bool = False
    approval: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("manual", "approval"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} of the tool {self.name!r} must be True or False")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.description!r})"

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """The handler with its arguments in place: the mapping, and the context if it takes a second one.

        Raises ``ToolError("not_found")`` without a handler.
        """
        if self.handler is None:
            message = f"the tool {self.name!r} has no handler; give it one, or make it manual=True"
            raise ToolError("not_found", message, tool_name=self.name, tool_call_id=context.tool_call.id)
        handler = self.handler
        injected: dict[str, Any] = dict.fromkeys(_context_parameters(handler), context)
        positional = [arguments, context] if _required_parameters(handler) - len(injected) == 2 else [arguments]
        return lambda: handler(*positional, **injected)


@value
class FunctionTool(Tool, Generic[P, R]):
    """A tool made from a function by the decorator; calling it calls the function."""

    parameters: type[msgspec.Struct] = field(default=msgspec.Struct, repr=False)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        handler = cast(Callable[..., Any], self.handler)
        place = (handler.__module__, handler.__qualname__)
        if _found(*place) is not self:
            from pickle import PicklingError  # the rest of rxllm does without

            message = f"the tool {self.name!r} is not what {'.'.join(place)} names; decorate a function of a module"
            raise PicklingError(message)
        return _found, place

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(Callable[P, R], self.handler)(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """The function with its arguments by keyword, converted to their annotated types.

        Raises ``ToolError("invalid_arguments")`` where they do not fit.
        """
        handler = cast(Callable[..., Any], self.handler)
        try:
            given = msgspec.convert(dict(arguments), self.parameters)
        except msgspec.ValidationError as error:
            call_id = context.tool_call.id
            raise ToolError("invalid_arguments", str(error), tool_name=self.name, tool_call_id=call_id) from error
        keywords = {name: getattr(given, name) for name in self.parameters.__struct_fields__}
        keywords |= dict.fromkeys(_context_parameters(handler), context)
        return lambda: handler(**keywords)


@value
class Halt(Value):
    """What a tool returns to end the chat: see `halt` and `ask_user`."""

    reason: str
    result: Any = None
    question: str | None = None
    opts: dict[str, Any] = field(default_factory=dict[str, Any])


def halt(reason: str, result: Any = None) -> Halt:
    """Return this from a tool to end the chat with `reason` once its siblings have finished; `result` is the tool's
    result.
    """
    return Halt(reason, result)


def ask_user(question: str, **opts: Any) -> Halt:
    """Return this from a tool to end the chat with a question to the user."""
    return Halt("ask_user", question=question, opts=opts)


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
) -> Tool: ...
@overload
def tool(*, manual: bool = False, approval: bool = False) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **given: Any) -> Any:
    """Make a tool: as a decorator from a function's name, docstring and type hints, or with ``name=`` from its pieces.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add(2, 3), add.name, add.description, add.schema["required"]
    (5, 'add', 'Add two numbers.', ['a'])

    Parameters annotated ``ToolContext`` are filled in and are not shown to the model. A Google-style ``Args:`` section
    describes the parameters. Raises ``TypeError`` for a signature that has no JSON schema, and
    ``ValidationError("invalid_tool")`` for pieces without a name.
    """
    pieces = ["name"] * (name is not None) + sorted(given.keys() - {"manual", "approval"})
    if function is None and name is not None:
        schema = given.pop("schema", None)
        return Tool(name=name, **given, **({"schema": schema} if schema is not None else {}))
    if pieces or not (function is None or callable(function)):
        shown = ", ".join(pieces) or f"{function!r:.80}"
        message = f"a tool is made of pieces or of a function: got {shown}; write tool(name='...', ...) or @tool"
        lacks_name = [(("name",), "required")]
        faults = [((piece,), "not_allowed") for piece in pieces] if callable(function) else lacks_name
        raise ValidationError("invalid_tool", message, errors=faults)
    if function is None:
        return partial(_from_function, **given)
    return _from_function(function, **given)


def _from_function(function: Callable[P, R], *, manual: bool = False, approval: bool = False) -> FunctionTool[P, R]:
    docstring = inspect.getdoc(function) or ""
    name = function.__name__
    parameters = _parameters(name, function)
    try:
        (root,), components = msgspec.json.schema_components([parameters], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise TypeError(f"the tool {name!r} has a parameter whose type has no JSON schema: {error}") from error
    schema = components.pop(root["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    schema.setdefault("required", [])
    for parameter, text in _described(docstring).items():
        if parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    if components:
        schema["$defs"] = components
    description = re.split(r"\n\s*\n|\n\s*Args:", docstring)[0].strip()
    return FunctionTool(name, description, schema, function, manual, approval, parameters=parameters)


def _found(module: str, name: str) -> Any:
    """What is called `name` in `module`; None for what is not there."""
    try:
        return attrgetter(name)(import_module(module))
    except (AttributeError, ImportError):
        return None


def _parameters(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(
                f"the tool {name!r} cannot have the parameter {parameter}: the model gives arguments by name"
            )
        hint = hints.get(parameter.name, Any)
        if _is_context(hint):
            continue
        default = (
            ()
            if parameter.default is parameter.empty
            else (msgspec.field(default_factory=lambda d=parameter.default: d),)
        )
        fields.append((parameter.name, hint, *default))
    return msgspec.defstruct(name, fields, kw_only=True)


def _described(docstring: str) -> dict[str, str]:
    _, _, rest = docstring.partition("Args:\n")
    section = "".join(takewhile(lambda line: line[0].isspace(), rest.splitlines(keepends=True)))
    indent = re.match(r"[ \t]*", section)
    entries = re.split(rf"^{indent[0] if indent else ''}(\w+)(?:\s*\([^)]*\))?:", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2], strict=True)}


def _context_parameters(handler: Callable[..., Any]) -> list[str]:
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):  # hints that cannot be read name no context
        return []
    return [name for name, hint in hints.items() if _is_context(hint) and name != "return"]


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in get_args(hint)


def _required_parameters(handler: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)
