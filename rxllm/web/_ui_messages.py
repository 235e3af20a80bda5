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
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

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

_DONE = ("output-available", "output-error", "output-denied")


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
    request = _loaded(body, max_bytes)
    entries = [_at(("messages", i), _entry, item) for i, item in enumerate(_list(request, "messages"))]
    entries = [entry for entry in entries if entry["role"] != "system"]
    if not entries:
        raise _wrong("must hold a message", "messages")
    if stored is None:
        return Incoming(Thread(_history(entries)))
    thread, pending = _state(stored)
    if request.get("trigger") == "regenerate-message":
        return Incoming(_up_to_user(thread))
    if entries[-1]["role"] == "assistant":
        return _answers(thread, pending, entries[-1], client_tools)
    if request.get("messageId") is not None:
        raise _wrong("is an edit of an earlier message, which the stored conversation does not allow", "messageId")
    return _went_on(thread, pending, entries, client_tools)


def _loaded(body: bytes | str | Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    request: Any = body
    if isinstance(body, bytes | str):
        if len(body) > max_bytes:
            raise _wrong(f"is longer than {max_bytes} bytes", "body")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise _wrong("is not JSON", "body") from None
    if not isinstance(request, dict):
        raise _wrong("is not an object", "body")
    level: list[Any] = [request]
    for _ in range(MAX_DEPTH):
        level = [item for entry in level for item in _inside(entry)]
    if level:
        raise _wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")
    return cast(dict[str, Any], request)


def _inside(entry: Any) -> Iterable[Any]:
    match entry:
        case dict():
            return cast(dict[str, Any], entry).values()
        case list():
            return cast(list[Any], entry)
        case _:
            return ()


def _entry(item: Any) -> dict[str, Any]:
    """Return a message whose parts have the fields that are read here."""
    if _field(item, "role", str) not in ("system", "user", "assistant"):
        raise _wrong("must be system, user or assistant", "role")
    for i, part in enumerate(_list(item, "parts")):
        _at(("parts", i), _check_part, part)
    return item


def _check_part(part: Any) -> None:
    kind: str = _field(part, "type", str)
    if kind in ("text", "reasoning"):
        _field(part, "text", str)
    elif kind == "file":
        _field(part, "url", str)
        _field(part, "mediaType", str)
    elif _is_tool(part):
        _field(part, "toolCallId", str)
        _field(part, "state", str)
        if kind == "dynamic-tool":
            _field(part, "toolName", str)
        if part["state"] == "approval-responded":
            _field(_field(part, "approval", dict), "approved", bool)
        if part["state"] == "output-error":
            _field(part, "errorText", str)


# The conversation


def _history(entries: list[dict[str, Any]]) -> list[Message]:
    messages: list[Message] = []
    ids: set[str] = set()
    for i, entry in enumerate(entries):
        if entry["role"] == "user":
            messages += _at(("messages", i), _user, entry)
            continue
        for part in entry["parts"]:
            if _is_tool(part) and part["state"] == "approval-responded":
                raise _wrong("is an approval, which needs the stored conversation", "messages", i)
            if _is_tool(part) and part["toolCallId"] in ids:
                raise _wrong("has a tool call whose id is not unique", "messages", i)
            ids |= {part["toolCallId"]} if _is_tool(part) else set()
        for step in _steps(entry["parts"]):
            messages += _assistant(step)
    return messages


def _user(entry: dict[str, Any]) -> list[Message]:
    parts = [
        _at(("parts", i), _user_part, part) for i, part in enumerate(entry["parts"]) if part["type"] in ("text", "file")
    ]
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return [user(parts[0].text)]
    return [Message("user", tuple(parts))] if parts else []


def _user_part(part: dict[str, Any]) -> Part:
    if part["type"] == "text":
        return TextPart(part["text"])
    url, mime_type = part["url"], part["mediaType"]
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        try:
            (read,) = user([TextPart(""), url]).parts[1:]
        except ValidationError:
            raise _wrong("is not a data: URL in base64", "url") from None
        return read
    if scheme not in ("http", "https"):
        raise _wrong("must begin with http:, https: or data:", "url")
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    name = {"name": part["filename"]} if isinstance(part.get("filename"), str) else {}
    return FilePart({"mime_type": mime_type, "url": url, **name})


def _steps(parts: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        if part["type"] == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    return steps


def _assistant(step: list[dict[str, Any]]) -> list[Message]:
    content: list[Part] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for part in step:
        if part["type"] == "text" and part["text"]:
            content.append(TextPart(part["text"]))
        elif part["type"] == "reasoning":
            content.append(ThinkingPart(part["text"], _signature(part)))
        elif (
            _is_tool(part)
            and part["state"] in _DONE
            and not part.get("preliminary")
            and not part.get("providerExecuted")
        ):
            arguments = part.get("input")
            calls.append(
                ToolCall(part["toolCallId"], _tool_name(part), arguments if isinstance(arguments, dict) else {})
            )
            results.append(tool_result(part["toolCallId"], cast(Any, _output(part))))
    if not content and not calls:
        return []
    only_text = len(content) == 1 and isinstance(content[0], TextPart)
    message = content[0].text if only_text else tuple(content)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    return [Message("assistant", cast(Any, message), tool_calls=tuple(calls)), *results]


def _signature(part: dict[str, Any]) -> str | None:
    match part.get("providerMetadata"):
        case {"rxllm": {"signature": str(signature)}}:
            return signature
        case _:
            return None


# The stored conversation


def _state(stored: Thread | ChatResult | Session) -> tuple[Thread, dict[str, ToolCall]]:
    """Return the thread and its calls that wait, by id."""
    if not isinstance(stored, Thread):
        return stored.thread, {call.id: call for call in stored.pending_tool_calls}
    answered = {message.tool_call_id for message in stored}
    calls = (call for message in stored for call in message.tool_calls)
    return stored, {call.id: call for call in calls if call.id not in answered and not call.metadata.get("server")}


def _up_to_user(thread: Thread) -> Thread:
    places = [i for i, message in enumerate(thread) if message.role == "user"]
    return thread[: places[-1] + 1] if places else thread


def _answers(
    thread: Thread, pending: Mapping[str, ToolCall], entry: dict[str, Any], client_tools: Collection[str]
) -> Incoming:
    approvals: dict[str, bool | str] = {}
    results: dict[str, Any] = {}
    known = {call.id for message in thread for call in message.tool_calls} | set(pending)
    for i, part in enumerate(entry["parts"]):
        if not _is_tool(part) or part["state"] not in (*_DONE, "approval-responded"):
            continue
        id, approval = part["toolCallId"], part.get("approval", {})
        if part["state"] == "approval-responded" and id not in known:
            raise _wrong("approves a call that the server has not made", "messages", "parts", i)
        if id not in pending:
            continue  # answered already
        if part["state"] == "approval-responded":
            approvals[id] = approval["approved"] or _reason(approval)
        elif pending[id].name in client_tools:
            results[id] = _output(part)
        else:
            raise _wrong("answers a call of a tool that does not run in the browser", "messages", "parts", i)
    return Incoming(thread, approvals, results)


def _reason(approval: dict[str, Any]) -> bool | str:
    reason = approval.get("reason")
    return reason if isinstance(reason, str) and reason else False


def _went_on(
    thread: Thread, pending: Mapping[str, ToolCall], entries: list[dict[str, Any]], client_tools: Collection[str]
) -> Incoming:
    first = max((i + 1 for i, entry in enumerate(entries) if entry["role"] == "assistant"), default=0)
    new = [message for i in range(first, len(entries)) for message in _at(("messages", i), _user, entries[i])]
    ours = {id: {"error": UNANSWERED} for id, call in pending.items() if call.name in client_tools}
    return Incoming(thread + new, {id: UNANSWERED for id in pending if id not in ours}, ours)


# The parts


def _is_tool(part: dict[str, Any]) -> bool:
    return part["type"].startswith("tool-") or part["type"] == "dynamic-tool"


def _tool_name(part: dict[str, Any]) -> str:
    return part["toolName"] if part["type"] == "dynamic-tool" else part["type"].removeprefix("tool-")


def _output(part: dict[str, Any]) -> str | dict[str, Any]:
    """Return a result as `rxllm.resume` takes it."""
    if part["state"] == "output-denied":
        return {"error": "denied"}
    if part["state"] == "output-error":
        return {"error": part["errorText"]}
    output = part.get("output")
    return cast(Any, output) if isinstance(output, str | dict) else json.dumps(output)


def _list(entry: Any, name: str) -> list[Any]:
    return _field(entry, name, list)


def _field(entry: Any, name: str, cls: type[Any]) -> Any:
    value: Any = cast(dict[str, Any], entry).get(name) if isinstance(entry, dict) else None
    if not isinstance(value, cls):
        raise _wrong(f"must be a JSON {_JSON[cls]}", name)
    return value


_JSON: dict[type[Any], str] = {str: "string", list: "array", dict: "object", bool: "boolean"}


def _at(path: tuple[str | int, ...], read: Callable[[Any], Any], item: Any) -> Any:
    try:
        return read(item)
    except ValidationError as error:
        raise _wrong(*((fault, *path, *inner) for inner, fault in error.errors[:1]).__next__()) from None


def _wrong(fault: str, *path: str | int) -> ValidationError:
    return ValidationError("invalid_request", errors=[(path, fault)])
