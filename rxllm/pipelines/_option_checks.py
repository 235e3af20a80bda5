"""The checks of the options of a call: their names, types and bounds, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from reactivex import Observable

from rxllm.engine import Engine
from rxllm.http import Timeouts
from rxllm.pipelines._option_advice import advice
from rxllm.pipelines._options import ChatOptions, StepOptions, set_options
from rxllm.runtime import RetryPolicy, policy
from rxllm.validate import is_response_format, is_temperature, is_top_p
from rxllm.values import (
    EngineError,
    Tool,
    ValidationError,
    as_response_format,
    is_type,
)
from rxllm.values.argument_checks import is_count, is_positive, is_seconds, is_secret_name, is_whole, must_be


def checked_options(allowed: type[Any], engine: Engine, own_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's params, overlaid by the call's own options.

    Raises ``EngineError("unknown_option")`` for a name that is not in `allowed`, and
    ``ValidationError("invalid_option")`` for wrong types and values.
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
        message = f"{name!r} is not an option of this call, but of {owners}{more}"
    else:
        message = advice(name, options[name], _names(allowed))
    raise EngineError("unknown_option", message)


def _fault(name: str, value: Any) -> str | None:
    expected, fits = _RULES.get(name, ("", None))
    if fits is None or fits(value):
        return None
    if name == "headers":
        return f"must be {expected}, not {_odd_header(value)}"
    return f"must be {expected}, not {type(value).__name__}" if is_secret_name(name) else must_be(expected, value)


def _odd_header(value: Any) -> str:
    """Return what is wrong with headers, without their values, which may be secret."""
    if not isinstance(value, Mapping):
        return type(value).__name__
    name, text = next(pair for pair in cast(Mapping[Any, Any], value).items() if not _is_strings(pair))
    return f"{name!r}: {type(text).__name__}"


def _is_strings(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes) and all(isinstance(s, str) for s in value)  # pyright: ignore


def _is_headers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)  # pyright: ignore


def _is_tools(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(tool, Tool) or callable(tool) for tool in value)  # pyright: ignore


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
    "api_key": ("a string, or a function that returns one", lambda value: isinstance(value, str) or callable(value)),
    "headers": ("a mapping whose names and values are strings", _is_headers),
    "tools": ("a sequence of tools or functions", _is_tools),
    "tool_choice": ("a string or a mapping", lambda value: isinstance(value, str | Mapping)),
    "temperature": ("a number from 0 to 2", lambda value: is_seconds(value) and is_temperature(value)),
    "top_p": ("a number above 0, up to 1", lambda value: is_seconds(value) and is_top_p(value)),
    "max_tokens": _COUNT,
    "stop": ("a string or a sequence of strings", _is_strings),
    "seed": ("a whole number", is_whole),
    "response_format": (
        "a type (a dataclass, a pydantic model, list[City], bool, ...), the result of json_schema(...), "
        "{'type': 'json_object'} or 'text'",
        lambda value: is_type(value) or is_response_format(as_response_format(value)),
    ),
    **dict.fromkeys(("options", "metadata", "context"), _MAPPING),
    "retry": (
        "a RetryPolicy, a mapping of its fields such as {'max_attempts': 3}, True or False",
        lambda value: isinstance(value, _RETRIES) or value == "default",
    ),
    "timeout": (
        _SECONDS + ", or Timeouts(first=30, idle=10, total=120)",
        lambda value: isinstance(value, Timeouts) or is_positive(value),
    ),
    **dict.fromkeys(("emit_text_deltas", "emit_tool_deltas", "emit_thinking", "include_raw_chunks"), _FLAG),
    **dict.fromkeys(("on_event", "tool_executor", "tool_result_encoder", "approve", "halt_when"), _FUNCTION),
    "mode": ("'auto' or 'manual'", lambda value: value in ("auto", "manual")),
    "on_tool_error": (
        "'continue', 'halt' or a function",
        lambda value: value in ("continue", "halt") or callable(value),
    ),
    **dict.fromkeys(
        ("tool_timeout", "approve_timeout"),
        ("None, or " + _SECONDS, lambda value: value is None or is_positive(value)),
    ),
    "max_concurrency": ("None, or " + _COUNT[0], lambda value: value is None or is_count(value)),
    "max_turns": _COUNT,
    "steer": (
        "an Observable of texts or user's messages, such as a reactivex Subject; rxllm.from_async_iter makes one",
        lambda value: isinstance(value, Observable),
    ),
    "steer_at": ("'sentence' or 'step'", lambda value: value in ("sentence", "step")),
    "structured_finalize": _FLAG,
    "structured_finalize_nudge": ("a string", lambda value: isinstance(value, str)),
}
