"""Turn the result or the error of a tool into its events."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from typing import Any

from rxllm.collector import AWAITING_USER
from rxllm.events import AskUserRequested, Event, ToolExecutionCompleted, ToolHalt, ToolResultEncoded
from rxllm.tools._settings import RESERVED_HALTS, TOO_DEEP, ToolSettings
from rxllm.values import Halt, ToolCall, ToolError

log = logging.getLogger("rxllm")


def own(call: ToolCall) -> ToolCall:
    """Return a copy of `call` for the user's code, whose changes do not reach the thread and the events."""
    try:
        return deepcopy(call)
    except RecursionError:
        return replace(call, arguments={}, metadata={**call.metadata, "error": TOO_DEEP})


def returned(result: Any, call: ToolCall, settings: ToolSettings) -> list[Event]:
    """Return the events of a tool that returned `result`."""
    try:
        outcome = _outcome(result, call, settings)
    except ToolError as error:
        if error.reason == "encoding_failed":
            log.warning("%s", error.message)  # a fault of the program, which its model is not told in detail
            error.is_logged = True
        return failed(error, call, settings)
    return [ToolExecutionCompleted(call.id, call.name, _plain(result)), outcome]


def failed(error: ToolError, call: ToolCall, settings: ToolSettings) -> list[Event]:
    """Return the events of a tool that failed, by the policy ``on_tool_error``."""
    return [ToolExecutionCompleted(call.id, call.name, error=error), _decide(error, call, settings)]


def _decide(error: ToolError, call: ToolCall, settings: ToolSettings) -> Event:
    content, decision = settings.encode_error(error, call), settings.on_tool_error
    metadata: dict[str, Any] = {}
    if not isinstance(decision, str):
        try:
            decision = decision(own(call), error)
            if not isinstance(decision, str) or decision not in ("continue", "halt"):
                return _outcome(decision, call, settings)
        except Exception as raised:
            decision = "halt"
            if raised is not error:  # raising the tool's own error again is a decision, not a fault of the policy
                metadata["on_tool_error_exception"] = {"type": type(raised).__name__, "message": str(raised)}
    if decision == "continue":
        return ToolResultEncoded(call.id, content)
    return ToolHalt(call.id, "tool_error", content=content, metadata=metadata)


def is_halting(event: Event) -> bool:
    """Return whether `event` ends the chat when the step's other tools have finished."""
    return isinstance(event, ToolHalt | AskUserRequested)


def _outcome(result: Any, call: ToolCall, settings: ToolSettings) -> Event:
    if not isinstance(result, Halt):
        return ToolResultEncoded(call.id, settings.encode(result, call))
    if result.question is not None:
        return AskUserRequested(call.id, call.name, result.question, dict(result.opts))
    if result.reason in RESERVED_HALTS:
        message = f"a tool cannot halt with {result.reason!r}, a reason of the chat itself: choose another"
        metadata = {"reserved_halt_reason": result.reason}
        raise ToolError("invalid_return", message, tool_name=call.name, tool_call_id=call.id, metadata=metadata)
    return ToolHalt(call.id, result.reason, result.result, settings.encode(result.result, call))


def _plain(result: Any) -> Any:
    if not isinstance(result, Halt):
        return result
    return AWAITING_USER if result.question is not None else result.result
