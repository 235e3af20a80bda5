"""Threads: the messages of a conversation so far, and which of their tool calls are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, overload

from rxllm.values._encode import Value, value
from rxllm.values._message import Message, assistant, system, user
from rxllm.values._tool import ToolCall


@value
class Thread(Value):
    """A conversation. It is immutable: every method returns a new one. ``thread + message`` (or messages) appends.

    >>> thread = Thread() + system("Be brief.") + user("Hi")
    >>> len(thread), thread.last
    (2, Message('user', 'Hi'))
    """

    messages: tuple[Message, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def __add__(self, other: Message | Iterable[Message]) -> Thread:
        added = (other,) if isinstance(other, Message) else tuple(other)
        return replace(self, messages=self.messages + added)

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

    other_names: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("append", "extend", "add"), "thread = thread + message, which makes a new thread"
    )

    if TYPE_CHECKING:  # a list becomes a tuple

        def __init__(self, messages: Sequence[Message] = (), metadata: dict[str, Any] = ...) -> None: ...

    @property
    def last(self) -> Message | None:
        """The last message; None if the thread is empty."""
        return self.messages[-1] if self.messages else None

    def add_system(self, text: str) -> Thread:
        return self + system(text)

    def add_user(self, text: str) -> Thread:
        return self + user(text)

    def add_assistant(self, text: str) -> Thread:
        return self + assistant(text)

    def __repr__(self) -> str:
        last = f", last={self.last!r}" if self.messages else ""
        return f"Thread({len(self)} messages{last})"

    def _repr_markdown_(self) -> str:
        return "\n\n".join(message._repr_markdown_() for message in self)  # pyright: ignore[reportPrivateUsage]


def unanswered(thread: Thread) -> tuple[ToolCall, ...]:
    """Return the tool calls that wait for an answer, in order, without those that the provider runs itself.

    >>> thread = Thread((Message("assistant", tool_calls=(ToolCall("a", "f"), ToolCall("b", "g"))),))
    >>> [call.id for call in unanswered(with_results(thread, {"a": Message("tool", "1", tool_call_id="a")}))]
    ['b']
    """
    answered = {message.tool_call_id for message in thread if message.role == "tool"}
    calls = (call for message in thread for call in message.tool_calls)
    return tuple(call for call in calls if call.id not in answered and not call.metadata.get("server"))


def with_results(thread: Thread, results: Mapping[str, Message]) -> Thread:
    """Return `thread` with the tool messages `results`, by tool call id, each behind its call.

    They stand in the order of the calls. Providers want results next to the message that made the calls, even if the
    chat has gone on since. Results that belong to no call come last.
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
            while queue and queue[0].role == "tool":
                answers.append(queue.popleft())
            messages += sorted(answers, key=lambda answer: order.get(answer.tool_call_id or "", len(order)))
    return replace(thread, messages=(*messages, *remaining.values()))


def listed(ids: Collection[str]) -> str:
    """Return `ids` as an error names them: the first ten, and how many more there are.

    >>> listed("abcdefghijkl"), listed([])
    ('a, b, c, d, e, f, g, h, i, j and 2 more', 'none')
    """
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return (", ".join(islice(ids, 10)) or "none") + more
