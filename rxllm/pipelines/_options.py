"""The options of the facade: a closed set, checked when a call is made.

For each option the first of these counts: the call's, the request's field, the engine's, the default. None means that
the option is not set, so that wrappers can pass theirs on; only for those in `UNLIMITED` it is a value, no limit.

What an option means is written once, under its field: editors show it there, and `_option_help` puts it into
``help(...)`` and the signatures of the functions. A default in double backticks is the signature's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from reactivex import Observable

from rxllm.events import Event
from rxllm.http import Timeouts
from rxllm.pipelines._option_help import describe
from rxllm.runtime import Retry, current_scope, new_id
from rxllm.tools import Approve, Encoder, Executor, OnToolError
from rxllm.values import (
    ApiKey,
    Message,
    ResponseFormat,
    StepResult,
    Tool,
)
from rxllm.values.argument_checks import invalid_option, must_be

MAX_TURNS = 8

UNLIMITED = frozenset({"tool_timeout", "max_concurrency", "approve_timeout"})
"""The options whose None means no limit."""


class PlainOptions(TypedDict, total=False):
    """`GenerateOptions` without the one that decides the type of an answer."""

    model: str | None
    """The model, by its provider's name for it. Default: the engine's."""
    tools: Sequence[Tool | Callable[..., Any]] | None
    """What the model may call, beside the engine's tools: tools, or functions as ``rxllm.tool`` takes them. One of the
    same name replaces the engine's, and keeps its approval. Default: none."""
    tool_choice: str | Mapping[str, Any] | None
    """"auto", "none", "required" or the name of the tool to call. Default: the provider's, mostly "auto"."""
    temperature: float | None
    """How random the choice of tokens is, from 0 to 2. Default: the provider's."""
    top_p: float | None
    """Choose among the likeliest tokens that have this share of the probability, above 0, up to 1. Default: the
    provider's."""
    max_tokens: int | None
    """The longest answer, in tokens. Default: the provider's; Anthropic has none, so that 32,000 are sent for Claude 4
    and later, 4,096 for other models."""
    stop: str | Sequence[str] | None
    """The text, or texts, before which the answer ends. Default: none."""
    seed: int | None
    """A whole number that makes answers repeatable, as far as the provider can. Default: none."""
    reasoning_effort: str | None
    """How much a model thinks before it answers: "none", "minimal", "low", "medium", "high" or another word of its
    provider; what a model accepts differs. Default: the provider's."""
    structured_finalize: bool | None
    """Ask for the `response_format` in a last request of its own, without tools. Default: only for a model that
    ``rxllm.models`` says takes no tools with a schema."""
    options: Mapping[str, Any] | None
    """Fields that are merged into the provider's request body unchanged. Default: none."""
    metadata: Mapping[str, Any] | None
    """Notes on the request for adapters and operators; they are not sent. Default: none."""
    context: Mapping[str, Any] | None
    """What tools receive as ``ToolContext.context``, over the engine's. Default: the engine's."""
    api_key: ApiKey | None
    """The provider's key, or a function, sync or async, that returns it for each attempt. Default: the adapter's, or
    the one in ``rxllm.keys`` or the environment."""
    headers: Mapping[str, str] | None
    """Headers to send with each request of the call, over the adapter's; another engine, as of ``fallback``, does not
    get them. Default: none."""
    session_id: str | None
    """The id of the conversation for tools and telemetry. Default: none."""
    request_id: str | None
    """The id of the call for results and telemetry, where it is `rxllm.request.id`. Default: a new one."""
    retry: Retry
    """How failures before the first content are tried again: a `RetryPolicy`, a mapping of its fields, True for the
    default policy, False for never. Default: the engine's, which is three attempts."""
    timeout: float | Timeouts | None
    """The longest silence of the model, in seconds, or a `Timeouts`, for each response. With both `first` and `idle` it
    is the longest wait for bytes too. Default: no limit but the connection's own, 600 seconds without a byte."""
    emit_text_deltas: bool | None
    """Whether a stream of events has `TextDelta`; results are the same without. Default: ``True``."""
    emit_tool_deltas: bool | None
    """Whether a stream of events has `ToolCallDelta`; results are the same without. Default: ``True``."""
    emit_thinking: bool | None
    """Whether a stream of events has `ThinkingDelta`; results are the same without. Default: ``True``."""
    include_raw_chunks: bool | None
    """Whether a stream of events has the provider's own frames too, as `RawChunk`. Default: ``False``."""
    on_event: Callable[[Event], object] | None
    """A function that is called with every event of the model. Default: none."""


class GenerateOptions(PlainOptions, total=False):
    """The options of `generate`: the fields of a request, how the call is made, and which events are emitted."""

    response_format: ResponseFormat | None
    """What the answer is: a type (a dataclass, a pydantic model, ``list[City]``, ``bool``, ...), ``json_schema(...)``,
    ``{"type": "json_object"}`` or "text". Functions that return a result have the validated value in `parsed`. Default:
    text."""


class PlainStepOptions(PlainOptions, total=False):
    """`StepOptions` without the one that decides the type of an answer."""

    mode: Literal["auto", "manual"] | None
    """"manual" halts before any tool is run. Default: ``"auto"``."""
    on_tool_error: OnToolError | None
    """What follows the failure of a tool: "continue" tells the model, "halt" ends the chat, and a function of the call
    and the error returns a replacement or ``halt(...)``. Default: ``"continue"``."""
    tool_timeout: float | None
    """The longest run of one tool without a timeout of its own, in seconds; None means no limit. Default: ``30.0``."""
    max_concurrency: int | None
    """How many tools run at a time; None means no limit. Default: ``None``."""
    tool_executor: Executor | None
    """A function that runs a tool in place of rxllm. Default: the engine's."""
    tool_result_encoder: Encoder | None
    """A function that writes a tool's result as the text for the model. Default: the engine's, which is JSON."""
    approve: Approve | None
    """A function that decides about calls of tools with ``approval=True``: True, False or the reason for a refusal, a
    mapping with the arguments to run with instead, or ``halt("approval")``, which halts the chat; also awaitable, or an
    Observable. Default: such a call halts the chat."""
    approve_timeout: float | None
    """How many seconds `approve` may take for a call before the call is refused; None means no limit. Default:
    ``None``."""


class StepOptions(PlainStepOptions, GenerateOptions, total=False):
    """The options of `step`: those of `generate`, and how tools are run; see ``operators.run_tools``."""


class PlainChatOptions(PlainStepOptions, total=False):
    """`ChatOptions` without the one that decides the type of an answer."""

    max_turns: int | None
    """After how many steps the chat ends. Default: ``8``, or ``RXLLM_MAX_TURNS`` from the environment."""
    halt_when: Callable[[StepResult], bool] | None
    """A function of each step's result that ends the chat when it is true. Default: none."""
    steer: Observable[str | Message] | None
    """What the user types while the chat runs, as texts or user's messages: each is answered by the next step; see
    ``operators.repeat_until_halt``. Default: none."""
    steer_at: Literal["sentence", "step"] | None
    """Where `steer` stops the model: at the end of its "sentence" or of its "step". Default: "sentence"; with a
    `response_format` "step"."""
    structured_finalize_nudge: str | None
    """The user's message in the request of `structured_finalize`; "" sends none. Default: ``"Now provide your final
    structured response."``."""


class ChatOptions(PlainChatOptions, StepOptions, total=False):
    """The options of `chat`: those of `step`, and when the chat ends."""


for _options in (GenerateOptions, StepOptions, ChatOptions):
    describe(_options)


def set_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set.

    >>> set_options({"temperature": None, "tool_timeout": None, "seed": 0})
    {'tool_timeout': None, 'seed': 0}
    """
    return {name: value for name, value in options.items() if value is not None or name in UNLIMITED}


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
    place = "sentence" if options.get("response_format", "text") == "text" else "step"  # half a JSON helps nobody
    steering = {"steer": options.get("steer"), "steer_at": options.get("steer_at", place)}
    return {"max_turns": turns, "halt_when": options.get("halt_when"), **steering}
