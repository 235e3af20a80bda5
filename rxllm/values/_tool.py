"""Tools, the calls that a model makes of them, and what a tool's function receives and returns."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import takewhile
from operator import attrgetter
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, cast, get_args, get_type_hints, overload

import msgspec

from rxllm.values._encode import Value, value
from rxllm.values.errors import ToolError, ValidationError

P = ParamSpec("P")
R = TypeVar("R")


@value
class ToolCall(Value):
    """A call of a tool that the model makes.

    `arguments` is the parsed object and `raw_arguments` its text. If the text is not a JSON object, it is kept,
    `arguments` is empty and ``metadata["error"]`` says why. ``metadata["server"]`` marks a call that the provider runs
    itself; such calls are shown, never executed.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    raw_arguments: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    other_names: ClassVar[Mapping[str, str]] = {
        "function": "name and arguments",
        **dict.fromkeys(("args", "input"), "arguments"),
    }

    def __repr__(self) -> str:
        if self.metadata.get("error"):
            return f"{self.name}({self.raw_arguments!r})"
        return f"{self.name}({', '.join(f'{name}={argument!r}' for name, argument in self.arguments.items())})"


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call; every parameter annotated with this class receives it.

    `progress` emits a ``ToolProgress`` event at once. `cancelled` is set when nobody waits for the result any more.
    """

    tool_call: ToolCall
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session_id: str | None = None
    request_id: str | None = None
    engine: Any = None
    progress: Callable[[Any], None] = lambda data: None
    cancelled: threading.Event = field(default_factory=threading.Event)


@value
class Tool(Value):
    """A function that the model may call.

    `schema` is the JSON schema of its arguments, an object. `manual` tools are never run here: the chat halts and the
    caller answers. `approval` tools run once their call is approved. A tool with a `handler` is code and has no JSON.
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
        for flag in ("manual", "approval"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{flag} of the tool {self.name!r} must be True or False")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.description!r})"

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return the handler with its arguments bound: the mapping, and the context if it takes a second one.

        Raises ``ToolError("not_found")`` if there is no handler.
        """
        if self.handler is None:
            message = f"the tool {self.name!r} has no handler; pass handler=... or manual=True"
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
        if _imported(*place) is not self:
            from pickle import PicklingError  # nothing else needs it

            message = f"the tool {self.name!r} is not the value of {'.'.join(place)}; decorate a function of a module"
            raise PicklingError(message)
        return _imported, place

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(Callable[P, R], self.handler)(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return the function with its arguments bound by keyword, converted to their annotated types.

        Raises ``ToolError("invalid_arguments")`` if they do not fit.
        """
        handler = cast(Callable[..., Any], self.handler)
        try:
            converted = msgspec.convert(dict(arguments), self.parameters)
        except msgspec.ValidationError as error:
            call_id = context.tool_call.id
            raise ToolError("invalid_arguments", str(error), tool_name=self.name, tool_call_id=call_id) from error
        keywords = {name: getattr(converted, name) for name in self.parameters.__struct_fields__}
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
    """Return this from a tool to end the chat with `reason` once the tools beside it have finished.

    `result` is the tool's result.
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
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a tool: as a decorator, from a function's name, docstring and hints; with ``name=``, from arguments.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add(2, 3), add.name, add.description, add.schema["required"]
    (5, 'add', 'Add two numbers.', ['a'])

    Parameters annotated ``ToolContext`` are filled in and are not shown to the model. A Google-style ``Args:`` section
    describes the parameters. Raises ``TypeError`` for a signature that has no JSON schema, and
    ``ValidationError("invalid_tool")`` for arguments without a name.
    """
    fields = ["name"] * (name is not None) + sorted(options.keys() - {"manual", "approval"})
    if function is None and name is not None:
        schema = options.pop("schema", None)
        return Tool(name=name, **options, **({"schema": schema} if schema is not None else {}))
    if fields or not (function is None or callable(function)):
        got = ", ".join(fields) or f"{function!r:.80}"
        message = f"a tool is made from a name or from a function: got {got}; write tool(name='...', ...) or @tool"
        lacks_name = [(("name",), "required")]
        faults = [((name,), "not_allowed") for name in fields] if callable(function) else lacks_name
        raise ValidationError("invalid_tool", message, errors=faults)
    if function is None:
        return partial(_from_function, **options)
    return _from_function(function, **options)


def denied(call: ToolCall, verdict: object) -> ToolError:
    """Return the error for a tool call that is not approved; a `verdict` that is text is the reason."""
    reason = verdict if isinstance(verdict, str) and verdict else "it was not approved"
    return ToolError("denied", f"the call was denied: {reason}", tool_name=call.name, tool_call_id=call.id)


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
    for parameter, text in _parameter_docs(docstring).items():
        if parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    if components:
        schema["$defs"] = components
    description = re.split(r"\n\s*\n|\n\s*Args:", docstring)[0].strip()
    return FunctionTool(name, description, schema, function, manual, approval, parameters=parameters)


def _imported(module: str, name: str) -> Any:
    """Return what `name` stands for in `module`; None if there is nothing."""
    try:
        return attrgetter(name)(import_module(module))
    except (AttributeError, ImportError):
        return None


def _parameters(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            message = f"the tool {name!r} cannot have the parameter {parameter}: the model gives arguments by name"
            raise TypeError(message)
        hint = hints.get(parameter.name, Any)
        if _is_context(hint):
            continue
        spec = [parameter.name, hint]
        if parameter.default is not parameter.empty:
            spec.append(msgspec.field(default_factory=lambda default=parameter.default: default))
        fields.append(tuple(spec))
    return msgspec.defstruct(name, fields, kw_only=True)


def _parameter_docs(docstring: str) -> dict[str, str]:
    _, _, rest = docstring.partition("Args:\n")
    section = "".join(takewhile(lambda line: line[0].isspace(), rest.splitlines(keepends=True)))
    indent = re.match(r"[ \t]*", section)
    entries = re.split(rf"^{indent[0] if indent else ''}(\w+)(?:\s*\([^)]*\))?:", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2], strict=True)}


def _context_parameters(handler: Callable[..., Any]) -> list[str]:
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):  # hints that cannot be resolved name no context
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
