"""The options of the facade: a closed set, checked when a call is made.

For each option the first of these counts: the call's, the request's field, the engine's, the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from rxllm.events import Event
from rxllm.runtime import Retry, Timeouts, current_scope, new_id
from rxllm.tools import Approve, Encoder, Executor, OnToolError
from rxllm.values import (
    ApiKey,
    ResponseFormat,
    StepResult,
    Tool,
)
from rxllm.values.argument_checks import invalid_option, must_be

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
    api_key: ApiKey
    headers: Mapping[str, str]
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
