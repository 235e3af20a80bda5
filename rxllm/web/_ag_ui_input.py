"""The way in from AG-UI: a ``RunAgentInput`` as a thread, and its answers to interrupts and tool calls.

What a client sends is written by its user. Hence:

=====================================  ================================================================================
of an input                            becomes
=====================================  ================================================================================
a system or developer message          nothing
text, files of the user                a user's message; a file's URL is ``http:`` or ``https:``
the messages before it                 with the server's thread nothing, since that has them; otherwise messages
a tool call without a result           nothing
an answer to the approval of a call    an approval, if the call waits in the server's thread; without one, an error
an answer to a question                a user's message; the result of the call, if an agent inside has asked
the result of a client's tool          a result, if the call waits in the server's thread and is one of `client_tools`
a new message instead of an answer     a denial of the calls that wait, and the message
a tool                                 a tool whose calls are left to the client, if it is one of `client_tools`
=====================================  ================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from rxllm import (
    ChatResult,
    Message,
    Part,
    Session,
    TextPart,
    ThinkingPart,
    Thread,
    Tool,
    ToolCall,
    user,
)
from rxllm.web._messages import MAX_BYTES, UNANSWERED, Incoming, at, field_of, file_part, loaded, waiting, wrong

_ROLES = ("developer", "system", "assistant", "user", "tool", "activity", "reasoning")

Entry = dict[str, Any]


class AGUIInput(Incoming, frozen=True):
    """The arguments of ``rxllm.stream_resume``, the client's `tools`, and the options of the encoder."""

    tools: tuple[Tool, ...] = ()
    thread_id: str = ""
    run_id: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


def from_ag_ui(
    body: bytes | str | Mapping[str, Any],
    stored: Thread | ChatResult | Session | None = None,
    *,
    client_tools: Collection[str] = (),
    max_bytes: int = MAX_BYTES,
) -> AGUIInput:
    """Return what a ``RunAgentInput`` asks for.

    >>> import rxllm
    >>> hello = {"id": "m1", "role": "user", "content": "Hi"}
    >>> incoming = from_ag_ui({"threadId": "t", "runId": "r", "messages": [hello]})
    >>> rxllm.resume(rxllm.Fake("Hello"), incoming.thread, tools=incoming.tools).run().output_text
    'Hello'

    `stored` is the conversation as the server knows it: then only new messages and answers are read. Without it the
    messages of the client are the conversation, and no approval is taken. `client_tools` are the names of the tools
    that run in the client: no other tools and results are taken.

    Raises ``ValidationError("invalid_request")``, with the path, for anything malformed, longer than `max_bytes`, too
    deep, and for an answer to a call that the server has not made.
    """
    data = loaded(body, max_bytes)
    entries = [at(("messages", i), _entry, item) for i, item in enumerate(field_of(data, "messages", list))]
    answers = [at(("resume", i), _answer, item) for i, item in enumerate(_optional(data, "resume"))]
    tools = [at(("tools", i), _tool, item) for i, item in enumerate(_optional(data, "tools"))]
    if stored is None:
        if answers:
            raise wrong("holds answers, which need the stored conversation", "resume")
        incoming = Incoming(Thread(_history(entries)))
    else:
        incoming = _Stored(stored, client_tools).incoming(entries, answers)
    return AGUIInput(
        incoming.thread,
        incoming.approvals,
        incoming.results,
        tuple(tool for tool in tools if tool.name in client_tools),
        field_of(data, "threadId", str),
        field_of(data, "runId", str),
        tuple(entries),
    )


def _optional(data: Entry, name: str) -> list[Any]:
    return [] if data.get(name) is None else field_of(data, name, list)


def _entry(item: Any) -> Entry:
    """Return a message that has the fields which are read here."""
    role: str = field_of(item, "role", str)
    if role not in _ROLES:
        raise wrong(f"must be one of {', '.join(_ROLES)}", "role")
    if role == "tool":
        field_of(item, "toolCallId", str)
    if role == "reasoning" or (role == "tool" and not isinstance(item.get("content"), list)):
        field_of(item, "content", str)
    for i, call in enumerate(_optional(item, "toolCalls")):
        at(("toolCalls", i), _call, call)
    return item


def _answer(item: Any) -> Entry:
    field_of(item, "interruptId", str)
    if field_of(item, "status", str) not in ("resolved", "cancelled"):
        raise wrong("must be resolved or cancelled", "status")
    return item


def _tool(item: Any) -> Tool:
    name, description = field_of(item, "name", str), field_of(item, "description", str)
    schema = item.get("parameters")
    return Tool(name, description, cast(Any, schema) if isinstance(schema, dict) else {"type": "object"}, manual=True)


def _call(item: Any) -> ToolCall:
    function = field_of(item, "function", dict)
    text: str = field_of(function, "arguments", str)
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    is_object = isinstance(arguments, dict)
    return ToolCall(
        field_of(item, "id", str),
        field_of(function, "name", str),
        cast(Any, arguments) if is_object else {},
        text,
        {} if is_object else {"error": "invalid_json"},
    )


# The conversation


def _history(entries: list[Entry]) -> list[Message]:
    results = {entry["toolCallId"]: entry for entry in entries if entry["role"] == "tool"}
    messages: list[Message] = []
    answer: list[tuple[list[Part], list[ToolCall]]] = []  # its messages, of which a client may have several
    ids: set[str] = set()
    for i, entry in enumerate(entries):
        if entry["role"] in ("assistant", "reasoning"):
            calls = [_call(call) for call in _optional(entry, "toolCalls")]
            if len(ids) + len(calls) > len(ids := ids | {call.id for call in calls}):
                raise wrong("has a tool call whose id is not unique", "messages", i)
            if "subagentRunId" not in entry:  # what agents inside have said belongs to their own conversations
                answer.append((_parts(entry), [call for call in calls if call.id in results]))
        elif entry["role"] in ("user", "tool"):
            messages += _assistant(answer, results)
            answer.clear()
            messages += at(("messages", i), _user, entry) if entry["role"] == "user" else ()
    return [*messages, *_assistant(answer, results)]


def _assistant(answer: list[tuple[list[Part], list[ToolCall]]], results: Mapping[str, Entry]) -> list[Message]:
    parts = [part for entry_parts, _ in answer for part in entry_parts]
    calls = tuple(call for _, entry_calls in answer for call in entry_calls)
    if not parts and not calls:
        return []
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    content: Any = "".join(texts) if len(texts) == len(parts) else tuple(parts)
    answers = [Message("tool", _result_text(results[call.id]), tool_call_id=call.id) for call in calls]
    return [Message("assistant", content, tool_calls=calls), *answers]


def _parts(entry: Entry) -> list[Part]:
    text, signature = entry.get("content"), entry.get("encryptedValue")
    if entry["role"] == "reasoning":
        return [ThinkingPart(entry["content"], signature if isinstance(signature, str) else None)] if text else []
    return [TextPart(text)] if isinstance(text, str) and text else []


def _user(entry: Entry) -> list[Message]:
    content = entry.get("content")
    if isinstance(content, str):
        return [user(content)]
    read = [
        part for i, item in enumerate(field_of(entry, "content", list)) for part in at(("content", i), _user_part, item)
    ]
    return [Message("user", tuple(read))] if read else []


def _user_part(item: Any) -> list[Part]:
    kind: str = field_of(item, "type", str)
    if kind == "text":
        return [TextPart(field_of(item, "text", str))]
    if kind not in ("image", "audio", "video", "document"):
        return []
    source = field_of(item, "source", dict)
    value: str = field_of(source, "value", str)
    mime_type = source.get("mimeType") or f"{kind}/*"
    match source.get("type"):
        case "data":
            return [file_part(f"data:{field_of(source, 'mimeType', str)};base64,{value}", "")]
        case "url" if not value.lower().startswith("data:"):
            return [file_part(value, str(mime_type))]
        case "url":
            raise wrong("must begin with http: or https:", "source", "value")
        case _:  # a handle of a provider's, which may be somebody else's file
            return []


def _result_text(entry: Entry) -> str:
    content = entry["content"]
    return content if isinstance(content, str) else json.dumps(content)


# The stored conversation


class _Stored:
    """The conversation as the server knows it."""

    def __init__(self, stored: Thread | ChatResult | Session, client_tools: Collection[str]) -> None:
        self._thread, self._pending = waiting(stored)
        self._known = {call.id for message in self._thread for call in message.tool_calls} | set(self._pending)
        self._client_tools = client_tools
        self._question = _question(stored)
        self._approvals: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def incoming(self, entries: list[Entry], answers: list[Entry]) -> Incoming:
        for i, answer in enumerate(answers):
            at(("resume", i), self._take_answer, answer)
        for i, entry in enumerate(entries):
            if entry["role"] == "tool":
                at(("messages", i), self._take_result, entry)
        new = _new(entries)
        if new:
            self._go_on_without()
        elif not answers and not self._results and self._pending:
            raise wrong("answers none of the calls that wait", "messages")
        return Incoming(self._thread + new, self._approvals, self._results)

    def _take_answer(self, answer: Entry) -> None:
        id: str = answer["interruptId"]
        if id == self._question:
            self._reply(id, field_of(answer, "payload", str) if answer["status"] == "resolved" else UNANSWERED)
        elif id in self._pending and self._pending[id].name in self._client_tools:
            raise wrong("is a call of a tool that runs in the client, which sends its result", "interruptId")
        elif id in self._pending:
            self._approvals[id] = _verdict(answer)
        elif id not in self._known:
            raise wrong("is not a call that the server has made", "interruptId")

    def _reply(self, id: str, text: str) -> None:
        if "/" in id:  # of an agent inside, whose chat goes on with it
            self._results[id] = text
        else:
            self._thread += user(text)

    def _take_result(self, entry: Entry) -> None:
        id: str = entry["toolCallId"]
        call = self._pending.get(id)
        if call is None or id in self._approvals:
            return  # the server has its result
        if call.name not in self._client_tools:
            raise wrong("answers a call of a tool that does not run in the client", "toolCallId")
        error = entry.get("error")
        self._results[id] = {"error": error} if isinstance(error, str) else _result_text(entry)

    def _go_on_without(self) -> None:
        for id, call in self._pending.items():
            if id not in self._approvals and id not in self._results:
                if call.name in self._client_tools:
                    self._results[id] = {"error": UNANSWERED}
                else:
                    self._approvals[id] = UNANSWERED


def _question(stored: Thread | ChatResult | Session) -> str | None:
    """Return the id of the call whose tool has asked the user."""
    if isinstance(stored, ChatResult):
        return stored.pending_tool_call_id
    thread = stored if isinstance(stored, Thread) else stored.thread
    last = thread.last
    return last.metadata.get("tool_call_id") if last is not None and last.metadata.get("ask_user") else None


def _verdict(answer: Entry) -> Any:
    """Return an approval: True, other arguments, False, or the reason for a denial."""
    if answer["status"] == "cancelled":
        return False
    payload = field_of(answer, "payload", dict)
    if field_of(payload, "approved", bool):
        edited = payload.get("editedArgs")
        return True if edited is None else field_of(payload, "editedArgs", dict)
    reason = payload.get("reason")
    return reason if isinstance(reason, str) and reason else False


def _new(entries: Iterable[Entry]) -> list[Message]:
    """Return the messages of the user that follow the last answer."""
    numbered = list(enumerate(entries))
    first = max((i + 1 for i, entry in numbered if entry["role"] in ("assistant", "tool", "reasoning")), default=0)
    return [message for i, entry in numbered[first:] if entry["role"] == "user" for message in _user_at(i, entry)]


def _user_at(i: int, entry: Entry) -> list[Message]:
    return at(("messages", i), _user, entry)
