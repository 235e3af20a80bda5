"""Read AG-UI requests.

`rxllm.web._requests` describes what is accepted. A user's answer to a question becomes a user message or, if an inner
agent asked the question, the result of a tool call. The tools listed in `client_tools` become manual tools.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from rxllm import Message, Thread, Tool, ToolCall, user
from rxllm.values import Part, TextPart, ThinkingPart
from rxllm.web._ag_ui_encoder import Encoder
from rxllm.web._requests import (
    MAX_BYTES,
    UNANSWERED,
    Incoming,
    Load,
    Name,
    Stored,
    StoredConversation,
    check_id,
    convert_to,
    file_part,
    load_request,
    turn,
    wrong,
)


class _Function(msgspec.Struct):
    name: Name
    arguments: str


class _Call(msgspec.Struct):
    id: Name
    function: _Function

    @property
    def tool_call(self) -> ToolCall:
        text: Any = self.function.arguments  # JSON text, which ToolCall parses
        return ToolCall(self.id, self.function.name, text)


class _Source(msgspec.Struct, frozen=True, rename="camel"):
    type: Name = ""
    value: Name = ""
    mime_type: Name | None = None


class _Part(msgspec.Struct):
    type: Name
    text: str = ""
    source: _Source = _Source()


class _Message(msgspec.Struct, rename="camel"):
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: str | list[_Part] | dict[str, Any] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: Name = ""
    error: str | None = None
    encrypted_value: str | None = None
    subagent_run_id: Name | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content if isinstance(self.content, str) else ""


class _Verdict(msgspec.Struct, rename="camel"):
    approved: bool
    reason: str | None = None
    edited_args: dict[Name, Any] | None = None


class _Answer(msgspec.Struct, rename="camel"):
    interrupt_id: Name
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class _Tool(msgspec.Struct):
    name: Name
    description: str
    parameters: dict[str, Any] | None = None


class _Input(msgspec.Struct, rename="camel"):
    thread_id: Name
    run_id: Name
    messages: list[_Message]
    resume: list[_Answer] | None = None
    tools: list[_Tool] | None = None


class AGUIInput(Incoming, frozen=True):
    """A request from an AG-UI client. It also holds the client's `tools` and the options for `encoder`."""

    tools: tuple[Tool, ...] = ()
    thread_id: str = ""
    run_id: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    edits: bool = False

    def encoder(self) -> Encoder:
        """Return an encoder for the answer. Pass it to `streaming_response` as ``protocol=``."""
        ids = {"thread_id": self.thread_id, "run_id": self.run_id}
        return Encoder(**ids, messages=self.messages, edits=self.edits)


def from_ag_ui(
    body: bytes | str | Mapping[str, Any],
    stored: Stored | Load | None = None,
    *,
    client_tools: Collection[str] = (),
    edits: bool = False,
    max_bytes: int = MAX_BYTES,
) -> AGUIInput:
    """Read the thread, answers and tools from a ``RunAgentInput``.

    >>> import rxllm
    >>> hello = {"id": "m1", "role": "user", "content": "Hi"}
    >>> incoming = from_ag_ui({"threadId": "t", "runId": "r", "messages": [hello]})
    >>> rxllm.resume(rxllm.Fake("Hello"), incoming.thread, tools=incoming.tools).run().output_text
    'Hello'

    If you pass the server's copy of the conversation as `stored`, only new messages and answers are taken from the
    request. If `stored` is a function, it is called with the ``threadId``. Without `stored`, the conversation consists
    of the client's messages, and approvals are rejected. `client_tools` lists the names of the tools that run in the
    client. Any other tools in the request are ignored, and their results are rejected. With `edits`, users who approve
    a call may change its arguments. Raises the same errors as `from_ui`.
    """
    data = load_request(body, max_bytes)
    request = convert_to(data, _Input)
    if stored is not None:
        conversation = StoredConversation(stored, client_tools, request.thread_id, "threadId")
        incoming = _read_answers(conversation, request, edits)
    elif request.resume:
        raise wrong("contains answers, which need the stored conversation; pass it as stored=", "resume")
    else:
        incoming = Incoming(Thread(_history(request.messages)))
    tools = [
        Tool(tool.name, tool.description, tool.parameters or {"type": "object"}, manual=True)
        for tool in request.tools or ()
        if tool.name in client_tools
    ]
    arguments = (incoming.thread, incoming.approvals, incoming.results, incoming.id)
    return AGUIInput(*arguments, tuple(tools), request.thread_id, request.run_id, tuple(data["messages"]), edits)


def ag_ui_id(data: Any) -> str:
    """Return the conversation id from a parsed request."""
    return check_id(convert_to(data, _Input).thread_id, "threadId")


def _history(entries: list[_Message]) -> list[Message]:
    results = {entry.tool_call_id: entry for entry in entries if entry.role == "tool"}
    messages: list[Message] = []
    answer: list[_Message] = []  # a client may split one answer into several messages
    ids: set[str] = set()
    for i, entry in enumerate(entries):
        if entry.role in ("assistant", "reasoning"):
            for call in entry.tool_calls or ():
                if call.id in ids:
                    raise wrong("contains a tool call whose id is already in use", "messages", i)
                ids.add(call.id)
            if entry.subagent_run_id is None:  # inner agents have their own conversations
                answer.append(entry)
        elif entry.role in ("user", "tool"):
            messages += _assistant_messages(answer, results)
            answer.clear()
            messages += _user_messages(i, entry) if entry.role == "user" else ()
    return [*messages, *_assistant_messages(answer, results)]


def _assistant_messages(answer: list[_Message], results: Mapping[str, _Message]) -> list[Message]:
    parts: list[Part] = [
        ThinkingPart(entry.text, entry.encrypted_value) if entry.role == "reasoning" else TextPart(entry.text)
        for entry in answer
        if entry.text
    ]
    calls = [call.tool_call for entry in answer for call in entry.tool_calls or () if call.id in results]
    return turn(parts, [(call, results[call.id].text) for call in calls])


def _user_messages(i: int, entry: _Message) -> list[Message]:
    if not isinstance(entry.content, list):
        return [user(entry.text)]
    items = enumerate(entry.content)
    parts = tuple(part for j, item in items for part in _parts(item, "messages", i, "content", j))
    return [Message("user", parts)] if parts else []


def _parts(item: _Part, *path: str | int) -> list[Part]:
    if item.type == "text":
        return [TextPart(item.text)]
    value, mime_type = item.source.value, item.source.mime_type or f"{item.type}/*"
    path = (*path, "source", "value")
    if item.type not in ("image", "audio", "video", "document") or item.source.type == "file":
        return []  # a file id could refer to another user's file
    if item.source.type == "data":
        if item.source.mime_type is None:
            raise wrong("must have a mimeType", *path[:-1])
        return [file_part(f"data:{mime_type};base64,{value}", mime_type, *path)]
    if value.lower().startswith("data:"):
        raise wrong("must begin with http: or https:", *path)
    return [file_part(value, mime_type, *path)]


def _read_answers(conversation: StoredConversation, request: _Input, edits: bool) -> Incoming:
    for i, answer in enumerate(request.resume or ()):
        _take_answer(conversation, i, answer, edits)
    for i, entry in enumerate(request.messages):
        if entry.role == "tool":
            result = entry.text if entry.error is None else {"error": entry.error}
            conversation.answer(entry.tool_call_id, result, "messages", i)
    return conversation.incoming(_new_messages(request.messages))


def _take_answer(conversation: StoredConversation, i: int, answer: _Answer, edits: bool) -> None:
    id, path, is_resolved = answer.interrupt_id, ("resume", i, "payload"), answer.status == "resolved"
    if id == conversation.question:
        conversation.reply(id, convert_to(answer.payload, str, *path) if is_resolved else UNANSWERED)
    elif (id := conversation.call_of(answer.interrupt_id)) in conversation.pending:
        conversation.check_shown(id, answer.interrupt_id, None, "resume", i, "interruptId")
        verdict = convert_to(answer.payload, _Verdict, *path) if is_resolved else _Verdict(False)
        is_edit = verdict.edited_args not in (None, conversation.pending[id].arguments)
        if verdict.approved and is_edit and not edits:
            raise wrong("changes the call's arguments, which is only allowed with edits=True", *path, "editedArgs")
        edited = verdict.edited_args if is_edit else True
        conversation.approve(id, edited if verdict.approved else verdict.reason or False, "resume", i)
    elif id not in conversation.known:
        raise wrong("must answer a tool call in the stored conversation", "resume", i)


def _new_messages(entries: list[_Message]) -> list[Message]:
    """Return the user messages that follow the model's last answer."""
    first = max(
        (i + 1 for i, entry in enumerate(entries) if entry.role in ("assistant", "tool", "reasoning")), default=0
    )
    new = range(first, len(entries))
    return [message for i in new if entries[i].role == "user" for message in _user_messages(i, entries[i])]
