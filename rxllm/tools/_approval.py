"""Functions that handle approvers' answers, and the questions that tools ask the user.

* A tool that asks a question is handled like a halted agent. The tool's "chat" consists of the question and the answer.
* Several tools in a step may ask questions. All of these questions are stored in the thread's JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.collector import is_hosted, nest
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    Event,
    ToolApprovalRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.tools._settings import argument_faults
from rxllm.values import (
    ChatResult,
    FunctionTool,
    Halt,
    Message,
    Response,
    Thread,
    Tool,
    ToolCall,
    ToolError,
    ValidationError,
    described,
)
from rxllm.values.argument_checks import did_you_mean, invalid_option, shown
from rxllm.values.errors import Path
from rxllm.values.json_text import json_data
from rxllm.values.responses import shorten
from rxllm.values.sessions import question
from rxllm.values.tool_schemas import convert

WAITING = ("manual_tool_calls", "approval_tool_calls")
"""The metadata keys for the lists of tool calls that the caller must answer."""

QUESTION = "question"
"""The id of a tool's question to the user, within the tool's own "chat"."""

STATE = "tool_state"
"""The metadata key for the state that a tool saves with its question."""

NO_ANSWER = object()
"""Stands for the answer of an approver whose stream ended without emitting an item."""


def read_decision(answer: object, tool: Tool, call: ToolCall) -> ToolCall | ToolError | None:
    """Return the call to run, the error for a denied call, or None if the caller must decide.

    Raises ``TypeError`` for an invalid `answer`, and ``ValidationError("invalid_option")`` for arguments that `tool`
    rejects.
    """
    match answer:
        case True:
            return call
        case False | str():
            return denied(call, answer)
        case Mapping():
            return edited(tool, call, cast(Mapping[str, Any], answer), "approve")
        case Halt(reason="approval"):
            return None
        case _:
            options = "True, False, text (the reason for denial), a mapping with new arguments, or halt('approval')"
            got = "a stream without items" if answer is NO_ANSWER else shown(answer)
            raise TypeError(f"approve must return {options}, not {got} (for the tool {tool.name!r})")


def edited(tool: Tool, call: ToolCall, arguments: Mapping[str, Any], *path: str) -> ToolCall:
    """Return `call` with new `arguments`.

    Raises ``ValidationError("invalid_option")`` if `tool` rejects them.
    """
    if is_hosted(call):
        fault = f"edits the call to {tool.name!r}, but the provider runs it with the model's arguments"
        raise invalid_option(path, f"{fault}; pass True, False or the reason to deny it")
    try:
        data = json_data(dict(arguments))
        faults = _edit_faults(tool, data)
    except ValidationError as error:
        data, faults = {}, list(error.errors) or [((), error.message)]
    if faults:
        message = f"{'.'.join(path)} edits the arguments of the tool call {call.id}, but {tool.name!r} rejects them"
        message = f"{message}: {shorten(described(faults), 400)}; pass all required arguments"
        raise ValidationError("invalid_option", message, errors=[((*path, *at), fault) for at, fault in faults])
    metadata = {name: note for name, note in call.metadata.items() if name != "error"}
    return replace(call, arguments=data, raw_arguments=None, metadata=metadata)


def _edit_faults(tool: Tool, arguments: Mapping[str, Any]) -> list[tuple[Path, str]]:
    if not isinstance(tool, FunctionTool):
        return argument_faults(tool, arguments)
    names = tool.parameters
    unknown = [name for name in arguments if name not in names]
    if not unknown:
        convert(names, arguments)
    return [((name,), f"is not a parameter{did_you_mean(name, names)}") for name in unknown]


class WaitingCalls:
    """The tool calls that are waiting for approval."""

    def __init__(self) -> None:
        self._notes: dict[str, Mapping[str, Any]] = {}

    def note(self, event: Event) -> None:
        """Add the call for which `event` requests approval, or remove the call that `event` starts or completes."""
        if isinstance(event, ToolApprovalRequested):
            self._notes[event.id] = event.metadata
        elif isinstance(event, ToolExecutionStarted | ToolExecutionCompleted):
            self._notes.pop(event.id, None)

    def of(self, calls: Iterable[ToolCall]) -> dict[str, Any]:
        """Return the step's metadata, which lists the `calls` that are waiting for approval."""
        notes = self._notes
        waiting = tuple(
            replace(call, metadata={**call.metadata, **notes[call.id]}) for call in calls if call.id in notes
        )
        return {"approval_tool_calls": waiting} if waiting else {}


def question_events(halt: Halt, call: ToolCall) -> list[Event]:
    """Return the events for a tool that asks a question."""
    opts = {"ask_user_opts": dict(halt.opts)} if halt.opts else {}
    message = question(halt.question or "", QUESTION, opts)
    return _waiting_events(replace(message, metadata={**message.metadata, STATE: halt.tool_state}), call)


def repeat_question(thread: Thread, call: ToolCall) -> list[Event]:
    """Return the events that repeat an unanswered question."""
    return _waiting_events(thread[0], call)


def read_reply(resumed: tuple[Thread, Any] | None) -> tuple[str | None, Any]:
    """Return the user's answer to the tool's question, and the state that the tool saved. Either can be None."""
    match resumed[0].messages if resumed is not None else ():
        case (message, reply, *_) if is_question(message):
            return reply.text, message.metadata.get(STATE)
        case _:
            return None, None


def is_question(message: Message) -> bool:
    """Whether `message`, the first message of a tool's chat, asks the user a question."""
    return bool(message.metadata.get("ask_user"))


def _waiting_events(message: Message, call: ToolCall) -> list[Event]:
    opts = {name: value for name, value in message.metadata.items() if name == "ask_user_opts"}
    result = ChatResult(
        thread=Thread((message,)),
        final_response=Response(),
        halted_reason="ask_user",
        pending_question=message.text,
        pending_tool_call_id=QUESTION,
        metadata=opts,
    )
    requested = AskUserRequested(QUESTION, call.name, message.text, opts.get("ask_user_opts", {}))
    return [nest(call.id, requested), nest(call.id, ChatCompleted(result))]


def denied(call: ToolCall, verdict: object) -> ToolError:
    """Return the error for a denied call. If `verdict` is text, it gives the reason."""
    reason = verdict if isinstance(verdict, str) and verdict else "it was not approved"
    return ToolError("denied", f"the call was denied: {reason}", tool_name=call.name, tool_call_id=call.id)
