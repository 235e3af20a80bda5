"""The way in from AG-UI: a ``RunAgentInput`` as a thread, and its answers to interrupts and tool calls.

What a client sends is written by its user. Hence:

=====================================  ================================================================================
of an input                            becomes
=====================================  ================================================================================
a system or developer message          nothing
text, files of the user                a user's message; a file's URL is ``http:``, ``https:``, or ``data:`` of a size
the messages before it                 with the server's thread nothing, since that has them; otherwise messages
a tool call without a result           nothing
an answer to the approval of a call    an approval, if the call waits in the server's thread; without one, an error
an answer to a question                a user's message; the result of the call, if an agent inside has asked
the result of a client's tool          a result, if the call waits in the server's thread and is one of `client_tools`
a new message instead of an answer     a denial of the calls that wait, and the message, which answers the question of
                                       an agent inside, if that has asked
a tool                                 a tool whose calls are left to the client, if it is one of `client_tools`
=====================================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from rxllm import ChatResult, Message, Part, Session, TextPart, ThinkingPart, Thread, Tool, ToolCall, user
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


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function

    @property
    def tool_call(self) -> ToolCall:
        text: Any = self.function.arguments  # which is parsed
        return ToolCall(self.id, self.function.name, text)


class _Source(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    value: str = ""
    mime_type: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    source: _Source = _Source()


class _Message(msgspec.Struct, rename="camel"):
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: str | list[_Part] | dict[str, Any] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""
    error: str | None = None
    encrypted_value: str | None = None
    subagent_run_id: str | None = None

    @property
    def calls(self) -> list[ToolCall]:
        return [call.tool_call for call in self.tool_calls or ()]

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content if isinstance(self.content, str) else ""


class _Verdict(msgspec.Struct, rename="camel"):
    approved: bool
    reason: str | None = None
    edited_args: dict[str, Any] | None = None


class _Answer(msgspec.Struct, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class _Tool(msgspec.Struct):
    name: str
    description: str
    parameters: dict[str, Any] | None = None


class _Input(msgspec.Struct, rename="camel"):
    thread_id: str
    run_id: str
    messages: list[_Message]
    resume: list[_Answer] | None = None
    tools: list[_Tool] | None = None


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
    deep, and for an answer to a call that the server has not made; ``"invalid_option"`` for another class of `stored`.
    """
    data = loaded(body, max_bytes)
    request = converted(data, _Input)
    if stored is not None:
        incoming = _Stored(stored, client_tools).incoming(request)
    elif request.resume:
        raise wrong("holds answers, which need the stored conversation", "resume")
    else:
        incoming = Incoming(Thread(_history(request.messages)))
    tools = [
        Tool(tool.name, tool.description, tool.parameters or {"type": "object"}, manual=True)
        for tool in request.tools or ()
        if tool.name in client_tools
    ]
    arguments = (incoming.thread, incoming.approvals, incoming.results)
    return AGUIInput(*arguments, tuple(tools), request.thread_id, request.run_id, tuple(data["messages"]))


# The conversation


def _history(entries: list[_Message]) -> list[Message]:
    results = {entry.tool_call_id: entry for entry in entries if entry.role == "tool"}
    messages: list[Message] = []
    answer: list[_Message] = []  # its messages, of which a client may have several
    ids: set[str] = set()
    for i, entry in enumerate(entries):
        if entry.role in ("assistant", "reasoning"):
            new = [call.id for call in entry.tool_calls or ()]
            if len(ids) + len(new) > len(ids := ids | set(new)):
                raise wrong("has a tool call whose id is not unique", "messages", i)
            if entry.subagent_run_id is None:  # what agents inside have said belongs to their own conversations
                answer.append(entry)
        elif entry.role in ("user", "tool"):
            messages += _assistant(answer, results)
            answer.clear()
            messages += _user(i, entry) if entry.role == "user" else ()
    return [*messages, *_assistant(answer, results)]


def _assistant(answer: list[_Message], results: Mapping[str, _Message]) -> list[Message]:
    parts: list[Part] = [
        ThinkingPart(entry.text, entry.encrypted_value) if entry.role == "reasoning" else TextPart(entry.text)
        for entry in answer
        if entry.text
    ]
    calls = tuple(call for entry in answer for call in entry.calls if call.id in results)
    if not parts and not calls:
        return []
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    content: Any = "".join(texts) if len(texts) == len(parts) else tuple(parts)
    answers = [Message("tool", results[call.id].text, tool_call_id=call.id) for call in calls]
    return [Message("assistant", content, tool_calls=calls), *answers]


def _user(i: int, entry: _Message) -> list[Message]:
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
        return []  # a handle of a provider's may be that of somebody else's file
    if item.source.type == "data":
        if item.source.mime_type is None:
            raise wrong("has no mimeType", *path[:-1])
        return [file_part(f"data:{mime_type};base64,{value}", mime_type, *path)]
    if value.lower().startswith("data:"):
        raise wrong("must begin with http: or https:", *path)
    return [file_part(value, mime_type, *path)]


# The stored conversation


class _Stored:
    """The conversation as the server knows it."""

    def __init__(self, stored: Thread | ChatResult | Session, client_tools: Collection[str]) -> None:
        self._thread, self._pending = waiting(stored)
        self._known = {call.id for message in self._thread for call in message.tool_calls} | set(self._pending)
        self._client_tools = client_tools
        self._question = question(stored)
        self._approvals: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def incoming(self, request: _Input) -> Incoming:
        for i, answer in enumerate(request.resume or ()):
            self._take_answer(i, answer)
        for i, entry in enumerate(request.messages):
            if entry.role == "tool":
                self._take_result(i, entry)
        new = _new(request.messages)
        if new:
            self._go_on_without()
        id = None if self._question in self._results else self._question
        return asking(replied(Incoming(self._thread, self._approvals, self._results), new, id), self._pending)

    def _take_answer(self, i: int, answer: _Answer) -> None:
        id, path = answer.interrupt_id, ("resume", i, "payload")
        is_resolved = answer.status == "resolved"
        if id == self._question:
            self._reply(id, converted(answer.payload, str, *path) if is_resolved else UNANSWERED)
        elif id in self._pending and self._pending[id].name in self._client_tools:
            raise wrong("is a call of a tool that runs in the client, which sends its result", "resume", i)
        elif id in self._pending:
            verdict = converted(answer.payload, _Verdict, *path) if is_resolved else _Verdict(False)
            edited = True if verdict.edited_args is None else verdict.edited_args
            self._approvals[id] = edited if verdict.approved else verdict.reason or False
        elif id not in self._known:
            raise wrong("is not a call that the server has made", "resume", i)

    def _reply(self, id: str, text: str) -> None:
        if "/" in id:  # of an agent inside, whose chat goes on with it
            self._results[id] = text
        else:
            self._thread += user(text)

    def _take_result(self, i: int, entry: _Message) -> None:
        id = entry.tool_call_id
        if id not in self._pending or id in self._approvals:
            return  # the server has its result
        if self._pending[id].name not in self._client_tools:
            raise wrong("answers a call of a tool that does not run in the client", "messages", i)
        self._results[id] = entry.text if entry.error is None else {"error": entry.error}

    def _go_on_without(self) -> None:
        for id, call in self._pending.items():
            if id not in self._approvals and id not in self._results:
                if call.name in self._client_tools:
                    self._results[id] = {"error": UNANSWERED}
                else:
                    self._approvals[id] = UNANSWERED


def _new(entries: list[_Message]) -> list[Message]:
    """Return the messages of the user that follow the last answer."""
    first = max(
        (i + 1 for i, entry in enumerate(entries) if entry.role in ("assistant", "tool", "reasoning")), default=0
    )
    new = range(first, len(entries))
    return [message for i in new if entries[i].role == "user" for message in _user(i, entries[i])]
