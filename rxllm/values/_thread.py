"""Threads: a conversation so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import Any, overload

from rxllm.values._message import Message, assistant, system, user
from rxllm.values._value import Value, value


@value
class Thread(Value):
    """A conversation: immutable, so every method gives a new one. ``thread + message`` (or messages) appends.

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

    @property
    def last(self) -> Message | None:
        """The last message; None in an empty thread."""
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
