"""Functions that check client requests, and a class for the stored conversation that a request continues.

A request is built on the user's machine, so it cannot be trusted. `stored` is the server's own copy of the
conversation, or a function that loads this copy by id.

=====================================  ================================================================================
part of a request                      treatment
=====================================  ================================================================================
a system or developer message          ignored
the user's text and files              read as a user message; a file must be a web address or a base64 ``data:`` URL
earlier messages                       ignored if there is a stored copy, otherwise read as the history
a repeated message                     ignored if it repeats an unanswered message at the end of the stored thread;
                                       clients repeat messages when they retry after a failure
a tool call without a result           ignored
an answer to an approval request       accepted if the stored call is waiting for approval, and is the call that the
                                       user has seen; rejected if there is no stored copy
an answer to an answered call          ignored; a request that contains nothing else is rejected, unless the model has
                                       yet to respond to the stored thread
a result from a client's tool          accepted if the stored call is waiting and its tool is one of `client_tools`
a new message instead of an answer     denies the calls that are waiting; if an inner agent has asked a question, the
                                       message is the answer to that question
=====================================  ================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate, takewhile
from typing import Annotated, Any, TypeVar, cast

import msgspec

from rxllm import ChatResult, Message, Session, Thread, ToolCall, ValidationError, tool_result, user
from rxllm.values import FilePart, Image, ImagePart, Part, TextPart, open_calls, open_questions
from rxllm.values.argument_checks import invalid_option, must_be
from rxllm.web._frames import approval_id

MAX_BYTES = 8_000_000
"""The maximum length of a request, in bytes."""

MAX_DEPTH = 64
"""The maximum nesting depth of a request."""

MAX_ID = 512
"""The maximum length of a conversation id, in characters."""

MAX_VALUES = 100_000
"""The maximum number of JSON values in a request. Parsing more would block the event loop for seconds."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[^\ud800-\udfff]*$")]
"""The type of ids, names and URLs in requests: text without lone surrogates."""

_MOST_AGENTS = 100
"""How many levels of agents are looked for in the id of a call."""

OUTDATED = "outdated_approval"
"""The key in an error's metadata for the id of a call, if an approval is for an earlier call with this id."""

UNANSWERED = "The user moved on without answering."
"""The tool result for a call that the user left unanswered."""

T = TypeVar("T")

Stored = Thread | ChatResult | Session
Load = Callable[[str], Stored | None]


class Incoming(msgspec.Struct, frozen=True):
    """A client's request, ready for ``rxllm.resume`` or ``rxllm.stream_resume``.

    `id` is the conversation id if `stored` is a function. Otherwise, it is empty.
    """

    thread: Thread
    approvals: Mapping[str, Any] = {}
    results: Mapping[str, str | Mapping[str, Any]] = {}
    id: str = ""


def load_request(body: bytes | str | Mapping[str, Any], max_bytes: int) -> Any:
    """Parse a request's body.

    Raises ``ValidationError`` if the body is malformed or too large.
    """
    if not isinstance(body, bytes | str):
        _check_size(body)
        return body
    text = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    if len(text) > max_bytes:
        raise wrong(f"is longer than {max_bytes} bytes", "body")
    return parse_json(text, lambda text: json.loads(text.decode(errors="surrogatepass")))


def parse_json(text: bytes, parse: Callable[[bytes], Any]) -> Any:
    """Return ``parse(text)``.

    Raises ``ValidationError`` if `text` is malformed or too large.
    """
    if most_values(text) > MAX_VALUES:
        raise _too_large()
    try:
        data = parse(text)
    except (ValueError, RecursionError):
        raise wrong("is not JSON", "body") from None
    _check_size(data)
    return data


def _check_size(data: Any) -> None:
    """Raise ``ValidationError`` if `data` is too large or nested too deeply."""
    level: list[Any] = [data]
    count = 0
    for _ in range(MAX_DEPTH):
        mappings = [cast(Mapping[str, Any], entry) for entry in level if isinstance(entry, Mapping)]
        arguments = [entry["arguments"] for entry in mappings if "arguments" in entry]
        texts = [text.encode(errors="replace") for text in arguments if isinstance(text, str)]
        level = [inner for entry in level if isinstance(entry, list) for inner in cast(list[Any], entry)]
        level += (inner for entry in mappings for inner in entry.values())
        count += len(level) + sum(map(most_values, texts))
        if count > MAX_VALUES:
            raise _too_large()
        level += map(_load_arguments, texts)
    if level:
        raise _too_deep()


def most_values(text: bytes) -> int:
    """Return an upper bound on the number of values in a JSON text."""
    most_quotes = 4 * MAX_VALUES  # two quotes around a value's key and two around the value itself
    pieces = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', most_quotes)
    return most_quotes if len(pieces) > most_quotes else sum(map(b"".join(pieces[::2]).count, b",[{"))


def _load_arguments(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        return None


def _too_large() -> ValidationError:
    return wrong(f"has more than {MAX_VALUES} values", "body")


def _too_deep() -> ValidationError:
    return wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")


def convert_to(data: Any, cls: type[T], *path: str | int) -> T:
    """Convert `data` to `cls`. `path` locates `data` in the request."""
    try:
        return msgspec.convert(data, cls)
    except UnicodeEncodeError:  # msgspec raises this for a lone surrogate in a field's name
        raise wrong("has a field name with a lone surrogate", *path) from None
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        inner = [int(index) if index else name for name, index in re.findall(r"(\w+)|\[(\d+)]", place)]
        raise wrong(fault[:120], *path, *inner) from None


def check_id(id: object, *path: str) -> str:
    """Return `id` if it is a valid conversation id; otherwise raise ``ValidationError``."""
    # Databases reject NUL, and line breaks could be used to forge log entries.
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or not id.isprintable():
        raise wrong(f"must be a string of 1 to {MAX_ID} printable characters", *path)
    return id


class StoredConversation:
    """A stored conversation, with the client's answers to the calls that are waiting.

    If `stored` is a function, it is called with `id`.
    """

    def __init__(self, stored: Stored | Load, client_tools: Collection[str], id: object, *path: str) -> None:
        self.id = ""
        if not isinstance(stored, Stored | type) and callable(stored):
            # If there is no stored copy, the conversation is new.
            self.id = check_id(id, *path)
            copy = stored(self.id)
            stored = Thread() if copy is None else copy
        if not isinstance(stored, Stored):
            fault = must_be("a Thread, a ChatResult or a Session", type(stored))
            raise invalid_option("stored", f"{fault}; if you have a list of messages, pass Thread(messages)")
        is_thread = isinstance(stored, Thread)
        self.thread = stored if is_thread else stored.thread
        waiting = () if is_thread else stored.pending_tool_calls
        if not waiting and not isinstance(stored, Session):  # a chat that was cut off lists no pending calls
            waiting = open_calls(self.thread)
        self.pending = {call.id: call for call in waiting}
        self.known = {call.id for message in self.thread for call in message.tool_calls} | self.pending.keys()
        question = None if is_thread else stored.pending_tool_call_id
        # The id of the tool call that asks the open question, or None if no question is open.
        self.question = question or next(open_questions(self.thread), None)
        self.approvals: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._dropped = frozenset(dropped_calls(self.thread))
        self._client_tools = client_tools

    def call_of(self, shown: str) -> str:
        """Return the id of the call that the approval request with the id `shown` is about."""
        return shown if shown in self.known else shown.rpartition(":")[0]

    def check_shown(self, id: str, shown: str, input: Any, *path: str | int) -> None:
        """Check that the waiting call is the call that the user has seen.

        `shown` is the id of the approval request, and `input` is the arguments that the client repeats, or None. The
        call's id alone is enough, unless a dropped call had it too and the arguments are not repeated.
        """
        call = self.pending[id]
        if shown == approval_id(call):
            return
        is_reused = any(outer in self._dropped for outer in accumulate(id.split("/", _MOST_AGENTS), "{}/{}".format))
        if shown not in ("", id) or (is_reused and input != call.arguments):
            fault = f"is for an earlier call with the id {id!r}; load the conversation again to see the waiting call"
            raise ValidationError("invalid_request", errors=[(path, fault)], metadata={OUTDATED: id})

    def approve(self, id: str, answer: Any, *path: str | int) -> None:
        """Accept the user's decision about a call that is waiting for approval."""
        if self._runs_in_client(self.pending[id]):
            raise wrong("must not approve or deny a tool that runs in the client; send its result instead", *path)
        self.approvals[id] = answer

    def answer(self, id: str, result: Any, *path: str | int) -> None:
        """Accept the result of a call to a client tool, or ignore it if the call is not waiting for a result."""
        if id not in self.pending or id in self.approvals:
            return
        if not self._runs_in_client(self.pending[id]):
            raise wrong("must not be the result of a tool that runs on the server", *path)
        self.results[id] = result

    def _runs_in_client(self, call: ToolCall) -> bool:
        return call.name in self._client_tools and not call.metadata.get("hosted")

    def reply(self, id: str, text: str) -> None:
        """Accept the user's answer to a question.

        If an inner agent asked the question, that agent receives the answer as a tool result.
        """
        self.question = None
        if "/" in id:
            self.results[id] = text
        else:
            self.thread += user(text)

    def incoming(self, new: list[Message]) -> Incoming:
        """Return the client's answers and its `new` messages as one request.

        If there are new messages, approval requests without an answer count as denied, and missing results of the
        client's tools become errors. Raises ``ValidationError`` if there is nothing new.
        """
        new = self._drop_repeated(new)
        for id, call in self.pending.items() if new else ():
            if self._runs_in_client(call):
                self.results.setdefault(id, {"error": UNANSWERED})
            else:
                self.approvals.setdefault(id, UNANSWERED)
        if new and self.question is not None and "/" in self.question:
            self.reply(self.question, "\n\n".join(message.text for message in new))
            new = []
        role = last.role if (last := (self.thread + new).last) else "system"
        is_answer = bool(self.approvals or self.results)
        if not is_answer and (role in ("assistant", "system") or (self.pending and role != "user")):
            raise wrong("must answer a waiting call or contain a new message from the user", "messages")
        return Incoming(self.thread + new, self.approvals, self.results, self.id)

    def _drop_repeated(self, new: list[Message]) -> list[Message]:
        """Return `new` without the messages that the thread already contains.

        These are messages at the start of `new` that repeat the user's unanswered messages at the end of the thread.
        """
        unanswered = [*takewhile(lambda message: message.role == "user", reversed(self.thread))][::-1]
        # This is the Knuth-Morris-Pratt prefix function. A plain search would take seconds in long threads.
        items = [*(message.content for message in new), object(), *(message.content for message in unanswered)]
        # borders[i] is the length of the longest proper prefix of `items[: i + 1]` that is also a suffix of that slice.
        borders = [0]
        for item in items[1:]:
            n = borders[-1]
            while n and items[n] != item:
                n = borders[n - 1]
            borders.append(n + (items[n] == item))
        return new[borders[-1] :]


DROPPED = "dropped_calls"
"""The key in a thread's metadata for the ids of the calls that the user has seen, but that are no longer in it."""


def dropped_calls(thread: Thread) -> list[str]:
    ids = thread.metadata.get(DROPPED)
    return cast(list[str], ids) if isinstance(ids, list) else []


def without_answer(thread: Thread, end: int) -> Thread:
    """Return the first `end` messages of `thread`. The ids of the calls in all other messages are kept as metadata."""
    dropped = dict.fromkeys([*dropped_calls(thread), *(call.id for entry in thread[end:] for call in entry.tool_calls)])
    kept = thread[:end]
    return replace(kept, metadata={**kept.metadata, DROPPED: [*dropped]}) if dropped else kept


def turn(parts: list[Part], answered: Iterable[tuple[ToolCall, Any]]) -> list[Message]:
    """Return an assistant message, followed by the results of its tool calls.

    The list is empty if there are neither parts nor calls.
    """
    answered = tuple(answered)
    if not parts and not answered:
        return []
    calls = tuple(call for call, _ in answered)
    results = [tool_result(call.id, result) for call, result in answered]
    return [Message("assistant", plain_content(parts), tool_calls=calls), *results]


def plain_content(parts: list[Part]) -> str | tuple[Part, ...]:
    """Return `parts` as the content of a message. A single text part becomes a string."""
    match parts:
        case []:
            return ""
        case [TextPart(text=text)]:
            return text
        case _:
            return tuple(parts)


def file_part(url: str, mime_type: str, *path: str | int, name: str | None = None) -> Part:
    """Return the part for a user's file. `url` must begin with ``http:``, ``https:`` or ``data:``."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        try:
            (part,) = user([TextPart(""), url]).parts[1:]
        except ValidationError:
            raise wrong("must be a valid base64 data: URL", *path) from None
        return part
    if scheme not in ("http", "https"):
        raise wrong("must begin with http:, https: or data:", *path)
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    return FilePart({"mime_type": mime_type, "url": url, **({} if name is None else {"name": name})})


def wrong(fault: str, *path: str | int) -> ValidationError:
    return ValidationError("invalid_request", errors=[(path, fault)])
