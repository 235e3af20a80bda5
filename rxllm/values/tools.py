"""Tools, the calls that a model makes of them, and the parameters of a tool's function.

Each parameter is read by msgspec or, if its hint brings pydantic, by pydantic.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from importlib import import_module
from inspect import Parameter as Signed
from pathlib import PurePath
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from rxllm.values.argument_checks import is_positive, must_be
from rxllm.values.by_value import portable
from rxllm.values.codec import Value, encode_result, value
from rxllm.values.errors import Path, ToolError, ValidationError
from rxllm.values.json_text import (
    brings_pydantic,
    faults_of,
    is_field,
    is_pydantic,
    json_bytes,
    json_data,
    read_arguments,
    type_adapter,
)

if TYPE_CHECKING:
    from rxllm.values.function_tools import FunctionTool


P = ParamSpec("P")
R = TypeVar("R")


# Tools, the calls that a model makes of them, and what a tool's function receives and returns


ToolTimeout = float | Literal["default"] | None
"""Seconds, None for no limit, or "default", which is the option ``tool_timeout`` of the call."""


@value
class ToolCall(Value):
    """A call of a tool that the model makes.

    `arguments` is the parsed object and `raw_arguments` its text; text in the place of `arguments` is parsed. If it is
    not a JSON object, it is kept, `arguments` is empty and ``metadata["error"]`` says why. ``metadata["server"]`` marks
    a call that the provider runs itself; such calls are shown, never executed.

    Raises ``ValidationError("invalid_message")`` for an `id`, `name` or `arguments` of another type, and for half a
    surrogate pair in an `id` or `name`.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    raw_arguments: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    _other_names: ClassVar[Mapping[str, str]] = {
        "function": "name and arguments",
        **dict.fromkeys(("args", "input"), "arguments"),
    }

    def __post_init__(self) -> None:
        # Each wire makes these: the usual ones pass at once.
        if type(self.arguments) is not dict or type(self.name) is not str or type(self.id) is not str:
            self._check()

    def _check(self) -> None:
        for name in ("id", "name"):
            if not isinstance(getattr(self, name), str):
                fault = f'{must_be("a string", getattr(self, name))}; write ToolCall("c1", "add", {{...}})'
                raise ValidationError("invalid_message", errors=[((name,), fault)])
        text: Any = self.arguments
        if isinstance(text, str):
            arguments = read_arguments(text)
            vars(self).update(arguments=arguments or {}, raw_arguments=text)
            if arguments is None:
                vars(self)["metadata"] = {**self.metadata, "error": "invalid_json"}
        elif not isinstance(text, Mapping):
            fault = must_be("a dict, or its JSON as text", text)
            raise ValidationError("invalid_message", errors=[(("arguments",), fault)])

    def __repr__(self) -> str:
        if self.metadata.get("error"):
            return f"{self.name}({self.raw_arguments!r})"
        return f"{self.name}({', '.join(f'{name}={argument!r}' for name, argument in self.arguments.items())})"


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of its call; every parameter annotated with this class receives it.

    `progress` emits a ``ToolProgress`` event at once. `cancelled` is set when nobody waits for the result any more.
    `tool_call` has the arguments with which the tool runs, also if an approval has edited them. `reply` is the user's
    answer to the question with which this call has halted, and `tool_state` what it has kept there, see `ask_user`.
    `make_key` is called when `idempotency_key` is first read.
    """

    tool_call: ToolCall
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session_id: str | None = None
    request_id: str | None = None
    engine: Any = None
    progress: Callable[[Any], None] = lambda data: None
    cancelled: threading.Event = field(default_factory=threading.Event)
    reply: str | None = None
    tool_state: Any = None
    make_key: Callable[[], str] = field(default=str, repr=False, compare=False)

    @cached_property
    def idempotency_key(self) -> str:
        """A text that is equal whenever this call is run: again, after a retry, or in another process by ``resume``.

        Pass it to a service that must not do a thing twice, such as a payment. It is a hash of the conversation before
        the call, the session's id, the call with the model's arguments, and the key of the tool call around it, if an
        agent makes the call. Without a `session_id`, two conversations with equal messages and equal call ids have
        equal keys; some providers number their calls, so give each conversation an id.
        """
        return self.make_key()


@value
class Tool(Value):
    """A function that the model may call.

    `schema` is the JSON schema of its arguments, an object. `manual` tools are never run here: the chat halts and the
    caller answers. `approval` tools run once their call is approved. `timeout` is the longest run in seconds, None for
    no limit; it goes before the option ``tool_timeout``. An `idempotent` tool may be run again with the same arguments
    and the same `ToolContext.idempotency_key` if it was interrupted. A tool with a `handler` is code and has no JSON.
    Arguments are checked by the schema.

    Raises ``ValidationError("invalid_tool")`` for a `timeout` of another kind.
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
    timeout: ToolTimeout = "default"
    idempotent: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.timeout in ("default", None) or is_positive(self.timeout)):
            fault = must_be("a number of seconds above 0, or None for no limit", self.timeout)
            raise ValidationError("invalid_tool", f"timeout {fault}", errors=[(("timeout",), fault)])
        for flag in ("manual", "approval", "idempotent"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{flag} of the tool {self.name!r} must be True or False")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.description!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "handler": portable(self.handler, f"the handler of the tool {self.name!r}")}

    def __call__(self, function: Callable[P, R], /) -> FunctionTool[P, R]:
        """Make a tool of `function`, as a decorator: ``@tool(name="lookup", approval=True)``."""
        from rxllm.values.function_tools import renamed  # it imports this module

        return renamed(self, function)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return the handler with its arguments bound: the mapping, and the context if it takes a second one.

        Raises ``ToolError("not_found")`` if there is no handler.
        """
        if self.handler is None:
            message = f"the tool {self.name!r} has no handler; pass handler=... or manual=True"
            raise ToolError("not_found", message, tool_name=self.name, tool_call_id=context.tool_call.id)
        handler = self.handler
        injected: dict[str, Any] = dict.fromkeys(context_parameters(handler), context)
        positional = [arguments, context] if _required_parameters(handler) - len(injected) == 2 else [arguments]
        return lambda: handler(*positional, **injected)


@value
class Halt(Value):
    """What a tool returns to end the chat: see `halt` and `ask_user`."""

    _encoders: ClassVar = {"result": encode_result, "opts": encode_result, "tool_state": encode_result}

    reason: str
    result: Any = None
    question: str | None = None
    opts: dict[str, Any] = field(default_factory=dict[str, Any])
    calls_again: bool = False
    tool_state: Any = None


def halt(reason: str, result: Any = None) -> Halt:
    """Return this from a tool to end the chat with `reason` once the tools beside it have finished.

    `result` is the tool's result. An approver returns ``halt("approval")`` to leave a call to the caller.
    """
    return Halt(reason, result)


def ask_user(question: str, *, calls_again: bool = False, tool_state: Any = None, **opts: Any) -> Halt:
    """Return this from a tool to end the chat with a question to the user.

    The model reads the answer, unless `calls_again`: then the tool runs once more, with the answer in
    ``ToolContext.reply`` and `tool_state` in ``ToolContext.tool_state``. The state is JSON data, since the chat may go
    on in another process; it is in the thread, and unlike `opts` it is not sent to browsers.
    """
    return Halt("ask_user", question=question, opts=opts, calls_again=calls_again, tool_state=tool_state)


def context_parameters(handler: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that are annotated `ToolContext`."""
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):  # hints that cannot be resolved name no context
        return []
    return [name for name, hint in hints.items() if is_context(hint) and name != "return"]


def is_context(hint: Any) -> bool:
    """Whether a parameter with this hint receives the `ToolContext`."""
    return hint is ToolContext or ToolContext in get_args(hint)


def _required_parameters(handler: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


# The parameters of a tool's function


Default = Callable[[], Any]

_DATETIME = Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
_GENERICS = (list, dict, set, frozenset, tuple)


class Parameter(msgspec.Struct, frozen=True, eq=False):
    """A parameter that the model gives. `adapter` is pydantic's ``TypeAdapter``, None for a hint that msgspec reads."""

    hint: Any
    default: Default | None = None
    adapter: Any = None

    @classmethod
    def of(cls, hint: Any, default: Any = Signed.empty) -> Parameter:
        """Return the parameter with this hint and default, which may be a ``Field`` of pydantic's."""
        if is_field(default):
            hint, default = Annotated[hint, default], Signed.empty
        fields = (info for info in getattr(hint, "__metadata__", ()) if is_field(info) and not info.is_required())
        make = None if default is Signed.empty else lambda: default
        for info in fields if make is None else ():
            make = partial(info.get_default, call_default_factory=True)
        if not brings_pydantic(hint):
            return cls(_spelled_out(hint, lambda text: msgspec.Meta(description=text)), make)
        hint = _spelled_out(hint, lambda text: import_module("pydantic").Field(description=text))
        return cls(hint, make, type_adapter(hint))

    def read(self, data: Any) -> Any:
        """Return JSON `data` as the type of the hint. Raises msgspec's and pydantic's own errors."""
        if self.adapter is None:
            return msgspec.convert(data, self.hint, dec_hook=_read_path)
        return self.adapter.validate_json(json_bytes(data))


def object_schema(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the JSON schema of an object with these properties. Raises the ``TypeError`` of a hint without one."""
    schemas, shared = _schemas(parameters)
    for name, parameter in parameters.items():
        if parameter.default is not None and (default := _default_data(parameter.default)) is not None:
            schemas[name].setdefault("default", default)
    required = [name for name, parameter in parameters.items() if parameter.default is None]
    schema = {"type": "object", "properties": {name: schemas[name] for name in parameters}, "required": required}
    return {**schema, "$defs": shared} if shared else schema


def convert(parameters: Mapping[str, Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter. Raises ``ValidationError("invalid_request")``, with every fault."""
    values: dict[str, Any] = {}
    faults: list[tuple[Path, str]] = []
    for name, parameter in parameters.items():
        if name not in arguments and parameter.default is None:
            faults.append(((name,), "is missing, but required"))
            continue
        try:
            default = parameter.default
            values[name] = parameter.read(arguments[name]) if name in arguments else cast(Default, default)()
        except Exception as error:  # a validator of the type may raise anything
            faults += [((name, *path), fault) for path, fault in faults_of(error)]
    if faults:
        raise ValidationError("invalid_request", errors=faults)
    return values


def _schemas(parameters: Mapping[str, Parameter]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each parameter, and those that they refer to."""
    adapters = {name: parameter.adapter for name, parameter in parameters.items() if parameter.adapter is not None}
    hints = {name: parameter.hint for name, parameter in parameters.items() if parameter.adapter is None}
    plain, shared = msgspec.json.schema_components(
        hints.values(), schema_hook=_path_schema, ref_template="#/$defs/{name}"
    )
    schemas = dict(zip(hints, plain, strict=True))
    if adapters:
        keyed = [(name, "validation", adapter) for name, adapter in adapters.items()]
        # Names of their own: a class may stand in both halves, with a schema that differs.
        prefix = "pydantic_" if shared else ""
        template = f"#/$defs/{prefix}{{model}}"
        found, rest = import_module("pydantic").TypeAdapter.json_schemas(keyed, ref_template=template)
        schemas |= {name: schema for (name, _), schema in found.items()}
        shared |= {prefix + name: schema for name, schema in rest.get("$defs", {}).items()}
    return schemas, shared


def _spelled_out(hint: Any, describe: Callable[[str], Any]) -> Any:
    """Return `hint` with what schemas leave out: the text in ``Annotated[T, "text"]``, the format of a datetime."""
    if hint is datetime:
        return _DATETIME
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        metadata = (describe(item) if isinstance(item, str) else item for item in hint.__metadata__)
        return Annotated[(_spelled_out(args[0], describe), *metadata)]  # pyright: ignore
    parts = tuple(_spelled_out(part, describe) for part in args) if origin is not Literal else args
    if origin in (Union, UnionType):
        return Union[parts]  # noqa: UP007
    return cast(Any, origin)[parts] if origin in _GENERICS and parts else hint


def _default_data(default: Default) -> Any:
    """Return a default as JSON data; None for None, and for what has no JSON and cannot be shown."""
    try:
        return json_data(default())
    except ValidationError:
        return None


def _path_schema(cls: type[Any]) -> dict[str, Any]:
    if issubclass(cls, PurePath):
        return {"type": "string", "format": "path"}
    if is_pydantic(cls):
        raise TypeError(
            f"{cls.__name__} is pydantic's, and stands in a msgspec Struct; use a dataclass or a model there"
        )
    raise TypeError(f"{cls.__name__} is not a type of data; use one, or pass such an object in ToolContext.context")


def _read_path(cls: type[Any], data: Any) -> Any:
    if issubclass(cls, PurePath) and isinstance(data, str):
        return cls(data)
    raise TypeError(f"Expected `str`, got `{type(data).__name__}`")
