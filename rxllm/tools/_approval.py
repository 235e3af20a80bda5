"""Handle approvers' answers, and questions that tools ask the user.

When a tool asks a question, its call stays open until the user answers, just like a call to an agent that has halted.
The question and the answer form the tool's "chat". Several tools in one step, however deeply nested, may ask questions.
The questions are stored in the thread's JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.collector import nest
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
from rxllm.values.argument_checks import did_you_mean, shown
from rxllm.values.errors import Path
from rxllm.values.json_text import json_data
from rxllm.values.responses import shorten
from rxllm.values.sessions import question
from rxllm.values.tool_schemas import convert

WAITING = ("manual_tool_calls", "approval_tool_calls")
"""The keys in a step's metadata that list the tool calls the caller must answer before the chat can continue."""

QUESTION = "question"
"""The id of a question in its tool's chat; the caller sees it combined with the tool call's id."""

STATE = "tool_state"
"""The key in a question's metadata that holds the state the tool has saved for its next run."""

NO_ANSWER = object()
"""Used as the answer if an approver's Observable completes without an item."""


def read_decision(answer: object, tool: Tool, call: ToolCall) -> ToolCall | ToolError | None:
    """Return the call to run, the error for a denied call, or None if the caller has to decide.

    Raises ``TypeError`` if `answer` is invalid, and ``ValidationError("invalid_option")`` if `tool` does not accept its
    arguments.
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
    """Return `call` with the model's arguments replaced by `arguments`, copied and converted to JSON data.

    If `tool` does not accept them, raises ``ValidationError("invalid_option")`` with paths that begin with `path`.
    """
    try:
        data = json_data(dict(arguments))
        faults = _edit_faults(tool, data)
    except ValidationError as error:
        data, faults = {}, list(error.errors) or [((), error.message)]
    if faults:
        message = f"{'.'.join(path)} edits the arguments of the tool call {call.id}, but {tool.name!r} rejects them"
        message = f"{message}: {shorten(described(faults), 400)}; pass every argument that the tool's schema requires"
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
    """The tool calls awaiting approval. A call is removed once it is run or denied."""

    def __init__(self) -> None:
        self._notes: dict[str, Mapping[str, Any]] = {}

    def note(self, event: Event) -> None:
        """Update the waiting calls after `execution` has emitted `event`."""
        if isinstance(event, ToolApprovalRequested):
            self._notes[event.id] = event.metadata
        elif isinstance(event, ToolExecutionStarted | ToolExecutionCompleted):
            self._notes.pop(event.id, None)

    def of(self, calls: Iterable[ToolCall]) -> dict[str, Any]:
        """Return the metadata for a step that made `calls`: the calls that are waiting, if any."""
        notes = self._notes
        waiting = tuple(
            replace(call, metadata={**call.metadata, **notes[call.id]}) for call in calls if call.id in notes
        )
        return {"approval_tool_calls": waiting} if waiting else {}


def question_events(halt: Halt, call: ToolCall) -> list[Event]:
    """Return the events for `call`, whose tool has returned `halt` to ask a question."""
    opts = {"ask_user_opts": dict(halt.opts)} if halt.opts else {}
    message = question(halt.question or "", QUESTION, opts)
    return _waiting_events(replace(message, metadata={**message.metadata, STATE: halt.tool_state}), call)


def repeat_question(thread: Thread, call: ToolCall) -> list[Event]:
    """Return the events for `call`, whose question (the first message of `thread`) still has no answer."""
    return _waiting_events(thread[0], call)


def read_reply(resumed: tuple[Thread, Any] | None) -> tuple[str | None, Any]:
    """Return the user's answer and the tool's stored state for a resumed call, or None for both."""
    match resumed[0].messages if resumed is not None else ():
        case (message, reply, *_) if is_question(message):
            return reply.text, message.metadata.get(STATE)
        case _:
            return None, None


def is_question(message: Message) -> bool:
    """Whether `message`, the first message of a chat, is a tool's question. An agent's chat never begins with one."""
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
    """Return the error for a tool call that was not approved. If `verdict` is text, it is the reason."""
    reason = verdict if isinstance(verdict, str) and verdict else "it was not approved"
    return ToolError("denied", f"the call was denied: {reason}", tool_name=call.name, tool_call_id=call.id)
