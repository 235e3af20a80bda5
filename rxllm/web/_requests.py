"""Limits on the requests that `from_ui` and `from_ag_ui` read, and the stored conversation that they continue.

A client's user controls its requests, so they are read by these rules:

=====================================  ================================================================================
in a request                           becomes
=====================================  ================================================================================
a system or developer message          nothing
the user's text and files              a user's message; a file's URL is ``http:``, ``https:``, or a limited ``data:``
earlier messages                       nothing if the server has a thread, which contains them; otherwise messages
the thread's last messages, repeated   nothing: a client repeats unanswered messages, for example after a failure
a tool call without a result           nothing
an answer to an approval request       an approval, if the call waits in the server's thread; an error without a thread
an answer to an answered call          nothing; if there is nothing else, an error
a result from a client's tool          a result, if the call waits in the server's thread and is one of `client_tools`
a new message instead of an answer     a denial of the calls that wait, and the message, which answers an inner agent's
                                       question if there is one
=====================================  ================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from typing import Annotated, Any, TypeVar, cast

import msgspec

from rxllm import ChatResult, Message, Session, Thread, ToolCall, ValidationError, tool_result, user
from rxllm.values import FilePart, Image, ImagePart, Part, TextPart, open_calls, open_questions
from rxllm.values.argument_checks import invalid_option, must_be

MAX_BYTES = 8_000_000
"""Maximum length of a request."""

MAX_DEPTH = 64
"""Maximum depth of a request."""

MAX_VALUES = 100_000
"""Maximum JSON values in a request: reading more would block the loop for seconds."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[^\ud800-\udfff]*$")]
"""An id or a type. Unlike text it must not hold half of a surrogate pair: it is looked up, logged and sent again."""

UNANSWERED = "The user has gone on without an answer."
"""The result of waiting calls when the user writes something else."""

T = TypeVar("T")


class Incoming(msgspec.Struct, frozen=True):
    """The arguments of ``rxllm.resume`` and ``rxllm.stream_resume`` for a client's request."""

    thread: Thread
    approvals: Mapping[str, Any] = {}
    results: Mapping[str, str | Mapping[str, Any]] = {}


def load_request(body: bytes | str | Mapping[str, Any], max_bytes: int) -> Any:
    """Return a request as data. Raises ``ValidationError`` if it is too long, too large, too deep, or not JSON."""
    if not isinstance(body, bytes | str):
        _check_size(body)
        return body
    text = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    if len(text) > max_bytes:
        raise wrong(f"is longer than {max_bytes} bytes", "body")
    return parse_json(text, lambda text: json.loads(text.decode(errors="surrogatepass")))


def parse_json(text: bytes, parse: Callable[[bytes], Any]) -> Any:
    """Return `text` as `parse` reads it. Raises ``ValidationError`` if `parse` fails or `text` holds too much."""
    if _most_values(text) > MAX_VALUES:
        raise _too_large()
    try:
        data = parse(text)
    except (ValueError, RecursionError):
        raise wrong("is not JSON", "body") from None
    _check_size(data)
    return data


def _check_size(data: Any) -> None:
    """Raise if `data` is too large or too deep. The arguments of tool calls count too, although they are text."""
    level: list[Any] = [data]
    count = 0
    for _ in range(MAX_DEPTH):
        mappings = [cast(Mapping[str, Any], entry) for entry in level if isinstance(entry, Mapping)]
        arguments = [entry["arguments"] for entry in mappings if "arguments" in entry]
        texts = [text.encode(errors="replace") for text in arguments if isinstance(text, str)]
        level = [inner for entry in level if isinstance(entry, list) for inner in cast(list[Any], entry)]
        level += (inner for entry in mappings for inner in entry.values())
        count += len(level) + sum(map(_most_values, texts))
        if count > MAX_VALUES:
            raise _too_large()
        level += map(_load_arguments, texts)
    if level:
        raise _too_deep()


def _most_values(text: bytes) -> int:
    """Return an upper bound on the number of values in a JSON text, from its punctuation, without parsing it."""
    most_quotes = 4 * MAX_VALUES  # two for each key and each string
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
    return wrong(f"holds more than {MAX_VALUES} values", "body")


def _too_deep() -> ValidationError:
    return wrong(f"is nested more than {MAX_DEPTH} levels deep", "body")


def convert_to(data: Any, cls: type[T], *path: str | int) -> T:
    """Return `data`, which is at `path` in a request, as a `cls`; unknown fields are dropped."""
    try:
        return msgspec.convert(data, cls)
    except UnicodeEncodeError:  # raised where msgspec looks up a name
        raise wrong("must not hold half of a surrogate pair in a name", *path) from None
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        inner = [int(index) if index else name for name, index in re.findall(r"(\w+)|\[(\d+)]", place)]
        raise wrong(fault[:120], *path, *inner) from None


class StoredConversation:
    """The server's copy of a conversation, and the client's answers to its waiting calls."""

    def __init__(self, stored: Thread | ChatResult | Session, client_tools: Collection[str]) -> None:
        if not isinstance(cast(object, stored), Thread | ChatResult | Session):
            fault = must_be("a Thread, a ChatResult or a Session", type(stored))
            raise invalid_option("stored", f"{fault}; write Thread(messages) for a list of messages")
        is_thread = isinstance(stored, Thread)
        self.thread = stored if is_thread else stored.thread
        waiting = () if is_thread else stored.pending_tool_calls
        if not waiting and not isinstance(stored, Session):  # a result cut off while calls were running lists none
            waiting = open_calls(self.thread)
        self.pending = {call.id: call for call in waiting}
        self.known = {call.id for message in self.thread for call in message.tool_calls} | self.pending.keys()
        id = None if is_thread else stored.pending_tool_call_id
        self.question = id or next(open_questions(self.thread), None)  # the id of the call that asks
        self.approvals: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._client_tools = client_tools

    def approve(self, id: str, answer: Any, *path: str | int) -> None:
        """Accept the answer to a waiting call's approval request."""
        if self.pending[id].name in self._client_tools:
            raise wrong("is of a tool that runs in the client, which sends its result", *path)
        self.approvals[id] = answer

    def answer(self, id: str, result: Any, *path: str | int) -> None:
        """Accept the result of a client's tool. The result of a call that is not waiting is dropped."""
        if id not in self.pending or id in self.approvals:
            return
        if self.pending[id].name not in self._client_tools:
            raise wrong("is of a tool that does not run in the client", *path)
        self.results[id] = result

    def reply(self, id: str, text: str) -> None:
        """Accept the answer to the question. For an inner agent it becomes the asking call's result."""
        self.question = None
        if "/" in id:
            self.results[id] = text
        else:
            self.thread += user(text)

    def incoming(self, new: list[Message]) -> Incoming:
        """Return the answers and the user's `new` messages, which deny all other waiting calls.

        Raises ``ValidationError`` if there is nothing new, as after a second click or in a second tab.
        """
        new = self._drop_repeated(new)
        for id, call in self.pending.items() if new else ():
            if call.name in self._client_tools:
                self.results.setdefault(id, {"error": UNANSWERED})
            else:
                self.approvals.setdefault(id, UNANSWERED)
        if new and self.question is not None and "/" in self.question:
            self.reply(self.question, "\n\n".join(message.text for message in new))
            new = []
        role = last.role if (last := (self.thread + new).last) else "user"
        is_answer = bool(self.approvals or self.results)
        if not is_answer and (role == "assistant" or (self.pending and role != "user")):
            raise wrong("must answer a waiting call, or hold a new message of the user", "messages")
        return Incoming(self.thread + new, self.approvals, self.results)

    def _drop_repeated(self, new: list[Message]) -> list[Message]:
        """Return `new` without the unanswered messages at the end of the thread, which a client repeats."""
        unanswered = [*takewhile(lambda message: message.role == "user", reversed(self.thread))][::-1]
        # Knuth-Morris-Pratt borders: comparing each length would take seconds for thousands of messages.
        items = [*(message.content for message in new), object(), *(message.content for message in unanswered)]
        borders = [0]  # entry i: the length of the longest proper suffix of `items[: i + 1]` that is a prefix
        for item in items[1:]:
            n = borders[-1]
            while n and items[n] != item:
                n = borders[n - 1]
            borders.append(n + (items[n] == item))
        return new[borders[-1] :]


def turn(parts: list[Part], answered: Iterable[tuple[ToolCall, Any]]) -> list[Message]:
    """Return an assistant message and the results of its calls; no messages if all are empty."""
    answered = tuple(answered)
    if not parts and not answered:
        return []
    calls = tuple(call for call, _ in answered)
    results = [tool_result(call.id, result) for call, result in answered]
    return [Message("assistant", plain_content(parts), tool_calls=calls), *results]


def plain_content(parts: list[Part]) -> str | tuple[Part, ...]:
    """Return `parts` as the content of a message: plain text if possible."""
    match parts:
        case []:
            return ""
        case [TextPart(text=text)]:
            return text
        case _:
            return tuple(parts)


def file_part(url: str, mime_type: str, *path: str | int, name: str | None = None) -> Part:
    """Return the part for a user's file. The `url` must be a web address, or hold the file as ``data:``."""
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
