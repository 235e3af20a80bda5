"""The `Engine`, which combines an adapter with the settings that calls share."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from reactivex import Observable

from rxllm.events import Custom, Event
from rxllm.runtime import Retry, current_place
from rxllm.runtime.stream_arguments import check_operators
from rxllm.tools import PROMPT, AgentTool, chats
from rxllm.values import EngineError, Request, Tool, Usage, ValidationError, as_tool, name_fault
from rxllm.values.advice import advice, explains_options, no_field, unknown_option
from rxllm.values.argument_checks import (
    call_fault,
    check,
    check_function,
    check_instance,
    explains_call,
    invalid_option,
    must_be,
)
from rxllm.values.drawing import drawn
from rxllm.values.pickles import engine_state
from rxllm.values.secret_names import MASK, masked

if TYPE_CHECKING:
    from rxllm.pipelines import ChatOptions

Operator = Callable[[Observable[Event]], Observable[Event]]


@dataclass(frozen=True)
class Alongside:
    """A check that runs while the model is answering; see `alongside`."""

    check: Callable[[Request], Any]


@dataclass(frozen=True)
class Prepared:
    """The result of a `prepare` function.

    `request` is the request to send. `metadata` must be JSON data. It is added to the answer's message, and stays in
    the thread. `event` is emitted right after the answer's ``MessageStarted``. `usage` is the usage of the function's
    own calls, and is added to the answer's usage. If the answer fails before it begins, the error's
    ``metadata["usage"]`` contains `usage` instead.
    """

    request: Request
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    event: Custom | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        check_instance("metadata", self.metadata, Mapping, "a mapping")
        check_instance("event", self.event, Custom | None, "a Custom event or None")
        check_instance("usage", self.usage, Usage, "a Usage")


Prepare = Callable[[Request], Any] | Alongside
"""A function that takes a `Request` and returns the `Request` to send, or a `Prepared`.

The function can also return an awaitable or an Observable of a `Request` or a `Prepared`.
"""


def alongside(check: Callable[[Request], Any]) -> Alongside:
    """Run ``check(request)`` while the model is answering.

    Use it in an engine's `prepare`. The answer is held back until the check has passed. As with ``ops.guard``, `check`
    returns a verdict, or an awaitable or Observable of a verdict. None and True let the answer through. Any other
    verdict, such as False or a string that gives the reason, blocks the answer. The answer's connection is then closed,
    and ``on_error`` receives a ``StreamError`` (``guard_tripped`` or ``guard_failed``). If `check` raises an exception,
    the answer is blocked as well, and ``on_error`` receives the exception unchanged. Once 1,024 events are waiting for
    the check, the answer is paused until the check has passed.

    >>> from rxllm import Fake, generate
    >>> async def moderate(request):
    ...     if "bomb" in request.messages[-1].text:
    ...         return "the question is not allowed"
    >>> engine = Engine(Fake("Hello"), prepare=[alongside(moderate)])
    >>> generate(engine, "Hi").run().output_text
    'Hello'
    >>> generate(engine, "How is a bomb built?").run()
    Traceback (most recent call last):
        ...
    rxllm.StreamError: the guard 'moderate' tripped: the question is not allowed

    Raises ``ValidationError("invalid_option")`` if `check` is not a function that takes a request.
    """
    check_function("check", check)
    if call_fault(check, None) is not None:
        raise invalid_option("check", must_be("a function that takes a request", check))
    return Alongside(check)


@dataclass(frozen=True)
class Engine:
    """An adapter and the settings that calls share.

    An engine is immutable and never holds an API key. `adapter` is one of these:

    ===============================  ===================================================================================
    ``"openai:gpt-5"``, ``"local"``  a name, of a provider that is built in or installed as a plugin. All options that
                                     are not in the table below are passed to its adapter. HTTP adapters accept
                                     `api_key`, `base_url`, `headers`, `timeout` and `client`
    an adapter                       such as ``rxllm.OpenAIChat()``
    an `Engine`                      The given settings replace the engine's, but `tools`, `operators`, `prepare` and
                                     `observers` are added, as with `with_tools` and `with_operators`
    ===============================  ===================================================================================

    =========================================  =========================================================================
    `adapter`, `model`, `tools`                the model to call, and the tools that it can call
    `system`                                   the system prompt of every call, sent before the call's own `system` and
                                               the thread's system messages, and is not added to the thread
    `params`                                   default options for every call
    `context`                                  data that tools receive as ``ToolContext.context``
    `operators`                                middleware: operators applied, in order, to every response
    `prepare`                                  functions that change, check or refuse each request before it is sent.
                                               They are called in order. Each receives the `Request` from the function
                                               before it, and returns a `Request` or a `Prepared`, or an awaitable or
                                               Observable of either. To refuse the request, a function raises an error.
                                               `alongside` adds a check that runs while the model answers
    `observers`                                functions that are called with telemetry values
    `retry`                                    a `RetryPolicy`, a mapping of its fields, or False for no retries
    `image_adapter`                            the adapter that generates images
    `tool_executor`                            a function that runs the tools
    `tool_result_encoder`                      a function that turns a tool's result into text for the model
    `errors`                                   with ``"events"``, an answer that fails midway ends in an ``ErrorEvent``;
                                               with ``"raise"``, it ends in ``on_error``, as with
                                               ``ops.raise_errors()`` at the end of `operators`
    =========================================  =========================================================================

    >>> from rxllm import Fake
    >>> engine = Engine(Fake("Hi"), model="small").with_params(temperature=0.0)
    >>> engine.model, engine.params
    ('small', {'temperature': 0.0})
    >>> Engine("openai:gpt-5", base_url="http://localhost:8080/v1", params={"seed": 1}).adapter
    OpenAIChat('http://localhost:8080/v1')

    Lists are converted to tuples. A deep copy has its own HTTP clients. A pickle contains neither clients nor keys.

    Raises ``EngineError("invalid_engine")`` if `params` contains an ``api_key``, or if `errors`, `system`, a tool, an
    operator, a `prepare` function or an observer is invalid. Raises ``EngineError("unknown_provider")`` if there is no
    such provider, and ``EngineError("unknown_option")`` for an unknown option.
    """

    adapter: Any = None
    model: str | None = None
    tools: tuple[Tool, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    image_adapter: Any = None
    operators: tuple[Operator, ...] = ()
    prepare: tuple[Prepare, ...] = ()
    observers: tuple[Callable[[Any], object], ...] = ()
    retry: Retry = "default"
    tool_executor: Callable[..., Any] | None = None
    tool_result_encoder: Callable[[Any], str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    errors: Literal["events", "raise"] = "events"
    system: str | None = None

    if TYPE_CHECKING:  # lists and plain functions are also accepted

        @overload  # a name, with options of its adapter
        def __init__(
            self,
            adapter: str,
            model: str | None = None,
            tools: Iterable[Tool | Callable[..., Any]] = (),
            params: Mapping[str, Any] = ...,
            context: Mapping[str, Any] = ...,
            image_adapter: Any = None,
            operators: Iterable[Operator] = (),
            prepare: Iterable[Prepare] = (),
            observers: Iterable[Callable[[Any], object]] = (),
            retry: Retry = "default",
            tool_executor: Callable[..., Any] | None = None,
            tool_result_encoder: Callable[[Any], str] | None = None,
            metadata: Mapping[str, Any] = ...,
            errors: Literal["events", "raise"] = "events",
            system: str | None = None,
            **adapter_options: Any,
        ) -> None: ...
        @overload  # an adapter or an engine
        def __init__(
            self,
            adapter: Any = None,
            model: str | None = None,
            tools: Iterable[Tool | Callable[..., Any]] = (),
            params: Mapping[str, Any] = ...,
            context: Mapping[str, Any] = ...,
            image_adapter: Any = None,
            operators: Iterable[Operator] = (),
            prepare: Iterable[Prepare] = (),
            observers: Iterable[Callable[[Any], object]] = (),
            retry: Retry = "default",
            tool_executor: Callable[..., Any] | None = None,
            tool_result_encoder: Callable[[Any], str] | None = None,
            metadata: Mapping[str, Any] = ...,
            errors: Literal["events", "raise"] = "events",
            system: str | None = None,
        ) -> None: ...
        def __init__(self, adapter: Any = None, model: str | None = None, *more: Any, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        if "api_key" in self.params:
            message = (
                "an engine's params must not contain an api_key; "
                "pass it to the call or the adapter, or call rxllm.keys.put(provider, key)"
            )
            raise EngineError("invalid_engine", message)
        if self.errors not in ("events", "raise"):
            raise _invalid(f"errors {must_be(repr('events') + ' or ' + repr('raise'), self.errors)}")
        if not isinstance(self.system, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _invalid(f"system {must_be('a string (the system prompt)', self.system)}")
        for name in _ADDED:
            object.__setattr__(self, name, _check_entries(name, getattr(self, name)))

    if not TYPE_CHECKING:  # type checkers report unknown attributes themselves

        def __getattr__(self, name: str) -> Any:
            raise no_field(type(self), name)

    def __repr__(self) -> str:
        return f"Engine({', '.join(f'{name}={value!r}' for name, value in settings(self).items())})"

    _repr_html_ = drawn

    def __getstate__(self) -> dict[str, Any]:
        return engine_state(vars(self))

    def __copy__(self) -> Engine:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        return replace(self, **deepcopy(vars(self), memo))

    def with_model(self, model: str) -> Engine:
        return replace(self, model=model)

    def with_tools(self, *tools: Tool | Callable[..., Any], replace: bool = False) -> Engine:
        """Return an engine with these tools added.

        Raises ``EngineError("invalid_engine")`` if the engine already has a tool with the same name. With `replace`,
        the new tool replaces the old one instead. The new tool needs approval if the old one did.
        """
        added = _check_entries("tools", tools)
        taken = {tool.name for tool in self.tools} & {tool.name for tool in added}
        if taken and not replace:
            remedy = "rename one of the two, or write with_tools(..., replace=True)"
            raise _invalid(f"tools already include {', '.join(sorted(taken))}; {remedy}")
        return dataclasses.replace(self, tools=merge_tools(self.tools, added))

    def with_params(self, **params: Any) -> Engine:
        return replace(self, params={**self.params, **params})

    def with_context(self, **context: Any) -> Engine:
        return replace(self, context={**self.context, **context})

    def with_operators(self, *operators: Operator) -> Engine:
        return replace(self, operators=(*self.operators, *operators))

    def with_prepare(self, *functions: Prepare) -> Engine:
        return replace(self, prepare=(*self.prepare, *functions))

    @explains_call('engine.as_tool(name="poet", description="Write a poem.")')
    def as_tool(
        self,
        *,
        name: str,
        description: str = "",
        schema: dict[str, Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> AgentTool:
        """Return this engine as a tool that runs its own chat.

        >>> from rxllm import Fake, ToolCall, chat
        >>> poet = Engine(Fake("Roses are red.")).as_tool(name="poet", description="Write a line of poetry.")
        >>> model = Fake(ToolCall("c1", "poet", {"prompt": "On roses"}), "Here it is: Roses are red.")
        >>> chat(model, "A line on roses, please", tools=[poet]).run().output_text
        'Here it is: Roses are red.'

        The tool's result is the text of the agent's answer or, with a `response_format`, the parsed value. `options`
        are options of ``rxllm.chat``. If `system` is among them, the agent's thread begins with this prompt. The
        agent's user message is the ``prompt`` argument or, if there are other arguments, all arguments as JSON. An
        agent has no timeout, and it is never run by a ``tool_executor``. It uses the outer chat's `approve` unless it
        has its own. Its tools receive the outer chat's context, updated with the agent's own context.

        The outer chat's stream emits the agent's events as ``Nested`` events. The agent's usage is included in the
        step's `agent_usage`. If the agent's chat fails, the outer model receives the error. If the agent's chat stops
        early, for example at `max_turns`, the outer model receives the text so far and the reason. If the agent's chat
        halts for an approval, a manual tool or a question, the outer chat halts too. Answer the pending calls or
        the question with ``rxllm.resume``, using the ids in the outer chat's result, such as ``"c1/c2"``.

        Raises ``ValidationError("invalid_option")`` and ``EngineError("unknown_option")``, as ``rxllm.chat`` does.
        """
        check("name", name, isinstance(name, str) and bool(name), "a non-empty string (the tool's name)")  # pyright: ignore[reportUnnecessaryIsInstance]
        check_instance("description", description, str, "a string")
        check_instance("schema", schema, dict | None, "a JSON schema, as a dict")
        system = options.pop("system", None) or ""
        check_instance("system", system, str, "a string")
        engine = chats().engine_with(self, options)
        return AgentTool(name, description, schema or dict(PROMPT), engine=engine, system=system)

    @classmethod
    def from_model(cls, adapter: Any, **options: Any) -> Engine:
        """Return ``Engine(adapter, **options)``.

        Raises ``EngineError("missing_adapter")`` or ``EngineError("missing_stream_adapter")`` if `adapter` is not a
        name, an adapter or an engine. Otherwise, it raises the same errors as `Engine`.
        """
        if not isinstance(adapter, str | Engine):
            from rxllm.adapters import as_adapter

            as_adapter(adapter)
        return cls(adapter, **options)


def settings(engine: Engine) -> dict[str, Any]:
    """Return the settings of `engine` that differ from the defaults, with secrets masked.

    >>> settings(Engine(model="small", params={"headers": {"x-api-key": "abc"}, "seed": 1}))
    {'model': 'small', 'params': {'headers': '[key]', 'seed': 1}}
    """
    shown_params = {**engine.params, **({"headers": MASK} if "headers" in engine.params else {})}
    entries = {spec.name: getattr(engine, spec.name) for spec in fields(engine)} | {"params": shown_params}
    defaults = vars(Engine())
    return {name: masked(value) for name, value in entries.items() if value != defaults.get(name)}


_FIELDS = tuple(spec.name for spec in fields(Engine))
_ADDED = ("tools", "operators", "prepare", "observers")
_ADAPTER_OPTIONS = ("api_key", "base_url", "client", "headers", "timeout")


def _takes_any_model(set_fields: Callable[..., None]) -> Callable[..., None]:
    """Let an ``__init__`` that takes an adapter also take a name, with the adapter's options, or an engine."""

    @wraps(set_fields)
    def init(self: Engine, adapter: Any = None, model: str | None = None, *more: Any, **options: Any) -> None:
        if not isinstance(adapter, str | Engine):
            set_fields(self, adapter, model, *more, **options)
            return
        given = {**dict(zip(_FIELDS[2:], more, strict=False)), **options}
        named = isinstance(adapter, str)
        set_fields(self, **(_named(adapter, model, given) if named else _extended(adapter, model, given)))

    own = signature(set_fields)
    shown_parameters = [*own.parameters.values(), Parameter("adapter_options", Parameter.VAR_KEYWORD, annotation="Any")]
    vars(init)["__signature__"] = own.replace(parameters=shown_parameters)
    return init


def _named(name: str, model: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the engine called `name` or, in a sandbox, of the sandbox's engine."""
    own = {key: value for key, value in options.items() if key in _FIELDS}
    model, replacement = model or _model_of(name), current_place.get().engine
    if replacement is not None:
        return {**_fields_of(replacement), "model": model or replacement.model, **own}
    others = {key: value for key, value in options.items() if key not in _FIELDS}
    return {"adapter": _adapter_of(name, model, others), "model": model, **own}


def _extended(engine: Engine, model: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `engine`, with lists from `options` added to its own and all other options replaced."""
    added = {name: _check_entries(name, options[name]) for name in _ADDED if name in options}
    merged = {name: (*getattr(engine, name), *entries) for name, entries in added.items()}
    if "tools" in added:
        merged["tools"] = engine.with_tools(*added["tools"]).tools
    return {**_fields_of(engine), "model": model or engine.model, **options, **merged}


def _fields_of(engine: Engine) -> dict[str, Any]:
    return {name: getattr(engine, name) for name in _FIELDS}


if not TYPE_CHECKING:
    Engine.__init__ = _takes_any_model(explains_options("Engine(...)")(Engine.__init__))


def _model_of(name: str) -> str | None:
    return name.partition(":")[2] or None


def _adapter_of(name: str, model: str | None, options: Mapping[str, Any]) -> Any:
    from rxllm.adapters import connect

    provider = name.partition(":")[0]
    try:
        return connect(provider, model or "", **options)
    except EngineError as error:
        if error.reason != "unknown_option":
            raise
        refused = next((option for option in options if repr(option) in error.message), None)
        has_remedy = any(words in error.message for words in ("did you mean", "; write ", "; pass "))
        if refused is None or refused in _ADAPTER_OPTIONS or has_remedy:
            raise
        remedy = unknown_option("Engine(...)", refused, options[refused], _FIELDS, "Engine")
        raise EngineError("unknown_option", f"{error.message}; {remedy}", provider=provider) from None


def _check_entries(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise _invalid(f"{name} {must_be('a list or other iterable', value)}")
    if isinstance(value, Awaitable):
        raise _invalid(f"{name} {must_be('a list or other iterable', value)}; {advice('Stream', 'setting')}")
    entries = tuple(cast(Iterable[Any], value))
    if name == "operators":
        try:
            check_operators(entries)
        except ValidationError as error:
            (_, index), fault = error.errors[0]
            raise _invalid(f"operators[{index}]: {fault}") from None
    if name == "tools":
        return _check_tools(entries)
    for index, entry in enumerate(entries):
        if isinstance(entry, Alongside):
            continue
        if name in ("observers", "prepare") and not callable(entry):
            raise _invalid(f"{name}[{index}] {must_be('a function', entry)}")
        if name == "prepare" and call_fault(entry, None) is not None:
            raise _invalid(f"prepare[{index}] {must_be('a function that takes a request', entry)}")
    return entries


def _check_tools(entries: tuple[Any, ...]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for index, entry in enumerate(entries):
        try:
            tools.append(as_tool(entry))
        except ValidationError as error:
            raise _invalid(f"tools[{index}]: {error.message}") from error
    if fault := name_fault(tools):
        raise _invalid(f"tools {fault}")
    return tuple(tools)


def _invalid(fault: str) -> EngineError:
    return EngineError("invalid_engine", f"an engine's {fault}")


def as_engine(value: Any) -> Engine:
    """Convert an engine, an adapter or a model name to an engine."""
    if isinstance(value, Engine):
        return value
    return Engine(value)


async def aclose(engine: Any) -> None:
    """Close the connections that an engine or adapter has on the running event loop.

    You can still use the engine or adapter afterwards.
    """
    engine = as_engine(engine)
    for adapter in (engine.adapter, engine.image_adapter):
        close = getattr(adapter, "aclose", None)
        if close is not None:
            await close()


def merge_tools(
    tools: Iterable[Tool | Callable[..., Any]], others: Iterable[Tool | Callable[..., Any]]
) -> tuple[Tool, ...]:
    """Return the tools from both lists, in order.

    A tool in `others` replaces the tool in `tools` that has the same name. If the replaced tool needs approval, the new
    one does too.

    >>> a, b, c = (Tool(name) for name in "abc")
    >>> [tool.name for tool in merge_tools([a, b], [b, c])]
    ['a', 'b', 'c']
    """
    merged: dict[str, Tool] = {}
    for tool in map(as_tool, (*tools, *others)):
        needs_approval = tool.name in merged and merged[tool.name].approval and not tool.approval
        merged[tool.name] = replace(tool, approval=True) if needs_approval else tool
    return tuple(merged.values())
