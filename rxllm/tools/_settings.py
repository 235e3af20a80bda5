"""What decides how tools run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Literal

import msgspec

from rxllm.values import (
    FunctionTool,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ValidationError,
    described,
    schema_faults,
)
from rxllm.values._json import json_text, well_formed
from rxllm.values._response import shorten

Executor = Callable[[Tool, Mapping[str, Any], ToolContext], Any]
Encoder = Callable[[Any], str]
OnToolError = Literal["continue", "halt"] | Callable[[ToolCall, ToolError], Any]
Approve = Callable[[ToolCall], Any]

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
"""The reasons a tool cannot halt with, because the chat itself does."""


class ToolSettings(msgspec.Struct, frozen=True):
    """The settings of one ``run_tools``; `tool_timeout` in seconds, None for none.

    Raises ``ValidationError("invalid_option")`` for values that make no sense.
    """

    tools: tuple[Tool, ...] = ()
    mode: Literal["auto", "manual"] = "auto"
    context: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    on_tool_error: OnToolError = "continue"
    tool_timeout: float | None = 30.0
    max_concurrency: int | None = None
    executor: Executor | None = None
    encoder: Encoder | None = None
    approve: Approve | None = None
    tools_by_name: Mapping[str, Tool] = {}  # follows from `tools`

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "tools_by_name", {tool.name: tool for tool in self.tools})
        checks = {
            "mode": self.mode in ("auto", "manual"),
            "on_tool_error": self.on_tool_error in ("continue", "halt") or _is_plain_function(self.on_tool_error),
            "tool_timeout": _is_positive(self.tool_timeout, int | float),
            "max_concurrency": _is_positive(self.max_concurrency, int),
            "tools": len(self.tools_by_name) == len(self.tools),
        }
        wrong = [((name,), f"cannot be {getattr(self, name)!r}") for name, fine in checks.items() if not fine]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong)

    def concurrency(self, calls: int) -> int:
        """How many of `calls` run at once: the option, else twice the processors."""
        return self.max_concurrency or max(1, min(calls, 2 * (os.cpu_count() or 1)))

    def bind(self, tool: Tool, context: ToolContext) -> Callable[[], Any]:
        """The context's call, ready to be made. Raises ``ToolError`` where it cannot be."""
        call = context.tool_call
        if "error" in call.metadata:
            why = "are nested too deeply" if call.metadata["error"] == TOO_DEEP else "are not a JSON object"
            message = f"the arguments {why}: {shorten(call.raw_arguments or '', 80)!r}"
            raise ToolError("invalid_arguments", message, tool_name=tool.name, tool_call_id=call.id)
        if self.executor is not None or not _converts(tool):
            _check(tool, call)
        if self.executor is not None:
            executor = self.executor
            return lambda: executor(tool, call.arguments, context)
        return tool.bind(call.arguments, context)

    def encode(self, result: Any, call: ToolCall) -> str:
        """What the model is told of `result`. Raises ``ToolError("encoding_failed")``."""
        try:
            return (self.encoder or encode_result)(result)
        except Exception as error:
            message = f"the result cannot be told to the model: {type(error).__name__}: {error}"
            made = ToolError("encoding_failed", message, tool_name=call.name, tool_call_id=call.id)
            raise made from error

    def encode_error(self, error: ToolError, call: ToolCall) -> str:
        """What the model is told of a failure: one line, no internals."""
        cause = error.__cause__ if error.reason == "handler_raised" else None
        lines = str(cause).strip().splitlines() if cause is not None else [error.message]
        said = f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ") if cause is not None else lines[0]
        try:
            return self.encode({"error": said}, call)
        except ToolError:
            return encode_result({"error": said})


def _is_plain_function(value: object) -> bool:
    return callable(value) and not iscoroutinefunction(value)


def _converts(tool: Tool) -> bool:
    """Whether the tool itself sees to it that its arguments have the right types."""
    return isinstance(tool, FunctionTool)


def _check(tool: Tool, call: ToolCall) -> None:
    """Raises ``ToolError("invalid_arguments")`` where the arguments break the tool's schema, see `schema_faults`."""
    try:
        faults = schema_faults(tool.schema, call.arguments)
    except Exception as error:  # jsonschema's own
        faults = [((), f"the schema of the tool is wrong: {str(error).partition(chr(10))[0]}")]
    if faults:
        message = f"the arguments do not fit: {shorten(described(faults), 400)}"
        raise ToolError("invalid_arguments", message, tool_name=tool.name, tool_call_id=call.id)


def _is_positive(held: Any, kind: Any) -> bool:
    return held is None or (isinstance(held, kind) and not isinstance(held, bool) and held > 0)


def encode_result(result: Any) -> str:
    """Text as it is, anything else as JSON.

    >>> encode_result("42"), encode_result({"x": [1, None]})
    ('42', '{"x":[1,null]}')
    """
    return well_formed(result) if isinstance(result, str) else json_text(result)
