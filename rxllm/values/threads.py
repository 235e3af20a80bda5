"""Threads, and functions that add tool results to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self, cast, overload

from rxllm.values.advice import advice
from rxllm.values.argument_checks import must_be
from rxllm.values.base import Value, value
from rxllm.values.messages import Attachment, Message, assistant, system, user
from rxllm.values.openai_messages import at, read_message, write_message, wrong
from rxllm.values.responses import Response
from rxllm.values.tools import ToolCall


class Dumpable(Protocol):
    """An SDK's message object, such as OpenAI's ``completion.choices[0].message``."""

    def model_dump(self, *, exclude_none: bool = ...) -> dict[str, Any]: ...


AGENTS = "agents"
"""The key in a message's metadata under which the threads of halted agents are stored."""

_LAST = 20
"""A notebook shows the first message of a thread, and at most this many of the last messages."""

MessageLike = Message | Response[Any] | Mapping[str, object] | Dumpable
"""A message, a response, or a message in OpenAI's format."""


@value
class Thread(Value):
    """An immutable conversation. Its methods return a new thread.

    >>> thread = Thread() + system("Be brief.") + "Hi"
    >>> len(thread), thread.last
    (2, Message('user', 'Hi'))

    ``thread + x`` appends any of these:

    * text, as a user message;
    * a message, or a response's message;
    * a message in OpenAI's format, ``{"role": "user", "content": "Hi"}``;
    * a list of such messages, or another thread's messages.

    Anything else raises ``ValidationError("invalid_thread")``. ``Thread(...)`` itself accepts only `Message` objects.
    """

    messages: tuple[Message, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        super().__post_init__()
        messages = cast(Any, self.messages)
        if not isinstance(messages, tuple) or not all(isinstance(entry, Message) for entry in cast(Any, messages)):
            remedy = "write Thread() + ... for text and messages, or Thread.from_openai([...]) for dicts"
            raise wrong(f"{must_be('a tuple of Message objects', self.messages)}; {remedy}", "messages")

    @classmethod
    def from_openai(cls, messages: Iterable[MessageLike]) -> Self:
        """Convert messages in OpenAI's format to a thread.

        >>> Thread.from_openai([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        Thread(2 messages, last=Message('user', 'Hi'))

        The messages can be dicts, SDK objects or `Message` objects. The role ``developer`` becomes ``system``, and a
        refusal becomes text. Every function that takes a thread also accepts a list of such messages.

        Raises ``ValidationError("invalid_thread")`` if a field or the type of a part is unknown. It is also raised for
        ``function_call``, OpenAI's old format for tool calls.
        """
        return cls(as_messages(messages))

    def to_openai(self) -> list[dict[str, Any]]:
        """Return the messages in OpenAI's format.

        >>> (Thread() + "Hi").to_openai()
        [{'role': 'user', 'content': 'Hi'}]

        Metadata, calls to tools that the provider ran, and non-text parts of assistant messages are omitted. A tool
        result that is a mapping becomes JSON text. An image becomes its URL or a ``data:`` URL. `from_openai` restores
        everything that was not omitted or converted.

        Raises ``ValidationError("not_serializable")`` for a part that is not omitted and that the format cannot
        express. Examples are an image in a tool result, and a file (other than an image) that is given by URL. Also
        raises the same errors as ``Image.to_data_uri``.
        """
        return [at(("messages", i), write_message, message) for i, message in enumerate(self)]

    def __add__(self, other: str | MessageLike | Iterable[MessageLike]) -> Thread:
        return replace(self, messages=self.messages + as_messages(other))

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Thread: ...
    def __getitem__(self, index: int | slice) -> Message | Thread:
        if isinstance(index, slice):
            return replace(self, messages=self.messages[index])
        return self.messages[index]

    if TYPE_CHECKING:  # `messages` may be given as a list

        def __init__(self, messages: Sequence[Message] = (), metadata: dict[str, Any] = ...) -> None: ...

    @property
    def last(self) -> Message | None:
        """The last message, or None if the thread is empty."""
        return self.messages[-1] if self.messages else None

    def add_system(self, text: str) -> Thread:
        return self + system(text)

    def add_user(self, content: Attachment | Sequence[Attachment], *attachments: Attachment) -> Thread:
        """Return the thread with a user message appended. The arguments are the same as for `user`."""
        return self + user(content, *attachments)

    def add_assistant(self, text: str) -> Thread:
        return self + assistant(text)

    def __repr__(self) -> str:
        last = f", last={self.last!r}" if self.messages else ""
        return f"Thread({len(self)} messages{last})"

    def _repr_markdown_(self) -> str:
        texts = [message._repr_markdown_() for message in (*self[:1], *self[1:][-_LAST:])]  # pyright: ignore[reportPrivateUsage]
        left_out = len(self) - len(texts)
        texts[1:1] = [f"*{left_out:,} more messages: `thread[1:{left_out + 1}]`*"] if left_out else []
        return "\n\n".join(texts)


def as_messages(value: object) -> tuple[Message, ...]:
    """Convert text, a message or several messages to a tuple of messages.

    Any other `value` raises ``ValidationError("invalid_thread")``.
    """
    if isinstance(value, str):
        return (user(value),)
    if not _is_single(value) and isinstance(value, Iterable):
        return tuple(at(("messages", i), _as_message, item) for i, item in enumerate(cast(Iterable[Any], value)))
    return (_as_message(value),)


def _is_single(value: object) -> bool:
    # Iterating over one of these would yield its fields or, if it is a Stream, run it.
    return isinstance(value, Message | Response | Mapping | bytes) or _is_dumpable(value) or _is_stream(value)


def _is_stream(value: object) -> bool:
    return hasattr(value, "subscribe")


def _is_dumpable(value: object) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "model_dump", None))


def _as_message(value: Any) -> Message:
    match value:
        case Message():
            return value
        case Response(message=Message() as message):
            return message
        case Mapping():
            return read_message(cast(Mapping[str, Any], value))
        case _ if _is_dumpable(value):
            return read_message(value.model_dump(exclude_none=True))
        case _:
            remedy = "; pass its .thread" if isinstance(getattr(value, "thread", None), Thread) else ""
            remedy = f"; {advice('Stream', 'message')}" if _is_stream(value) else remedy
            form = 'a message, such as user("Hi") or {"role": "user", "content": "Hi"}'
            raise wrong(f"{must_be(form, value)}{remedy}")


def unanswered(thread: Thread) -> tuple[ToolCall, ...]:
    """Return the calls in `thread` that have no result yet. Calls that the provider runs are left out.

    >>> thread = Thread((Message("assistant", tool_calls=(ToolCall("a", "f"), ToolCall("b", "g"))),))
    >>> [call.id for call in unanswered(with_results(thread, {"a": Message("tool", "1", tool_call_id="a")}))]
    ['b']
    """
    answered = {message.tool_call_id for message in thread if message.role == "tool"}
    calls = (call for message in thread for call in message.tool_calls)
    return tuple(call for call in calls if call.id not in answered and not call.metadata.get("server"))


def with_results(thread: Thread, results: Mapping[str, Message]) -> Thread:
    """Return `thread` with these tool results inserted. The keys of `results` are call ids.

    The results follow the message that contains their calls, as providers require. Results whose call is not in the
    thread are appended. Once a call to an agent has a result, the agent's stored thread is removed.
    """
    remaining = dict(results)
    messages: list[Message] = []
    queue = deque(thread.messages)
    while queue:
        message = queue.popleft()
        messages.append(message)
        order = {call.id: i for i, call in enumerate(message.tool_calls)}
        answers = [remaining.pop(id) for id in order if id in remaining]
        if answers:
            messages[-1] = _without_agents(message, {answer.tool_call_id for answer in answers})
            while queue and queue[0].role == "tool":
                answers.append(queue.popleft())
            messages += sorted(answers, key=lambda answer: order.get(answer.tool_call_id or "", len(order)))
    return replace(thread, messages=(*messages, *remaining.values()))


def _without_agents(message: Message, ids: Collection[str | None]) -> Message:
    agents = message.metadata.get(AGENTS)
    if not isinstance(agents, Mapping) or not any(id in agents for id in ids):
        return message
    rest = {name: entry for name, entry in message.metadata.items() if name != AGENTS}
    agents = {id: agent for id, agent in cast(Mapping[str, Any], agents).items() if id not in ids}
    return replace(message, metadata={**rest, AGENTS: agents} if agents else rest)


def listed(ids: Collection[str]) -> str:
    """Return text for an error message: the first ten `ids`, and the number of any others.

    >>> listed("abcdefghijkl"), listed([])
    ('a, b, c, d, e, f, g, h, i, j and 2 more', 'none')
    """
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return (", ".join(islice(ids, 10)) or "none") + more
