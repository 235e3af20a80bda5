"""The options of the facade: a closed set, checked when a call is made.

For each option the first of these counts: the call's, the request's field, the engine's, the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.runtime import Retry, RetryPolicy, Timeouts, current_scope, new_id, policy
from rxllm.tools import Approve, Encoder, Executor, OnToolError
from rxllm.validate import is_response_format
from rxllm.values import (
    EngineError,
    ResponseFormat,
    StepResult,
    Tool,
    ValidationError,
    as_response_format,
    is_format_class,
)
from rxllm.values.argument_checks import did_you_mean, invalid_option, is_count, is_positive, is_seconds, must_be, shown
from rxllm.values.secret_names import is_secret_name

MAX_TURNS = 8


class PlainOptions(TypedDict, total=False):
    """`GenerateOptions` without the one that decides the type of an answer."""

    model: str
    tools: Sequence[Tool]
    tool_choice: str | Mapping[str, Any]
    temperature: float
    max_tokens: int
    stop: Sequence[str]
    seed: int
    reasoning_effort: str
    structured_finalize: bool
    options: Mapping[str, Any]
    metadata: Mapping[str, Any]
    context: Mapping[str, Any]
    api_key: str
    session_id: str
    request_id: str
    retry: Retry
    timeout: float | Timeouts
    emit_text_deltas: bool
    emit_tool_deltas: bool
    emit_thinking: bool
    include_raw_chunks: bool
    on_event: Callable[[Event], object]


class GenerateOptions(PlainOptions, total=False):
    """The options of `generate`: the fields of a request, how the call is made, and which events are emitted.

    `timeout` is the longest silence of the model in seconds, or a `Timeouts`, for each response; see
    ``operators.timeouts``. An adapter over HTTP also takes it as the longest wait for bytes if it sets both `first` and
    `idle`; otherwise its own default holds, 600 s. `response_format` is what the model is asked for, and the functions
    that return a result read the answer as that.
    """

    response_format: ResponseFormat


class PlainStepOptions(PlainOptions, total=False):
    """`StepOptions` without the one that decides the type of an answer."""

    mode: Literal["auto", "manual"]
    on_tool_error: OnToolError
    tool_timeout: float | None
    max_concurrency: int | None
    tool_executor: Executor
    tool_result_encoder: Encoder
    approve: Approve


class StepOptions(PlainStepOptions, GenerateOptions, total=False):
    """The options of `step`: those of `generate`, and how tools are run; see ``operators.run_tools``.

    `approve` decides about calls of tools with ``approval=True``.
    """


class PlainChatOptions(PlainStepOptions, total=False):
    """`ChatOptions` without the one that decides the type of an answer."""

    max_turns: int
    halt_when: Callable[[StepResult], bool]
    structured_finalize_nudge: str


class ChatOptions(PlainChatOptions, StepOptions, total=False):
    """The options of `chat`: those of `step`, and when the chat ends.

    It ends after `max_turns` steps (8, or ``RXLLM_MAX_TURNS``), or when ``halt_when(step)`` is true.
    `structured_finalize_nudge` is the user's message that asks for the structured answer of ``structured_finalize``.
    """


def checked_options(allowed: type[Any], engine: Engine, own_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's params, overlaid by the call's own options.

    Raises ``EngineError("unknown_option")`` for a name that is not in `allowed`, and
    ``ValidationError("invalid_option")`` for wrong types and values.
    """
    _refuse_unknown(allowed, own_options)
    known, chat = _names(allowed), _names(ChatOptions)
    options = {name: value for name, value in engine.params.items() if name in known or name not in chat}
    options |= own_options
    _refuse_unknown(allowed, options)
    faults = [((name,), fault) for name, value in options.items() if (fault := _fault(name, value)) is not None]
    if faults:
        raise ValidationError("invalid_option", errors=faults)
    as_response_format(options.get("response_format"))
    policy(options.get("retry"), engine.retry)
    policy(engine.retry)
    return options


def request_id(options: Mapping[str, Any]) -> str:
    """Return the option, else the id of the chat around the call, else a new one."""
    return options.get("request_id") or current_scope.get().request_id or new_id()


def chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``repeat_until_halt``; ``max_turns`` is the option, else ``RXLLM_MAX_TURNS``, else 8."""
    value = options.get("max_turns") or os.environ.get("RXLLM_MAX_TURNS") or MAX_TURNS
    try:
        turns = int(value)
    except ValueError:
        turns = 0
    if turns < 1:
        raise invalid_option("RXLLM_MAX_TURNS", must_be("a whole number of at least 1", value))
    return {"max_turns": turns, "halt_when": options.get("halt_when")}


def _names(options: type[Any]) -> set[str]:
    return cast(set[str], options.__optional_keys__ | options.__required_keys__)


def _refuse_unknown(allowed: type[Any], options: Mapping[str, Any]) -> None:
    unknown = sorted(options.keys() - _names(allowed))
    if not unknown:
        return
    name = unknown[0]
    if name in _names(ChatOptions):
        owners = "step and chat" if name in _names(StepOptions) else "chat"
        message = f"{name!r} is not an option of this call, but of {owners}"
    elif name in _HINTS:
        message = f"there is no option {name!r}: {_HINTS[name]}"
    else:
        value = "its value" if is_secret_name(name) else shown(options[name])
        near = f" (did you mean {_MEANT[name]!r}?)" if name in _MEANT else did_you_mean(name, _names(allowed))
        remedy = f"to pass it to the provider unchanged, write options={{{name!r}: {value}}}"
        message = f"there is no option {name!r}{near}; {remedy}"
    raise EngineError("unknown_option", message)


_MEANT = {
    **dict.fromkeys(("max_steps", "max_iterations", "max_iter", "max_rounds", "recursion_limit"), "max_turns"),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens", "max_new_tokens"), "max_tokens"),
    **dict.fromkeys(("stop_sequences", "stop_words"), "stop"),
    "functions": "tools",
    "num_retries": "retry",
    "output_type": "response_format",
}
"""What other libraries call these options."""

_SYSTEM = "write the system prompt as a message: [rxllm.system(...), rxllm.user(...)]"
_HINTS = {
    **dict.fromkeys(("system", "system_prompt", "instructions"), _SYSTEM),
    **dict.fromkeys(("messages", "prompt"), "pass the conversation as the second argument, after the engine"),
    "stream": "stream_generate(...), stream_step(...) and stream(...) emit the events as they come",
}


def _fault(name: str, value: Any) -> str | None:
    expected, fits = _RULES.get(name, ("", None))
    if fits is None or fits(value):
        return None
    return f"must be {expected}, not {type(value).__name__}" if is_secret_name(name) else must_be(expected, value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_strings(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(s, str) for s in value)  # pyright: ignore


def _is_tools(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(tool, Tool) for tool in value)  # pyright: ignore


_RETRIES = (RetryPolicy, Mapping, bool, type(None))

_Rule = tuple[str, Callable[[Any], bool] | None]
_STRING: _Rule = ("a non-empty string", lambda value: isinstance(value, str) and bool(value))
_MAPPING: _Rule = ("a mapping", lambda value: isinstance(value, Mapping))
_FLAG: _Rule = ("True or False", lambda value: isinstance(value, bool))
_FUNCTION: _Rule = ("a function", callable)
_COUNT: _Rule = ("a whole number of at least 1", is_count)
_SECONDS = "a number of seconds above 0"

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("model", "reasoning_effort", "session_id", "request_id"), _STRING),
    "api_key": ("a string", lambda value: isinstance(value, str)),
    "tools": ("a sequence of tools, made with rxllm.tool", _is_tools),
    "tool_choice": ("a string or a mapping", lambda value: isinstance(value, str | Mapping)),
    "temperature": ("a number from 0 to 2", lambda value: is_seconds(value) and value <= 2),
    "max_tokens": _COUNT,
    "stop": ("a sequence of strings", _is_strings),
    "seed": ("a whole number", _is_int),
    "response_format": (
        "a dataclass, a TypedDict, a msgspec Struct, a pydantic model, the result of json_schema(...), "
        "{'type': 'json_object'} or 'text'",
        lambda value: value is not None and (is_response_format(value) or is_format_class(value)),
    ),
    **dict.fromkeys(("options", "metadata", "context"), _MAPPING),
    "retry": (
        "a RetryPolicy, a mapping of its fields, True, False or None",
        lambda value: isinstance(value, _RETRIES) or value == "default",
    ),
    "timeout": (_SECONDS + ", or a Timeouts", lambda value: isinstance(value, Timeouts) or is_positive(value)),
    **dict.fromkeys(("emit_text_deltas", "emit_tool_deltas", "emit_thinking", "include_raw_chunks"), _FLAG),
    **dict.fromkeys(("on_event", "tool_executor", "tool_result_encoder", "approve", "halt_when"), _FUNCTION),
    "mode": ("'auto' or 'manual'", lambda value: value in ("auto", "manual")),
    "on_tool_error": (
        "'continue', 'halt' or a function",
        lambda value: value in ("continue", "halt") or callable(value),
    ),
    "tool_timeout": ("None, or " + _SECONDS, lambda value: value is None or is_positive(value)),
    "max_concurrency": ("None, or " + _COUNT[0], lambda value: value is None or is_count(value)),
    "max_turns": _COUNT,
    "structured_finalize": _FLAG,
    "structured_finalize_nudge": ("a string", lambda value: isinstance(value, str)),
}
