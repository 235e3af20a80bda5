"""The options of the facade: a closed set, checked when a call is made.

Precedence, for each: the call's option, the request's field, the engine's, the default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.runtime import Retry, RetryPolicy, Timeouts, policy
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
from rxllm.values.arguments import did_you_mean, invalid_option, is_positive, must_be
from rxllm.values.secrets import is_secret_name, masked

MAX_TURNS = 8
SHOWN = 80
"""How many characters of a wrong value an error shows."""


class PlainOptions(TypedDict, total=False):
    """Those of `GenerateOptions` that do not decide what type an answer has."""

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
    """What a request can be made with, how the call is made, and what of it is shown.

    `timeout` is the longest silence of the model in seconds, or a `Timeouts`: each response's own, see
    ``operators.timeouts``; an adapter over HTTP also takes it for the longest wait for bytes, unless `first` or `idle`
    is missing: then its own holds, 600 s by default. `response_format` is what the model is asked for, and what the
    answer is read as by the functions that give a result.
    """

    response_format: ResponseFormat


class PlainStepOptions(PlainOptions, total=False):
    """Those of `StepOptions` that do not decide what type an answer has: how tools are run, see
    ``operators.run_tools``; `approve` is asked about the tools with ``approval=True``.
    """

    mode: Literal["auto", "manual"]
    on_tool_error: OnToolError
    tool_timeout: float | None
    max_concurrency: int | None
    tool_executor: Executor
    tool_result_encoder: Encoder
    approve: Approve


class StepOptions(PlainStepOptions, GenerateOptions, total=False):
    """And all of it."""


class PlainChatOptions(PlainStepOptions, total=False):
    """And when the chat ends: after `max_turns` steps (8, or ``RXLLM_MAX_TURNS``), or when ``halt_when(step)`` says
    so; and with ``structured_finalize`` what the user then says to ask for the structured answer.
    """

    max_turns: int
    halt_when: Callable[[StepResult], bool]
    structured_finalize_nudge: str


class ChatOptions(PlainChatOptions, StepOptions, total=False):
    """And all of it."""


def checked(options: type[Any], engine: Engine, given: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's params overlaid by what was `given`.

    Raises ``EngineError("unknown_option")`` for a name outside `options`, and ``ValidationError("invalid_option")``
    for wrong types and for values that make no sense.
    """
    _refuse_unknown(options, given)
    known = _names(options)
    merged = {name: held for name, held in engine.params.items() if name in known or name not in _names(ChatOptions)}
    merged |= given
    _refuse_unknown(options, merged)
    wrong = [((name,), why) for name, held in merged.items() if (why := _fault(name, held)) is not None]
    if wrong:
        raise ValidationError("invalid_option", errors=wrong)
    as_response_format(merged.get("response_format"))
    policy(merged.get("retry"), engine.retry)
    policy(engine.retry)
    return merged


def chat_options(opts: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``repeat_until_halt``; ``max_turns`` is the option, else ``RXLLM_MAX_TURNS``, else 8."""
    value = opts.get("max_turns") or os.environ.get("RXLLM_MAX_TURNS") or MAX_TURNS
    try:
        turns = int(value)
    except ValueError:
        turns = 0
    if turns < 1:
        raise invalid_option("RXLLM_MAX_TURNS", must_be("a whole number of at least 1", value))
    return {"max_turns": turns, "halt_when": opts.get("halt_when")}


def _names(options: type[Any]) -> set[str]:
    return cast(set[str], options.__optional_keys__ | options.__required_keys__)


def _refuse_unknown(options: type[Any], given: Mapping[str, Any]) -> None:
    unknown = sorted(given.keys() - _names(options))
    if not unknown:
        return
    name = unknown[0]
    if name in _names(ChatOptions):
        message = (
            f"{name!r} is no option of this call: it belongs to {'chat' if name in _CHAT_ONLY else 'step and chat'}"
        )
    elif name in _ELSEWHERE:
        message = f"there is no option {name!r}: {_ELSEWHERE[name]}"
    else:
        shown = f"options={{{name!r}: {_shown(name, given[name], 'its value')}}}"
        near = f" (did you mean {_MEANT[name]!r}?)" if name in _MEANT else did_you_mean(name, _names(options))
        message = f"there is no option {name!r}{near}; to hand it to the provider as it is, write {shown}"
    raise EngineError("unknown_option", message)


_CHAT_ONLY = {"max_turns", "halt_when", "structured_finalize_nudge"}

_MEANT = {
    **dict.fromkeys(("max_steps", "max_iterations", "max_iter", "max_rounds", "recursion_limit"), "max_turns"),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens", "max_new_tokens"), "max_tokens"),
    **dict.fromkeys(("stop_sequences", "stop_words"), "stop"),
    "functions": "tools",
    "num_retries": "retry",
    "output_type": "response_format",
}
"""What other libraries call what these options are."""

_SYSTEM = "what the system says is a message: [rxllm.system(...), rxllm.user(...)]"
_ELSEWHERE = {
    **dict.fromkeys(("system", "system_prompt", "instructions"), _SYSTEM),
    **dict.fromkeys(("messages", "prompt"), "the conversation is the second argument, behind the engine"),
    "stream": "stream_generate(...), stream_step(...) and stream(...) give the events as they come",
}


def _fault(name: str, held: Any) -> str | None:
    wanted, fits = _RULES.get(name, ("", None))
    return None if fits is None or fits(held) else f"must be {wanted}, not {_shown(name, held, type(held).__name__)}"


def _shown(name: str, held: Any, instead: str) -> str:
    if is_secret_name(name):
        return instead
    text = repr(masked(held))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_int(held: Any) -> bool:
    return isinstance(held, int) and not isinstance(held, bool)


def is_count(held: Any) -> bool:
    """Whether `held` is a whole number of at least 1."""
    return _is_int(held) and held >= 1


def _is_number(held: Any) -> bool:
    return _is_int(held) or (isinstance(held, float) and math.isfinite(held))


def _is_strings(held: Any) -> bool:
    return isinstance(held, Sequence) and not isinstance(held, str | bytes) and all(isinstance(s, str) for s in held)  # pyright: ignore


def _is_tools(held: Any) -> bool:
    return isinstance(held, Sequence) and all(isinstance(tool, Tool) for tool in held)  # pyright: ignore


_RETRIES = (RetryPolicy, Mapping, bool, type(None))

_Rule = tuple[str, Callable[[Any], bool] | None]
_STRING: _Rule = ("a non-empty string", lambda held: isinstance(held, str) and bool(held))
_MAPPING: _Rule = ("a mapping", lambda held: isinstance(held, Mapping))
_FLAG: _Rule = ("True or False", lambda held: isinstance(held, bool))
_FUNCTION: _Rule = ("a function", callable)
_COUNT: _Rule = ("a whole number of at least 1", is_count)
_SECONDS: _Rule = ("a number of seconds above 0", lambda held: _is_number(held) and held > 0)
_TEXT_OR_MAPPING: _Rule = ("a string or a mapping", lambda held: isinstance(held, str | Mapping))

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("model", "reasoning_effort", "session_id", "request_id"), _STRING),
    "api_key": ("a string", lambda held: isinstance(held, str)),
    "tools": ("a sequence of tools; make them with rxllm.tool", _is_tools),
    "tool_choice": _TEXT_OR_MAPPING,
    "temperature": ("a number from 0 to 2", lambda held: _is_number(held) and 0 <= held <= 2),
    "max_tokens": _COUNT,
    "stop": ("a sequence of strings", _is_strings),
    "seed": ("a whole number", _is_int),
    "response_format": (
        "a dataclass, a TypedDict, a msgspec Struct, a pydantic model, what json_schema(...) makes, "
        "{'type': 'json_object'} or 'text'",
        lambda held: held is not None and (is_response_format(held) or is_format_class(held)),
    ),
    **dict.fromkeys(("options", "metadata", "context"), _MAPPING),
    "retry": (
        "a RetryPolicy, a mapping of its fields, True, False or None",
        lambda held: isinstance(held, _RETRIES) or held == "default",
    ),
    "timeout": (
        "a number of seconds above 0, or a Timeouts",
        lambda held: isinstance(held, Timeouts) or is_positive(held),
    ),
    **dict.fromkeys(("emit_text_deltas", "emit_tool_deltas", "emit_thinking", "include_raw_chunks"), _FLAG),
    **dict.fromkeys(("on_event", "tool_executor", "tool_result_encoder", "approve", "halt_when"), _FUNCTION),
    "mode": ("'auto' or 'manual'", lambda held: held in ("auto", "manual")),
    "on_tool_error": ("'continue', 'halt' or a function", lambda held: held in ("continue", "halt") or callable(held)),
    "tool_timeout": ("None, or " + _SECONDS[0], lambda held: held is None or (_is_number(held) and held > 0)),
    "max_concurrency": ("None, or " + _COUNT[0], lambda held: held is None or is_count(held)),
    "max_turns": _COUNT,
    "structured_finalize": _FLAG,
    "structured_finalize_nudge": ("a string", lambda held: isinstance(held, str)),
}
