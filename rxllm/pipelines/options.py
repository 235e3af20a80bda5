"""The options that calls accept.

* The call's options override the request's, and the request's override the engine's.
* None is the same as not setting an option, except for the options in `UNLIMITED`.
* ``help(...)`` and the signatures are built from each field's docstring in this file.
* A default in double backticks becomes the default in the signature.
"""

from __future__ import annotations

import os
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, cleandoc, getsource, signature
from textwrap import fill
from typing import Any, Literal, TypedDict, TypeVar, cast

from reactivex import Observable

from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.http import Timeouts
from rxllm.runtime import Retry, RetryPolicy, current_scope, new_id, policy, shorten_traceback
from rxllm.tools import Approve, Encoder, Executor, OnToolError
from rxllm.validate import is_response_format, is_temperature, is_top_p
from rxllm.values import (
    ApiKey,
    EngineError,
    LLMError,
    Message,
    ResponseFormat,
    StepResult,
    Tool,
    ValidationError,
    as_response_format,
    is_type,
)
from rxllm.values.advice import unknown_option
from rxllm.values.argument_checks import (
    call_fault,
    invalid_option,
    is_count,
    is_positive,
    is_seconds,
    is_whole,
    must_be,
)
from rxllm.values.secret_names import is_secret_name

F = TypeVar("F", bound=Callable[..., Any])

MAX_TURNS = 8

UNLIMITED = frozenset({"tool_timeout", "max_concurrency", "approve_timeout"})
"""The options for which None means no limit."""


class PlainOptions(TypedDict, total=False):
    """`GenerateOptions` without `response_format`."""

    model: str | None
    """The provider's name for the model. Default: the engine's."""
    system: str | None
    """A system prompt for this call. It is sent after the engine's `system`, and before the system messages of the
    thread. It is not added to the thread, so pass it to each call, or to the engine. Default: none."""
    tools: Sequence[Tool | Callable[..., Any]] | None
    """Tools that the model can call, in addition to the engine's. ``rxllm.tool`` turns functions into tools. A tool
    replaces the engine's tool with the same name, and needs approval if the engine's tool does. Default: none."""
    tool_choice: str | Mapping[str, Any] | None
    """"auto", "none", "required" or the name of the tool to call. Default: the provider's, usually "auto"."""
    temperature: float | None
    """The randomness of the answer, from 0 to 2. Default: the provider's."""
    top_p: float | None
    """The probability mass to sample from (above 0, at most 1). Only the most likely tokens that together reach this
    probability are considered. Default: the provider's."""
    max_tokens: int | None
    """The maximum length of the answer, in tokens. Anthropic's API requires a limit. If you do not set one, rxllm uses
    32,000 for Claude 4 and later, and 4,096 for other models of that API. Default: the provider's."""
    stop: str | Sequence[str] | None
    """One or more strings. The answer ends just before the model would write any of them. Default: none."""
    seed: int | None
    """An integer that makes answers repeatable, as far as the provider supports it. Default: none."""
    reasoning_effort: str | None
    """The amount of thinking: "none", "minimal", "low", "medium", "high" or another value that the provider defines.
    Not every model accepts every value. Default: the provider's."""
    structured_finalize: bool | None
    """Whether to ask for the `response_format` in a separate final request, in which the model cannot call tools.
    Default: only if ``rxllm.models`` says that the model needs it."""
    options: Mapping[str, Any] | None
    """Fields that are added unchanged to the body of the provider's request. Default: none."""
    metadata: Mapping[str, Any] | None
    """Data about the request, for adapters and operators. It is not sent to the provider. Default: none."""
    context: Mapping[str, Any] | None
    """Data that tools receive as ``ToolContext.context``. Its entries override the engine's. Default: the engine's."""
    api_key: ApiKey | None
    """The provider's API key, or a function (sync or async) that returns it for each attempt. Default: the adapter's
    key, or the key in ``rxllm.keys`` or the environment."""
    headers: Mapping[str, str] | None
    """Headers to send with each request of the call. They override the adapter's headers. Other engines, such as
    those in a ``fallback``, do not receive them. Default: none."""
    session_id: str | None
    """The conversation's id, which tools and telemetry receive. Default: none."""
    request_id: str | None
    """The call's id, which appears in results and in telemetry (as `rxllm.request.id`). Default: a new id."""
    retry: Retry
    """The policy for retrying a call that fails before any content arrives: a `RetryPolicy`, a mapping of its fields,
    True for the default policy, or False for no retries. Default: the engine's, which makes up to three attempts."""
    timeout: float | Timeouts | None
    """The number of seconds that may pass without model output, or a `Timeouts`. A number also replaces the
    connection's own limit on the time between bytes. A `Timeouts` does so only if it sets both `first` and `idle`.
    Default: only the connection's own limit, which is 600 seconds without a byte."""
    emit_text_deltas: bool | None
    """Whether event streams include `TextDelta` events. Results are the same either way. Default: ``True``."""
    emit_tool_deltas: bool | None
    """Whether event streams include `ToolCallDelta` events. Results are the same either way. Default: ``True``."""
    emit_thinking: bool | None
    """Whether event streams include `ThinkingDelta` events. Results are the same either way. Default: ``True``."""
    include_raw_chunks: bool | None
    """Whether event streams include the provider's frames, as `RawChunk` events. Default: ``False``."""
    on_event: Callable[[Event], object] | None
    """A function that is called with each of the model's events. Default: none."""


class GenerateOptions(PlainOptions, total=False):
    """The options of `generate`."""

    response_format: ResponseFormat | None
    """The answer's format: a type (a dataclass, a pydantic model, ``list[City]``, ``bool``, ...), ``json_schema(...)``,
    ``{"type": "json_object"}`` or "text". The validated answer is in the result's `parsed`. Default: text."""


class PlainStepOptions(PlainOptions, total=False):
    """`StepOptions` without `response_format`."""

    mode: Literal["auto", "manual"] | None
    """"auto" runs the tools that the model calls. "manual" halts the chat before any tool runs. Default: ``"auto"``."""
    on_tool_error: OnToolError | None
    """"continue" sends a tool's error to the model, and "halt" ends the chat. A function receives the tool call and the
    error, and returns a result to use instead, or ``halt(...)``. Default: ``"continue"``."""
    tool_timeout: float | None
    """The time limit in seconds for a tool that has no timeout of its own. None means no limit. Default: ``30.0``."""
    max_concurrency: int | None
    """The maximum number of tools that run at the same time. None means no limit. Default: ``None``."""
    eager: bool | None
    """Whether tools may start while the model is still writing. True allows this for tools with ``eager=True``, and
    for tools with ``idempotent=True`` that are not agents. False allows it for none. Default: only tools with
    ``eager=True``."""
    tool_executor: Executor | None
    """A function that is called in place of each tool's handler. Default: the engine's."""
    tool_result_encoder: Encoder | None
    """A function that turns tool results into text for the model. Default: the engine's, which writes JSON."""
    approve: Approve | None
    """A function that decides whether to run a tool with ``approval=True``. It returns True, False, a reason to deny
    the call, a mapping of replacement arguments, or ``halt("approval")``. It can also return an awaitable or an
    Observable of one of these values. Default: a call to such a tool halts the chat."""
    approve_timeout: float | None
    """The time limit in seconds for `approve`. If `approve` has not decided by then, the call is denied. None means no
    limit. Default: ``None``."""


class StepOptions(PlainStepOptions, GenerateOptions, total=False):
    """The options of `step`. See ``operators.run_tools``."""


class PlainChatOptions(PlainStepOptions, total=False):
    """`ChatOptions` without `response_format`."""

    max_turns: int | None
    """The maximum number of steps. Default: ``8``, or ``RXLLM_MAX_TURNS`` from the environment."""
    halt_when: Callable[[StepResult], bool] | None
    """A function that receives each step's result, and returns True to end the chat. Default: none."""
    steer: Observable[str | Message] | None
    """An Observable of user input during the chat, as strings or user messages. Each input is answered by the next
    step. See ``operators.repeat_until_halt``. Default: none."""
    steer_at: Literal["sentence", "step"] | None
    """The point at which `steer` interrupts the model: after its current "sentence" or "step". Default: "sentence", or
    "step" with a `response_format`."""
    structured_finalize_nudge: str | None
    """The user message that `structured_finalize` adds to its final request. If it is "", no message is added.
    Default: ``"Now provide your final structured response."``."""


class ChatOptions(PlainChatOptions, StepOptions, total=False):
    """The options of `chat`."""


_FIELD = re.compile(r'^    (\w+): [^\n]+\n    """(.+?)"""\n', re.MULTILINE | re.DOTALL)
_DEFAULT = re.compile(r"Default: ``(.+?)``")


def describe(options: type[Any]) -> None:
    """Append the explanations of the fields to the docstring of `options`."""
    options.__doc__ = _with_table(options.__doc__, options)


def with_options(options: type[Any]) -> Callable[[F], F]:
    """Show all `options` in a function's signature and docstring.

    An unknown option raises ``EngineError("unknown_option")``, even if a positional argument is also missing. Any
    other wrong argument raises a ``TypeError`` whose message explains how to write the call.
    """

    def decorate(function: F) -> F:
        own = signature(function)
        named = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except LLMError as error:
                shorten_traceback(error)
                raise
            except TypeError as error:
                if call_fault(function, *args, **kwargs) is None:  # the function itself raised the error
                    raise
                known = {*options.__annotations__, *(p.name for p in named)}
                unknown = [name for name in kwargs if name not in known]
                remedy = _call_remedy(function.__name__, named)
                if not unknown:
                    raise TypeError(f"{error}; {remedy}, {_argument_remedy(named, args)}") from None
                message = unknown_option("call", unknown[0], kwargs[unknown[0]], known)
                raise EngineError("unknown_option", f"{message}; {remedy}") from None

        vars(wrapper)["__signature__"] = own.replace(parameters=[*named, *_parameters(options)])
        wrapper.__doc__ = _with_table(function.__doc__, options)
        return cast(F, wrapper)

    return decorate


def _call_remedy(function: str, parameters: list[Parameter]) -> str:
    """Return advice on how to write a call, such as ``write generate(engine, request, ...)``."""
    positional = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    needed = [f"{p.name}=..." for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty]
    return f"write {function}({', '.join([*positional, *needed])}, ...)"


def _argument_remedy(parameters: list[Parameter], args: tuple[Any, ...]) -> str:
    if len(args) > sum(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters):
        return "with options as keyword arguments; to send a picture, put it into the message: rxllm.user(text, path)"
    return "with an engine, such as 'openai:gpt-5', as the first argument"


@cache
def meanings(options: type[Any]) -> dict[str, str]:
    try:
        found: dict[str, str] = dict(_FIELD.findall(getsource(sys.modules[options.__module__])))
    except OSError:
        found = {}
    return {name: " ".join(found.get(name, "").split()) for name in options.__annotations__}


@cache
def _parameters(options: type[Any]) -> list[Parameter]:
    parameters: list[Parameter] = []
    for name, annotation in _annotations(options).items():
        match = _DEFAULT.search(meanings(options)[name])
        default = literal_eval(match[1]) if match else None
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return parameters


def _annotations(options: type[Any]) -> dict[str, str]:
    return {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}


def _with_table(docstring: str | None, options: type[Any]) -> str:
    return f"{cleandoc(docstring or '')}\n\n{_table(options)}"


@cache
def _table(options: type[Any]) -> str:
    annotations = _annotations(options)
    lines = ["Options are passed by keyword. None means the default, unless the option gives it another meaning:\n"]
    for name, text in meanings(options).items():
        meaning = fill(text, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        lines.append(f"{name} : {annotations[name]}\n{meaning}")
    return "\n".join(lines)


for _options in (GenerateOptions, StepOptions, ChatOptions):
    describe(_options)


def set_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set.

    >>> set_options({"temperature": None, "tool_timeout": None, "seed": 0})
    {'tool_timeout': None, 'seed': 0}
    """
    return {name: value for name, value in options.items() if value is not None or name in UNLIMITED}


def request_id(options: Mapping[str, Any]) -> str:
    return options.get("request_id") or current_scope.get().request_id or new_id()


def chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for ``repeat_until_halt``.

    `max_turns` defaults to ``RXLLM_MAX_TURNS`` from the environment, or else to 8.
    """
    value = options.get("max_turns") or os.environ.get("RXLLM_MAX_TURNS") or MAX_TURNS
    try:
        turns = int(value)
    except ValueError:
        turns = 0
    if turns < 1:
        raise invalid_option("RXLLM_MAX_TURNS", must_be("an integer >= 1", value))
    place = "sentence" if options.get("response_format", "text") == "text" else "step"  # JSON has no sentences
    steering = {"steer": options.get("steer"), "steer_at": options.get("steer_at", place)}
    return {"max_turns": turns, "halt_when": options.get("halt_when"), **steering}


def checked_options(allowed: type[Any], engine: Engine, own_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's params, overridden by the call's options.

    Raises ``EngineError("unknown_option")`` for a name that is not in `allowed`. Raises
    ``ValidationError("invalid_option")`` for an invalid value.
    """
    _refuse_unknown(allowed, own_options)
    known, chat = _names(allowed), _names(ChatOptions)
    options = {name: value for name, value in engine.params.items() if name in known or name not in chat}
    _refuse_unknown(allowed, options)
    options = set_options(options) | set_options(own_options)
    faults = [((name,), fault) for name, value in options.items() if (fault := _fault(name, value)) is not None]
    if faults:
        raise ValidationError("invalid_option", errors=faults)
    as_response_format(options.get("response_format"))
    policy(options.get("retry"), engine.retry)
    policy(engine.retry)
    return options


def _names(options: type[Any]) -> set[str]:
    return cast(set[str], options.__optional_keys__ | options.__required_keys__)


def _refuse_unknown(allowed: type[Any], options: Mapping[str, Any]) -> None:
    unknown = sorted(options.keys() - _names(allowed))
    if not unknown:
        return
    name = unknown[0]
    if name in _names(ChatOptions):
        owners = "step and chat" if name in _names(StepOptions) else "chat"
        more = "; generate_many takes concurrency=" if name == "max_concurrency" else ""
        message = f"{name!r} is an option of {owners}, not of this call{more}"
    else:
        message = unknown_option("call", name, options[name], _names(allowed))
    raise EngineError("unknown_option", message)


def _fault(name: str, value: Any) -> str | None:
    expected, fits = _RULES.get(name, ("", None))
    if fits is None or fits(value):
        return None
    if name != "headers" and not is_secret_name(name):
        return must_be(expected, value)
    wrong = type(value).__name__  # the value might be secret
    if name == "headers" and isinstance(value, Mapping):
        header, text = next(pair for pair in cast(Mapping[Any, Any], value).items() if not _is_strings(pair))
        wrong = f"{header!r}: {type(text).__name__}"
    return f"must be {expected}, not {wrong}"


def _is_strings(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes) and all(isinstance(s, str) for s in value)  # pyright: ignore


def _is_headers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_strings, value.items()))  # pyright: ignore


def _is_tools(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(tool, Tool) or callable(tool) for tool in value)  # pyright: ignore


_Rule = tuple[str, Callable[[Any], bool] | None]
_STRING: _Rule = ("a non-empty string", lambda value: isinstance(value, str) and bool(value))
_MAPPING: _Rule = ("a mapping", lambda value: isinstance(value, Mapping))
_FLAG: _Rule = ("True or False", lambda value: isinstance(value, bool))
_FUNCTION: _Rule = ("a function", callable)
_COUNT: _Rule = ("an integer >= 1", is_count)
_SECONDS = "a positive number of seconds"
_TIMEOUT: _Rule = ("None, or " + _SECONDS, lambda value: value is None or is_positive(value))

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("model", "reasoning_effort", "session_id", "request_id"), _STRING),
    "system": ("a string (the system prompt)", lambda value: isinstance(value, str)),
    "api_key": ("a string, or a function that returns one", lambda value: isinstance(value, str) or callable(value)),
    "headers": ("a mapping whose names and values are strings", _is_headers),
    "tools": ("a sequence of tools or functions", _is_tools),
    "tool_choice": ("a string or a mapping", lambda value: isinstance(value, str | Mapping)),
    "temperature": ("a number from 0 to 2", lambda value: is_seconds(value) and is_temperature(value)),
    "top_p": ("a number > 0 and <= 1", lambda value: is_seconds(value) and is_top_p(value)),
    "max_tokens": _COUNT,
    "stop": ("a string or a sequence of strings", _is_strings),
    "seed": ("an integer", is_whole),
    "response_format": (
        "a type (a dataclass, a pydantic model, list[City], bool, ...), the result of json_schema(...), "
        "{'type': 'json_object'} or 'text'",
        lambda value: is_type(value) or is_response_format(as_response_format(value)),
    ),
    **dict.fromkeys(("options", "metadata", "context"), _MAPPING),
    "retry": (
        "a RetryPolicy, a mapping of its fields (such as {'max_attempts': 3}), True or False",
        lambda value: isinstance(value, RetryPolicy | Mapping | bool | None) or value == "default",
    ),
    "timeout": (
        _SECONDS + ", or a Timeouts such as Timeouts(first=30, idle=10, total=120)",
        lambda value: isinstance(value, Timeouts) or is_positive(value),
    ),
    **dict.fromkeys(("emit_text_deltas", "emit_tool_deltas", "emit_thinking", "include_raw_chunks"), _FLAG),
    "eager": _FLAG,
    **dict.fromkeys(("on_event", "tool_executor", "tool_result_encoder", "approve", "halt_when"), _FUNCTION),
    "mode": ("'auto' or 'manual'", lambda value: value in ("auto", "manual")),
    "on_tool_error": (
        "'continue', 'halt' or a function",
        lambda value: value in ("continue", "halt") or callable(value),
    ),
    "tool_timeout": _TIMEOUT,
    "approve_timeout": _TIMEOUT,
    "max_concurrency": ("None, or " + _COUNT[0], lambda value: value is None or is_count(value)),
    "max_turns": _COUNT,
    "steer": (
        "an Observable of strings or user messages, such as a reactivex Subject or rxllm.from_async_iter(...)",
        lambda value: isinstance(value, Observable),
    ),
    "steer_at": ("'sentence' or 'step'", lambda value: value in ("sentence", "step")),
    "structured_finalize": _FLAG,
    "structured_finalize_nudge": ("a string", lambda value: isinstance(value, str)),
}
