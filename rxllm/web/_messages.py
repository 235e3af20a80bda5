"""What the ways in share: the limits and the form of a request, and what is taken of it.

What a client sends is written by its user. Hence:

=====================================  ================================================================================
of a request                           becomes
=====================================  ================================================================================
a system or developer message          nothing
text, files of the user                a user's message; a file's URL is ``http:``, ``https:``, or ``data:`` of a size
the messages before it                 with the server's thread nothing, since that has them; otherwise messages
a message at the end of the thread     nothing: a client repeats those that have no answer, as after a failure
a tool call without a result           nothing
an answer to the approval of a call    an approval, if the call waits in the server's thread; without one, an error
what has been answered already         nothing; if there is nothing else, an error
the result of a client's tool          a result, if the call waits in the server's thread and is one of `client_tools`
a new message instead of an answer     a denial of the calls that wait, and the message, which answers the question of
                                       an agent inside, if that has asked
=====================================  ================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

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
    Thread,
    ToolCall,
    ValidationError,
    tool_result,
    user,
)
from rxllm.values import open_calls, open_questions
from rxllm.values.argument_checks import invalid_option, must_be

MAX_BYTES = 8_000_000
"""How long a request may be."""

MAX_DEPTH = 64
"""How deeply a request may be nested."""

UNANSWERED = "The user has gone on without an answer."
"""What the model is told of calls that wait when the user writes something else."""

T = TypeVar("T")


class Incoming(msgspec.Struct, frozen=True):
    """The arguments of ``rxllm.resume`` and ``rxllm.stream_resume``, for a request with or without answers."""

    thread: Thread
    approvals: Mapping[str, Any] = {}
    results: Mapping[str, str | Mapping[str, Any]] = {}


def loaded(body: bytes | str | Mapping[str, Any], max_bytes: int) -> Any:
    """Return a request as data. Raises ``ValidationError`` if it is too long, too deep, or not JSON."""
    data: Any = body
    if isinstance(body, bytes | str):
        if len(body) > max_bytes:
            raise wrong(f"is longer than {max_bytes} bytes", "body")
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise wrong("is not JSON", "body") from None
    if is_too_deep(data):
        raise wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")
    return data


def is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [inner for entry in level if isinstance(entry, Mapping | list) for inner in _inside(entry)]
    return bool(level)


def _inside(entry: Any) -> Iterable[Any]:
    return cast(Iterable[Any], entry.values() if isinstance(entry, Mapping) else entry)


def converted(data: Any, cls: type[T], *path: str | int) -> T:
    """Return `data`, which is at `path` of a request, in the form of `cls`; unknown fields are left out."""
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        inner = [int(index) if index else name for name, index in re.findall(r"(\w+)|\[(\d+)]", place)]
        raise wrong(fault[:120], *path, *inner) from None


def turn(parts: list[Part], answered: Iterable[tuple[ToolCall, Any]]) -> list[Message]:
    """Return an assistant's message, and the results of its calls; none if nothing is in it."""
    answered = tuple(answered)
    if not parts and not answered:
        return []
    calls = tuple(call for call, _ in answered)
    results = [tool_result(call.id, result) for call, result in answered]
    return [Message("assistant", plain(parts), tool_calls=calls), *results]


def plain(parts: list[Part]) -> str | tuple[Part, ...]:
    """Return `parts` as the content of a message: text if they are nothing else."""
    match parts:
        case []:
            return ""
        case [TextPart(text=text)]:
            return text
        case _:
            return tuple(parts)


class Stored:
    """A conversation as the server knows it, and what a client answers to the calls that wait in it."""

    def __init__(self, stored: Thread | ChatResult | Session, client_tools: Collection[str]) -> None:
        if not isinstance(cast(object, stored), Thread | ChatResult | Session):
            fault = must_be("a Thread, a ChatResult or a Session", type(stored))
            raise invalid_option("stored", f"{fault}; write Thread(messages) for a list of messages")
        is_thread = isinstance(stored, Thread)
        self.thread = stored if is_thread else stored.thread
        waiting = () if is_thread else stored.pending_tool_calls
        if not waiting and not isinstance(stored, Session):  # a result that was cut off while they run has none
            waiting = open_calls(self.thread)
        self.pending = {call.id: call for call in waiting}
        self.known = {call.id for message in self.thread for call in message.tool_calls} | self.pending.keys()
        id = None if is_thread else stored.pending_tool_call_id
        self.question = id or next(open_questions(self.thread), None)  # the id of the call that has asked
        self.approvals: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._client_tools = client_tools

    def approve(self, id: str, answer: Any, *path: str | int) -> None:
        """Take the answer to the approval of a call that waits."""
        if self.pending[id].name in self._client_tools:
            raise wrong("is of a tool that runs in the client, which sends its result", *path)
        self.approvals[id] = answer

    def answer(self, id: str, result: Any, *path: str | int) -> None:
        """Take the result of a client's tool; that of a call which does not wait is left out."""
        if id not in self.pending or id in self.approvals:
            return
        if self.pending[id].name not in self._client_tools:
            raise wrong("is of a tool that does not run in the client", *path)
        self.results[id] = result

    def reply(self, id: str, text: str) -> None:
        """Take the answer to the question; an agent inside that has asked goes on with it."""
        if "/" in id:
            self.results[id] = text
        else:
            self.thread += user(text)

    def incoming(self, new: list[Message]) -> Incoming:
        """Return the answers, and the user's `new` messages, which deny all other calls that wait.

        Raises ``ValidationError`` if there is nothing new: a second tab, or click, comes late.
        """
        new = self._without_repeated(new)
        for id, call in self.pending.items() if new else ():
            if call.name in self._client_tools:
                self.results.setdefault(id, {"error": UNANSWERED})
            else:
                self.approvals.setdefault(id, UNANSWERED)
        if new and "/" in (self.question or "") and self.question not in self.results:
            self.reply(cast(str, self.question), "\n\n".join(message.text for message in new))
            new = []
        role = last.role if (last := (self.thread + new).last) else "user"
        is_answer = bool(self.approvals or self.results)
        if not is_answer and (role == "assistant" or (self.pending and role != "user")):
            raise wrong("answers none of the calls that wait, and holds no new message of the user", "messages")
        return Incoming(self.thread + new, self.approvals, self.results)

    def _without_repeated(self, new: list[Message]) -> list[Message]:
        """Return the messages of `new` that do not end the thread already: a client repeats those without an answer."""
        stored, contents = [message.content for message in self.thread], [message.content for message in new]
        unanswered = next((n for n, message in enumerate(reversed(self.thread)) if message.role != "user"), len(stored))
        repeated = range(min(unanswered, len(new)), 0, -1)
        return new[next((n for n in repeated if stored[-n:] == contents[:n]), 0) :]


def file_part(url: str, mime_type: str, *path: str | int, name: str | None = None) -> Part:
    """Return the part of a user's file, whose URL must be one of the web, or hold the file itself."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        try:
            (part,) = user([TextPart(""), url]).parts[1:]
        except ValidationError:
            raise wrong("is not a data: URL in base64", *path) from None
        return part
    if scheme not in ("http", "https"):
        raise wrong("must begin with http:, https: or data:", *path)
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    return FilePart({"mime_type": mime_type, "url": url, **({} if name is None else {"name": name})})


def wrong(fault: str, *path: str | int) -> ValidationError:
    return ValidationError("invalid_request", errors=[(path, fault)])
