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
the result of a client's tool          a result, if the call waits in the server's thread and is one of `client_tools`
a new message instead of an answer     a denial of the calls that wait, and the message
=====================================  ================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

from rxllm import (
    ChatResult,
    FilePart,
    Image,
    ImagePart,
    Message,
    Part,
    Session,
    TextPart,
    ThinkingPart,
    Thread,
    ToolCall,
    ValidationError,
    tool_result,
    user,
)

MAX_BYTES = 8_000_000
"""How long a request may be."""

MAX_DEPTH = 64
"""How deeply a request may be nested."""

UNANSWERED = "The user has gone on without an answer."
"""What the model is told of calls that wait when the user writes something else."""


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
            return self.output if _is_object(self.output) or isinstance(self.output, str) else json.dumps(self.output)
        return {"error": self.error_text or "denied"}


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    parts: list[_Part]


class _Request(msgspec.Struct, rename="camel"):
    messages: list[_Message]
    trigger: str = "submit-message"
    message_id: str | None = None


class Incoming(msgspec.Struct, frozen=True):
    """The arguments of ``rxllm.resume`` and ``rxllm.stream_resume``, for a request with or without answers."""

    thread: Thread
    approvals: Mapping[str, bool | str] = {}
    results: Mapping[str, str | Mapping[str, Any]] = {}


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
    deep, and for an answer to a call that the server has not made.
    """
    request = _request(body, max_bytes)
    messages = [(i, message) for i, message in enumerate(request.messages) if message.role != "system"]
    if not messages:
        raise _wrong("must hold a message of the user", "messages")
    if stored is None:
        return Incoming(Thread(_history(messages)))
    thread, pending = _state(stored)
    if request.trigger == "regenerate-message":
        places = [i for i, message in enumerate(thread) if message.role == "user"]
        return Incoming(thread[: places[-1] + 1] if places else thread)
    if messages[-1][1].role == "assistant":
        return _answers(thread, pending, *messages[-1], client_tools)
    if request.message_id is not None:
        raise _wrong("is an edit of an earlier message, which the stored conversation does not allow", "messageId")
    return _went_on(thread, pending, messages, client_tools)


def _request(body: bytes | str | Mapping[str, Any], max_bytes: int) -> _Request:
    if isinstance(body, bytes | str) and len(body) > max_bytes:
        raise _wrong(f"is longer than {max_bytes} bytes", "body")
    try:
        data: Any = msgspec.json.decode(body) if isinstance(body, bytes | str) else body
        level = [data]
        for _ in range(MAX_DEPTH):
            level = [item for entry in level for item in _inside(entry)]
        if level:
            raise _wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")
        return msgspec.convert(data, _Request)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        path = [int(index) if index else name for name, index in re.findall(r"(\w+)|\[(\d+)]", place)]
        raise _wrong(fault, *path) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _wrong("is not JSON", "body") from None


def _inside(entry: Any) -> Iterable[Any]:
    return entry.values() if _is_object(entry) else cast(list[Any], entry) if isinstance(entry, list) else ()


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


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
        raise _wrong("needs the stored conversation", "messages", i, "parts", j, "approval")
    if not part.tool_call_id or part.tool_call_id in ids:
        raise _wrong("must be an id of its own", "messages", i, "parts", j, "toolCallId")
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
            calls.append(ToolCall(part.tool_call_id, name, part.input if _is_object(part.input) else {}))
            results.append(tool_result(part.tool_call_id, part.result))
    if not content and not calls:
        return []
    return [Message("assistant", _plain(content), tool_calls=tuple(calls)), *results]


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
            parts.append(_file(part, ("messages", i, "parts", j, "url")))
    return [Message("user", _plain(parts))] if parts else []


def _plain(parts: list[Part]) -> str | tuple[Part, ...]:
    match parts:
        case []:
            return ""
        case [TextPart(text=text)]:
            return text
        case _:
            return tuple(parts)


def _file(part: _Part, path: tuple[str | int, ...]) -> Part:
    scheme = part.url.partition(":")[0].lower()
    if scheme == "data":
        try:
            return user("", part.url).parts[-1]
        except ValidationError:
            raise _wrong("is not a data: URL in base64", *path) from None
    if scheme not in ("http", "https"):
        raise _wrong("must begin with http:, https: or data:", *path)
    if part.media_type.startswith("image/"):
        return ImagePart(Image.from_url(part.url))
    name = {} if part.filename is None else {"name": part.filename}
    return FilePart({"mime_type": part.media_type, "url": part.url, **name})


# With a stored conversation


def _state(stored: Thread | ChatResult | Session) -> tuple[Thread, dict[str, ToolCall]]:
    """Return the thread and its calls that wait, by id."""
    if not isinstance(stored, Thread):
        return stored.thread, {call.id: call for call in stored.pending_tool_calls}
    answered = {message.tool_call_id for message in stored}
    calls = (call for message in stored for call in message.tool_calls)
    return stored, {call.id: call for call in calls if call.id not in answered and not call.metadata.get("server")}


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
            raise _wrong("must be true or false", *path, "approval", "approved")
        if part.state == "approval-responded" and id not in known:
            raise _wrong("is not of a call that the server has made", *path, "approval")
        if part.state == "approval-responded" and id in pending:
            approvals[id] = approval.approved or approval.reason or False
        elif part.is_answered and id in pending:
            if pending[id].name not in client_tools:
                raise _wrong("is of a tool that does not run in the browser", *path, "output")
            results[id] = part.result
    return Incoming(thread, approvals, results)


def _went_on(
    thread: Thread,
    pending: Mapping[str, ToolCall],
    messages: list[tuple[int, _Message]],
    client_tools: Collection[str],
) -> Incoming:
    """Return the conversation with the messages after the last answer, which deny the calls that wait."""
    first = max((place + 1 for place, (_, entry) in enumerate(messages) if entry.role == "assistant"), default=0)
    new = [message for i, entry in messages[first:] for message in _user(i, entry)]
    results = {id: {"error": UNANSWERED} for id, call in pending.items() if call.name in client_tools}
    return Incoming(thread + new, {id: UNANSWERED for id in pending if id not in results}, results)


def _wrong(fault: str, *path: str | int) -> ValidationError:
    return ValidationError("invalid_request", errors=[(path, fault)])
