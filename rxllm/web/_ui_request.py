"""Read ``useChat`` requests.

`rxllm.web._requests` describes what is accepted. An assistant message from the browser becomes one message per step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

import msgspec

from rxllm import Message, Thread, ToolCall
from rxllm.values import Part, TextPart, ThinkingPart
from rxllm.web._requests import (
    MAX_BYTES,
    Incoming,
    Load,
    Name,
    Stored,
    StoredConversation,
    check_id,
    convert_to,
    file_part,
    load_request,
    plain_content,
    turn,
    without_answer,
    wrong,
)


class _Approval(msgspec.Struct, frozen=True):
    id: Name = ""
    approved: bool | None = None
    reason: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    type: Name
    text: str = ""
    url: Name = ""
    media_type: Name = ""
    filename: str | None = None
    tool_call_id: Name = ""
    tool_name: Name = ""
    state: Name = ""
    input: Any = None
    output: Any = None
    error_text: str = ""
    preliminary: bool = False
    provider_executed: bool = False
    approval: _Approval = _Approval()
    provider_metadata: dict[str, Any] = {}

    @property
    def is_tool(self) -> bool:
        return self.type == "dynamic-tool" or self.type.startswith("tool-")

    @property
    def is_answered(self) -> bool:
        return self.state in ("output-available", "output-error", "output-denied") and not self.preliminary

    @property
    def result(self) -> Any:
        """The tool's result, in the form that `rxllm.resume` accepts."""
        if self.state == "output-available":
            output = cast(str | dict[str, Any] | None, self.output)  # in fact, any JSON value
            return output if isinstance(output, str | dict) else json.dumps(output)
        return {"error": self.error_text or "denied"}


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    parts: list[_Part]


class _Request(msgspec.Struct, rename="camel"):
    messages: list[_Message]
    id: Any = None
    trigger: Name = "submit-message"
    message_id: Name | None = None


def from_ui(
    body: bytes | str | Mapping[str, Any],
    stored: Stored | Load | None = None,
    *,
    client_tools: Collection[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Incoming:
    """Read the thread, approvals and tool results from a ``useChat`` request.

    >>> import rxllm
    >>> hello = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    >>> incoming = from_ui({"id": "chat1", "trigger": "submit-message", "messages": [hello]})
    >>> rxllm.resume(rxllm.Fake("Hello"), incoming.thread).run().output_text
    'Hello'

    Pass the server's copy of the conversation as `stored`. If you do, only new messages and answers are taken from the
    request. Without `stored`, the conversation consists of the browser's messages. Users can then edit earlier
    messages, but approvals are rejected. `client_tools` lists the names of the tools that run in the browser. Results
    from any other tool are rejected.

    `stored` can also be a sync function that takes the conversation id. It returns the server's copy, or None if the
    conversation is new. The browser chooses the id, so the function must check whether the user may use it.

    Raises ``ValidationError("invalid_request")`` if the request is malformed, answers an unknown call, is longer than
    `max_bytes` or is nested too deeply. The error includes the path to the fault. Raises
    ``ValidationError("invalid_option")`` if `stored` has the wrong type.
    """
    request = convert_to(load_request(body, max_bytes), _Request)
    messages = [(i, message) for i, message in enumerate(request.messages) if message.role != "system"]
    if not messages:
        raise wrong("must contain a message that is not a system message", "messages")
    if stored is None:
        return Incoming(Thread(_history(messages)))
    conversation = StoredConversation(stored, client_tools, request.id, "id")
    thread = conversation.thread
    places = [i for i, message in enumerate(thread) if message.role == "user"]
    is_regenerated = request.trigger == "regenerate-message"
    # If the stored thread has no user message, the request's messages are read as new messages instead.
    if is_regenerated and places:
        return Incoming(without_answer(thread, places[-1] + 1), id=conversation.id)
    if messages[-1][1].role == "assistant":
        _take_answers(conversation, *messages[-1])
    elif request.message_id is not None and not is_regenerated:
        raise wrong("must not be given: earlier messages of a stored conversation cannot be edited", "messageId")
    first = max((place + 1 for place, (_, entry) in enumerate(messages) if entry.role == "assistant"), default=0)
    return conversation.incoming([message for i, entry in messages[first:] for message in _user_messages(i, entry)])


def ui_id(data: Any) -> str:
    """Return the conversation id from a parsed request."""
    return check_id(convert_to(data, _Request).id, "id")


def _history(entries: list[tuple[int, _Message]]) -> list[Message]:
    messages: list[Message] = []
    ids: set[str] = set()
    for i, entry in entries:
        if entry.role == "user":
            messages += _user_messages(i, entry)
            continue
        step: list[_Part] = []
        for j, part in enumerate(entry.parts):
            if part.is_tool:
                _check_call(part, ids, i, j)
            if part.type == "step-start":
                messages += _assistant_messages(step)
                step = []
            step.append(part)
        messages += _assistant_messages(step)
    return messages


def _check_call(part: _Part, ids: set[str], i: int, j: int) -> None:
    if part.state == "approval-responded":
        raise wrong("needs the stored conversation; pass it as stored=", "messages", i, "parts", j, "approval")
    if not part.tool_call_id or part.tool_call_id in ids:
        raise wrong("must be present, and different for every call", "messages", i, "parts", j, "toolCallId")
    ids.add(part.tool_call_id)


def _assistant_messages(step: list[_Part]) -> list[Message]:
    """Return a step's assistant message and its tool results. Calls that have no result are left out."""
    parts: list[Part] = []
    answered: list[tuple[ToolCall, Any]] = []
    for part in step:
        if part.type == "text" and part.text:
            parts.append(TextPart(part.text))
        elif part.type == "reasoning":
            parts.append(ThinkingPart(part.text, _signature(part)))
        elif part.is_tool and part.is_answered and not part.provider_executed:
            name = part.tool_name or part.type.removeprefix("tool-")
            data: Any = part.input
            arguments = cast(dict[str, Any], data) if isinstance(data, dict) else {}
            answered.append((ToolCall(part.tool_call_id, name, arguments), part.result))
    return turn(parts, answered)


def _signature(part: _Part) -> str | None:
    match part.provider_metadata:
        case {"rxllm": {"signature": str(signature)}}:
            return signature
        case _:
            return None


def _user_messages(i: int, entry: _Message) -> list[Message]:
    parts: list[Part] = []
    for j, part in enumerate(entry.parts):
        if part.type == "text":
            parts.append(TextPart(part.text))
        elif part.type == "file":
            parts.append(file_part(part.url, part.media_type, "messages", i, "parts", j, "url", name=part.filename))
    return [Message("user", plain_content(parts))] if parts else []


def _take_answers(conversation: StoredConversation, i: int, entry: _Message) -> None:
    for j, part in enumerate(entry.parts):
        id, approval, path = part.tool_call_id, part.approval, ("messages", i, "parts", j)
        if not part.is_tool or id in conversation.approvals or id in conversation.results:
            continue
        if part.state == "approval-responded":
            if approval.approved is None:
                raise wrong("must be true or false", *path, "approval", "approved")
            if id not in conversation.known:
                raise wrong("must answer a tool call in the stored conversation", *path, "approval")
            if id in conversation.pending:
                conversation.check_shown(id, approval.id, part.input, *path, "approval", "id")
                conversation.approve(id, approval.approved or approval.reason or False, *path, "approval")
        elif part.is_answered:
            conversation.answer(id, part.result, *path, "output")
