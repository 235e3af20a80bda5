"""The way in from ``useChat``: the messages of a browser as a thread, and its answers to tool calls.

What a browser sends is written by its user. Hence:

=====================================  ================================================================================
of a request                           becomes
=====================================  ================================================================================
a system message                       nothing
text, files of the user                a user's message; a file's URL is ``http:``, ``https:``, or ``data:`` of a size
an assistant's text, reasoning, calls  with the server's thread nothing, since that has them; otherwise messages, one
                                       for each step
a tool call without a result           nothing
an approval of a call                  an approval, if the call waits in the server's thread; without one, an error
what has been answered already         nothing; if there is nothing else, an error
the result of a client's tool          a result, if the call waits in the server's thread and is one of `client_tools`
a new message instead of an answer     a denial of the calls that wait, and the message, which answers the question of
                                       an agent inside, if that has asked
=====================================  ================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

import msgspec

from rxllm import ChatResult, Message, Part, Session, TextPart, ThinkingPart, Thread, ToolCall, tool_result
from rxllm.web._messages import (
    MAX_BYTES,
    UNANSWERED,
    Incoming,
    asking,
    converted,
    file_part,
    loaded,
    question,
    replied,
    waiting,
    wrong,
)


class _Approval(msgspec.Struct, frozen=True):
    approved: bool | None = None
    reason: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    type: str
    text: str = ""
    url: str = ""
    media_type: str = ""
    filename: str | None = None
    tool_call_id: str = ""
    tool_name: str = ""
    state: str = ""
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
        """The result of a tool as `rxllm.resume` takes it."""
        if self.state == "output-available":
            output = cast(str | dict[str, Any] | None, self.output)  # or any other JSON
            return output if isinstance(output, str | dict) else json.dumps(output)
        return {"error": self.error_text or "denied"}


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    parts: list[_Part]


class _Request(msgspec.Struct, rename="camel"):
    messages: list[_Message]
    trigger: str = "submit-message"
    message_id: str | None = None


def from_ui(
    body: bytes | str | Mapping[str, Any],
    stored: Thread | ChatResult | Session | None = None,
    *,
    client_tools: Collection[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Incoming:
    """Return what a request of ``useChat`` asks for.

    >>> import rxllm
    >>> hello = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    >>> incoming = from_ui({"id": "chat1", "trigger": "submit-message", "messages": [hello]})
    >>> rxllm.resume(rxllm.Fake("Hello"), incoming.thread).run().output_text
    'Hello'

    `stored` is the conversation as the server knows it: then only new messages and answers are read. Without it the
    messages of the browser are the conversation, as edits of earlier ones need, and no approval is taken.
    `client_tools` are the names of the tools that run in the browser; no other results are taken.

    Raises ``ValidationError("invalid_request")``, with the path, for anything malformed, longer than `max_bytes`, too
    deep, and for an answer to a call that the server has not made; ``"invalid_option"`` for another class of `stored`.
    """
    request = converted(loaded(body, max_bytes), _Request)
    messages = [(i, message) for i, message in enumerate(request.messages) if message.role != "system"]
    if not messages:
        raise wrong("must hold a message of the user", "messages")
    if stored is None:
        return Incoming(Thread(_history(messages)))
    thread, pending = waiting(stored)
    if request.trigger == "regenerate-message":
        places = [i for i, message in enumerate(thread) if message.role == "user"]
        return Incoming(thread[: places[-1] + 1] if places else thread)
    if messages[-1][1].role == "assistant":
        return asking(_answers(thread, pending, *messages[-1], client_tools), pending)
    if request.message_id is not None:
        raise wrong("is an edit of an earlier message, which the stored conversation does not allow", "messageId")
    return asking(_went_on(thread, pending, messages, client_tools, question(stored)), pending)


# Without a stored conversation


def _history(entries: list[tuple[int, _Message]]) -> list[Message]:
    messages: list[Message] = []
    ids: set[str] = set()
    for i, entry in entries:
        if entry.role == "user":
            messages += _user(i, entry)
            continue
        step: list[_Part] = []
        for j, part in enumerate(entry.parts):
            if part.is_tool:
                _check_call(part, ids, i, j)
            if part.type == "step-start":
                messages += _assistant(step)
                step = []
            step.append(part)
        messages += _assistant(step)
    return messages


def _check_call(part: _Part, ids: set[str], i: int, j: int) -> None:
    if part.state == "approval-responded":
        raise wrong("needs the stored conversation", "messages", i, "parts", j, "approval")
    if not part.tool_call_id or part.tool_call_id in ids:
        raise wrong("must be an id of its own", "messages", i, "parts", j, "toolCallId")
    ids.add(part.tool_call_id)


def _assistant(step: list[_Part]) -> list[Message]:
    """Return the message of a step and the results of its tools, without the calls that have none."""
    content: list[Part] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for part in step:
        if part.type == "text" and part.text:
            content.append(TextPart(part.text))
        elif part.type == "reasoning":
            content.append(ThinkingPart(part.text, _signature(part)))
        elif part.is_tool and part.is_answered and not part.provider_executed:
            name = part.tool_name or part.type.removeprefix("tool-")
            calls.append(ToolCall(part.tool_call_id, name, _object(part.input)))
            results.append(tool_result(part.tool_call_id, part.result))
    if not content and not calls:
        return []
    return [Message("assistant", _plain(content), tool_calls=tuple(calls)), *results]


def _object(data: Any) -> dict[str, Any]:
    return cast(dict[str, Any], data) if isinstance(data, dict) else {}


def _signature(part: _Part) -> str | None:
    match part.provider_metadata:
        case {"rxllm": {"signature": str(signature)}}:
            return signature
        case _:
            return None


def _user(i: int, entry: _Message) -> list[Message]:
    parts: list[Part] = []
    for j, part in enumerate(entry.parts):
        if part.type == "text":
            parts.append(TextPart(part.text))
        elif part.type == "file":
            parts.append(file_part(part.url, part.media_type, "messages", i, "parts", j, "url", name=part.filename))
    return [Message("user", _plain(parts))] if parts else []


def _plain(parts: list[Part]) -> str | tuple[Part, ...]:
    match parts:
        case []:
            return ""
        case [TextPart(text=text)]:
            return text
        case _:
            return tuple(parts)


# With a stored conversation


def _answers(
    thread: Thread, pending: Mapping[str, ToolCall], i: int, entry: _Message, client_tools: Collection[str]
) -> Incoming:
    approvals: dict[str, bool | str] = {}
    results: dict[str, Any] = {}
    known = {call.id for message in thread for call in message.tool_calls} | pending.keys()
    for j, part in enumerate(entry.parts):
        id, approval, path = part.tool_call_id, part.approval, ("messages", i, "parts", j)
        if not part.is_tool or id in approvals or id in results:
            continue
        if part.state == "approval-responded" and approval.approved is None:
            raise wrong("must be true or false", *path, "approval", "approved")
        if part.state == "approval-responded" and id not in known:
            raise wrong("is not of a call that the server has made", *path, "approval")
        if part.state == "approval-responded" and id in pending:
            if pending[id].name in client_tools:
                raise wrong("is of a tool that runs in the browser, which sends its result", *path, "approval")
            approvals[id] = approval.approved or approval.reason or False
        elif part.is_answered and id in pending:
            if pending[id].name not in client_tools:
                raise wrong("is of a tool that does not run in the browser", *path, "output")
            results[id] = part.result
    return Incoming(thread, approvals, results)


def _went_on(
    thread: Thread,
    pending: Mapping[str, ToolCall],
    messages: list[tuple[int, _Message]],
    client_tools: Collection[str],
    question: str | None,
) -> Incoming:
    """Return the conversation with the messages after the last answer, which deny the calls that wait."""
    first = max((place + 1 for place, (_, entry) in enumerate(messages) if entry.role == "assistant"), default=0)
    new = [message for i, entry in messages[first:] for message in _user(i, entry)]
    results = {id: {"error": UNANSWERED} for id, call in pending.items() if call.name in client_tools}
    return replied(Incoming(thread, {id: UNANSWERED for id in pending if id not in results}, results), new, question)
