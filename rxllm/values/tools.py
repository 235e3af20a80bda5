"""Tools, tool calls, the context of a call, and halts, which end a chat.

A `Tool`'s handler receives a mapping. A `FunctionTool` converts the arguments to the hinted types and passes them by
keyword.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter
from types import MethodType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

from rxllm.values.argument_checks import is_positive, must_be, shorten
from rxllm.values.base import Value, value
from rxllm.values.codec import encode_result
from rxllm.values.docstrings import read_docstring
from rxllm.values.errors import ToolError, ValidationError
from rxllm.values.json_text import described, read_arguments
from rxllm.values.pickles import by_value, portable, travels_by_value
from rxllm.values.tool_schemas import (
    Parameter,
    argument_streams,
    arguments_schema,
    convert,
    docstring_of,
    refuse_bounds,
    signature_of,
)

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

ToolTimeout = float | Literal["default"] | None
"""A tool's time limit in seconds. None means that there is no limit, and "default" means ``tool_timeout``."""


@value
class ToolCall(Value):
    """A model's call to a tool.

    `arguments` is the parsed JSON object, and `raw_arguments` is its text. Text passed as `arguments` is parsed. Blank
    text and ``null`` are no arguments. If the text is anything else than a JSON object, `arguments` is empty and
    ``metadata["error"]`` is the reason. ``metadata["server"]`` marks a call that the provider runs itself. rxllm shows
    it but does not run it. ``metadata["hosted"]`` marks a call that the provider runs once the caller has approved it.

    Raises ``ValidationError("invalid_message")`` if `id`, `name` or `arguments` has the wrong type.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    raw_arguments: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        # Decoders make many ToolCalls, so the check is skipped for the usual types.
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
            fault = must_be("a dict or JSON text", text)
            raise ValidationError("invalid_message", errors=[(("arguments",), fault)])

    def __repr__(self) -> str:
        if self.metadata.get("error"):
            return f"{self.name}({self.raw_arguments!r})"
        return f"{self.name}({', '.join(f'{name}={argument!r}' for name, argument in self.arguments.items())})"


@dataclass(frozen=True)
class ToolContext:
    """The context of a tool call.

    A parameter annotated with this class receives the context.

    * `progress` emits a ``ToolProgress`` event immediately.
    * `cancelled` is set as soon as no subscriber is waiting for the result.
    * `tool_call` contains the arguments, including any changes that the approver made.
    * `reply` is the user's answer to the tool's question.
    * `tool_state` is the state saved with the question; see `ask_user`.
    * `make_key` makes the `idempotency_key` when that key is first read.
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
        """A key that stays the same if the call runs again.

        Pass it to services that must not act twice, such as payment services. It is a hash of the session's id, the
        earlier conversation and the model's call. In an agent, it also includes the key of the call that runs the
        agent.

        Give each conversation a `session_id`. Without it, equal conversations can have equal keys, because some
        providers number the calls of each conversation from 0. Raises ``RuntimeError`` while the model is still writing
        the arguments.
        """
        return self.make_key()


@value
class Tool(Value):
    """A function that the model can call.

    * `schema`: a JSON schema for the object that contains the arguments.
    * `manual`: rxllm never runs the tool. The chat halts, and the caller provides the result.
    * `approval`: the tool runs only after its call is approved.
    * `timeout`: the maximum run time in seconds; None means no limit. It overrides ``tool_timeout``.
    * `idempotent`: the tool may run again after an interruption, with the same arguments and the same
      `ToolContext.idempotency_key`.
    * `eager`: the tool may start while the model is still writing.
    * `handler`: the code to run. A tool with a handler has no JSON form.

    Raises ``ValidationError("invalid_tool")`` if `timeout` is invalid.
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
    eager: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.timeout in ("default", None) or is_positive(self.timeout)):
            fault = must_be("a positive number of seconds, or None for no limit", self.timeout)
            raise ValidationError("invalid_tool", f"timeout {fault}", errors=[(("timeout",), fault)])
        for flag in ("manual", "approval", "idempotent", "eager"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(
                    f"the option {flag} of the tool {self.name!r} {must_be('True or False', getattr(self, flag))}"
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.description!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "handler": portable(self.handler, f"the handler of the tool {self.name!r}")}

    def __call__(self, function: Callable[P, R], /) -> FunctionTool[P, R]:
        """Make a tool from `function`, as ``@tool(name="lookup")`` does."""
        if not callable(function):
            raise TypeError(f"the tool {self.name!r} has no function to call; pass handler=function")
        if self != replace(self, schema=Tool("").schema, handler=None):
            message = f"the tool {self.name!r} already has a schema or handler, so it cannot decorate a function"
            raise TypeError(message)
        names = ("manual", "approval", "timeout", "idempotent", "eager", "metadata")
        flags = {name: getattr(self, name) for name in names}
        return from_function(function, self.name, self.description, **flags)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return a function that calls the handler with `arguments`.

        A handler with a second parameter also receives the context. Raises ``ToolError("not_found")`` if there is no
        handler.
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
    """A tool made from a function. Calling it calls the function.

    In a class body, it works like a method: ``obj.method`` is the bound tool.
    """

    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter], repr=False, compare=False)
    context: tuple[str, ...] = field(default=(), repr=False, compare=False)
    streams: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter], repr=False, compare=False)
    unbound: bool = field(default=False, repr=False, compare=False)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        handler = cast(Callable[..., Any], self.handler)
        place = (str(getattr(handler, "__module__", None)), getattr(handler, "__qualname__", type(handler).__name__))
        found = _find_object(*place)
        is_there = found is self or (found is handler and from_function(handler) == self)
        if is_there and not (place[0] == "__main__" and travels_by_value()):
            return _imported_tool, place
        fault = f"it cannot be imported as {'.'.join(place)}; decorate a function at module level"
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

    def bind(
        self, arguments: Mapping[str, Any], context: ToolContext, streams: Mapping[str, Any] | None = None
    ) -> Callable[[], Any]:
        """Return a function that calls the tool's own function with the converted `arguments`.

        `streams` are the ``Stream`` arguments that the model is still writing. All other arguments are in `arguments`.
        Raises ``ToolError("invalid_arguments")`` if an argument is missing or has the wrong type.
        """
        streams = streams or {}
        try:
            keywords = convert({n: p for n, p in self.parameters.items() if n not in streams}, arguments)
        except ValidationError as error:
            message = f"the arguments are invalid: {shorten(described(list(error.errors)), 400)}"
            call_id = context.tool_call.id
            raise ToolError("invalid_arguments", message, tool_name=self.name, tool_call_id=call_id) from error
        for name in self.streams.keys() - streams.keys():
            make_stream = cast(Callable[[Any], Any], self.streams[name].make_stream)
            keywords[name] = make_stream(keywords[name])
        keywords |= {**dict.fromkeys(self.context, context), **streams}
        return partial(cast(Callable[..., Any], self.handler), **keywords)


def from_function(
    function: Callable[P, R], name: str | None = None, description: str = "", **flags: Any
) -> FunctionTool[P, R]:
    """Make a tool from `function`.

    `name` and `description` replace the function's own name and description. Raises ``TypeError`` if a JSON schema
    cannot describe the function's parameters, or if their hints cannot be read. Raises
    ``ValidationError("invalid_tool")`` if `function` is a lambda and `name` is None.
    """
    name = _name_of(function) if name is None else name
    signature = signature_of(name, function)
    first = signature[0][0] if signature else None
    unbound = first is not None and first.name in ("self", "cls") and first.annotation is first.empty
    signature = signature[unbound:]
    for signed, _ in signature:
        if signed.kind in (signed.VAR_POSITIONAL, signed.VAR_KEYWORD, signed.POSITIONAL_ONLY):
            message = f"the tool {name!r} cannot have the parameter {signed}: the model passes arguments by name"
            raise TypeError(message)
    context = tuple(signed.name for signed, hint in signature if _is_context(hint))
    signature = [pair for pair in signature if not _is_context(pair[1])]
    streams, signature = argument_streams(name, function, signature)
    parameters, schema = arguments_schema(name, signature)
    refuse_bounds(name, streams, schema)
    own_description, texts = read_docstring(docstring_of(function))
    for parameter, text in texts.items():
        if text and parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    description = description or own_description
    known: dict[str, Any] = {"parameters": parameters, "context": context, "streams": streams, "unbound": unbound}
    return FunctionTool(name, description, schema, function, **flags, **known)


@value
class Halt(Value):
    """The object that a tool returns to end the chat. `halt` and `ask_user` create it."""

    _encoders: ClassVar = {"result": encode_result, "opts": encode_result, "tool_state": encode_result}

    reason: str
    result: Any = None
    question: str | None = None
    opts: dict[str, Any] = field(default_factory=dict[str, Any])
    calls_again: bool = False
    tool_state: Any = None


def halt(reason: str, result: Any = None) -> Halt:
    """Create the object that a tool returns to end the chat.

    The step's other tools finish first. `reason` becomes the chat's `halted_reason`, and `result` becomes the tool's
    result. An approver can return ``halt("approval")`` to leave the decision to the caller.
    """
    return Halt(reason, result)


def ask_user(question: str, *, calls_again: bool = False, tool_state: Any = None, **opts: Any) -> Halt:
    """Create the object that a tool returns to ask the user a question.

    The chat ends with the question. Normally, the model reads the answer. With `calls_again`, the tool runs again
    instead, with the answer in ``ToolContext.reply`` and the `tool_state` in ``ToolContext.tool_state``.

    `tool_state` must be JSON data, because another process may continue the chat. It is stored in the thread. Unlike
    `opts`, it is never sent to browsers.
    """
    return Halt("ask_user", question=question, opts=opts, calls_again=calls_again, tool_state=tool_state)


def _context_parameters(handler: Callable[..., Any]) -> list[str]:
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):  # an unresolvable hint is not a `ToolContext`
        return []
    return [name for name, hint in hints.items() if _is_context(hint) and name != "return"]


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in get_args(hint)


def _required_parameters(handler: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some built-in functions
        return 1
    return sum(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if name is None and isinstance(function, partial):
        return _name_of(cast(Any, function).func)
    if name == "<lambda>":
        message = "a lambda has no name; use def, or write tool(name='...')(...)"
        raise ValidationError("invalid_tool", message, errors=[(("name",), "required")])
    return name or type(function).__name__


def _find_object(module: str, name: str) -> Any:
    try:
        return attrgetter(name)(import_module(module))
    except (AttributeError, ImportError):
        return None


def _imported_tool(module: str, name: str) -> Tool:
    found = _find_object(module, name)
    return found if isinstance(found, Tool) else from_function(found)


def _restored(fields: Mapping[str, Any]) -> Tool:
    result = cast(Tool, object.__new__(FunctionTool))
    vars(result).update(fields)
    return result
