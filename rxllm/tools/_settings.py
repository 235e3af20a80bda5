"""The options for running tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeGuard, cast

import msgspec

from rxllm.collector import is_hosted
from rxllm.values import (
    FunctionTool,
    Part,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ValidationError,
    described,
    schema_faults,
)
from rxllm.values.argument_checks import check, invalid_option, is_count, is_positive, must_be, shown
from rxllm.values.errors import Path
from rxllm.values.json_text import json_text, well_formed
from rxllm.values.responses import shorten
from rxllm.values.result_parts import split_result
from rxllm.values.whole_numbers import with_ints

PROMPT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "The task, with all that is needed to do it."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


Executor = Callable[[Tool, Mapping[str, Any], ToolContext], Any]
Encoder = Callable[[Any], str]
OnToolError = Literal["continue", "halt"] | Callable[[ToolCall, ToolError], Any]
Approve = Callable[[ToolCall], Any]
Approval = bool | str | Mapping[str, Any]
"""A decision about a tool call.

True approves the call, and False denies it. A mapping approves the call with new arguments. Text denies the call, and
gives the reason.
"""

TOO_DEEP = "nested too deeply"

RESERVED_HALTS = frozenset(
    {
        "ask_user",
        "max_turns",
        "halt_when",
        "tool_error",
        "cancelled",
        "completed",
        "error",
        "manual_tool_calls",
        "approval",
        "budget",
    }
)
"""Halt reasons that only the chat itself may use."""


class ToolSettings(msgspec.Struct, frozen=True):
    """The options of ``run_tools``, with timeouts in seconds.

    Raises ``ValidationError("invalid_option")`` for invalid values.
    """

    tools: tuple[Tool, ...] = ()
    mode: Literal["auto", "manual"] = "auto"
    context: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    on_tool_error: OnToolError = "continue"
    tool_timeout: float | None = 30.0
    max_concurrency: int | None = None
    eager: bool | None = None
    executor: Executor | None = None
    encoder: Encoder | None = None
    approve: Approve | None = None
    approve_timeout: float | None = None
    engine: Any = None
    session_id: str | None = None
    request_id: str | None = None
    tools_by_name: Mapping[str, Tool] = {}  # derived from `tools`

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "tools_by_name", {tool.name: tool for tool in self.tools})
        policy, limit, seconds = self.on_tool_error, self.max_concurrency, "None or a positive number of seconds"
        fits = policy in ("continue", "halt") or (callable(policy) and not iscoroutinefunction(policy))
        check("mode", self.mode, self.mode in ("auto", "manual"), "'auto' or 'manual'")
        check("on_tool_error", policy, fits, "'continue', 'halt' or a plain function")
        timeout = self.tool_timeout
        check("tool_timeout", timeout, timeout in (None, math.inf) or is_positive(timeout), seconds)
        timeout = self.approve_timeout
        check("approve_timeout", timeout, timeout is None or is_positive(timeout), seconds)
        check("eager", self.eager, self.eager in (None, True, False), "True, False or None")
        check("max_concurrency", limit, limit is None or is_count(limit), "None or an integer >= 1")
        if len(self.tools_by_name) < len(self.tools):
            names = ", ".join(tool.name for tool in self.tools)
            raise invalid_option("tools", f"must all have different names, not {names}")

    def tool_of(self, call: ToolCall) -> Tool | None:
        """Return the tool that runs `call`, or None if there is none.

        For a call that the provider runs once it is approved, return a stand-in that needs approval.
        """
        return Tool(call.name, approval=True) if is_hosted(call) else self.tools_by_name.get(call.name)

    def is_eager(self, tool: Tool) -> bool:
        """Whether `tool` may start while the response is still arriving."""
        if self.eager is False or self.mode == "manual" or tool.manual or tool.approval:
            return False
        return tool.eager or (self.eager is True and tool.idempotent)

    @property
    def concurrency(self) -> float:
        """The maximum number of tool calls that may run at the same time."""
        return self.max_concurrency or math.inf

    def timeout_of(self, tool: Tool) -> float | None:
        """Return the tool's timeout in seconds, or None if it has none."""
        return self.tool_timeout if tool.timeout == "default" else tool.timeout

    def bind(self, tool: Tool, context: ToolContext, streams: Mapping[str, Any] | None = None) -> Callable[[], Any]:
        """Return a function that runs ``context.tool_call``.

        Raises ``ToolError("invalid_arguments")`` if the tool rejects the arguments.
        """
        call = context.tool_call
        self.check_call(tool, call)
        arguments = with_ints(call.arguments, tool.schema)
        if self.executor is not None:
            executor = self.executor
            return lambda: executor(tool, arguments, context)
        if isinstance(tool, FunctionTool):
            return tool.bind(arguments, context, streams)
        return tool.bind(arguments, context)

    def streams_arguments(self, tool: Tool) -> TypeGuard[FunctionTool[..., Any]]:
        """Whether `tool` can read arguments while the model is still writing them."""
        return isinstance(tool, FunctionTool) and bool(tool.streams) and self.executor is None

    def check_call(self, tool: Tool, call: ToolCall) -> None:
        """Raise ``ToolError("invalid_arguments")`` unless the arguments match the schema."""
        if "error" in call.metadata:
            fault = "are nested too deeply" if call.metadata["error"] == TOO_DEEP else "are not a JSON object"
            message = f"the arguments {fault}: {shorten(call.raw_arguments or '', 80)!r}"
            raise tool_error(call, "invalid_arguments", message)
        if self.executor is None and isinstance(tool, FunctionTool):
            return  # the tool checks its own arguments
        if faults := argument_faults(tool, call.arguments):
            message = f"the arguments are invalid: {shorten(described(faults), 400)}"
            raise tool_error(call, "invalid_arguments", message)

    def encode(self, result: Any, call: ToolCall) -> tuple[str, tuple[Part, ...]]:
        """Return a tool's result as text for the model and, if it contains images or files, as parts.

        Raises ``ToolError("encoding_failed")`` if the result cannot be encoded.
        """
        try:
            own = split_result(result, encode_result) if self.encoder is None else (self.encoder(result), ())
            text, parts = cast(tuple[object, tuple[Part, ...]], own)
        except Exception as error:
            reason = error.message if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
            raise _not_encoded(call, f"{shown(result)}: {reason}") from error
        if not isinstance(text, str):
            raise _not_encoded(call, f"tool_result_encoder must return text, not {shown(text)}")
        return text, parts

    def encode_error(self, error: ToolError, call: ToolCall) -> str:
        """Return a one-line error message for the model, without internal details."""
        text = error.message
        if error.reason == "handler_raised" and (cause := error.__cause__) is not None:
            first_line = next(iter(str(cause).strip().splitlines()), "")
            text = f"{type(cause).__name__}: {first_line}".rstrip(": ")
        elif error.reason == "encoding_failed":
            text = "the result of the tool cannot be encoded"
        try:
            return self.encode({"error": text}, call)[0]
        except ToolError:
            return encode_result({"error": text})


def _not_encoded(call: ToolCall, why: str) -> ToolError:
    remedy = "return text, numbers, lists, dicts, dataclasses or models, or pass tool_result_encoder=..."
    message = f"the result of the tool {call.name!r} cannot be encoded for the model: {why}; {remedy}"
    return tool_error(call, "encoding_failed", message)


def argument_faults(tool: Tool, arguments: Mapping[str, Any]) -> list[tuple[Path, str]]:
    """Return a (path, fault) pair for each fault in the arguments.

    An invalid schema also counts as a fault, unless the handler sets ``checks_arguments``.
    """
    if tool.schema == PROMPT:
        faults: list[tuple[Path, str]] = []
        if "prompt" not in arguments:
            faults = [(("prompt",), "is missing; pass the task as text")]
        elif not isinstance(arguments["prompt"], str):
            faults = [(("prompt",), must_be("text", arguments["prompt"]))]
        others = (name for name in arguments if name != "prompt")
        return [*faults, *(((name,), "is not an argument; the only argument is prompt") for name in others)]
    try:
        return schema_faults(tool.schema, arguments)
    except Exception as error:  # jsonschema-rs rejects the schema
        if getattr(tool.handler, "checks_arguments", False):
            return []
        return [((), f"the tool's schema is invalid: {str(error).partition(chr(10))[0]}")]


def encode_result(result: Any) -> str:
    """Return text unchanged, and any other value as JSON.

    >>> encode_result("42"), encode_result({"x": [1, None]})
    ('42', '{"x":[1,null]}')
    """
    return well_formed(result) if isinstance(result, str) else json_text(result)


def tool_error(call: ToolCall, reason: str, message: str) -> ToolError:
    return ToolError(reason, message, tool_name=call.name, tool_call_id=call.id)
