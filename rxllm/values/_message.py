"""Messages: who says what."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from rxllm.values._content import Part, TextPart
from rxllm.values._tool_call import ToolCall
from rxllm.values._value import Value, value

Role = Literal["system", "user", "assistant", "tool"]
Content = str | tuple[Part, ...] | dict[str, Any]


@value
class Message(Value):
    """One turn of a conversation.

    `content` is text, or parts in their order, or (tool results only) a mapping. `tool_calls` are the calls that an
    assistant's turn makes; a ``tool`` message answers the one whose id is its `tool_call_id`.
    """

    role: Role
    content: str | tuple[Part, ...] | dict[str, Any] = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The text of the content, parts joined; empty for a mapping."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts, also where it is plain text."""
        if isinstance(self.content, str):
            return (TextPart(self.content),) if self.content else ()
        return () if isinstance(self.content, dict) else self.content

    def __repr__(self) -> str:
        calls = f", calls={[call.name for call in self.tool_calls]}" if self.tool_calls else ""
        return f"Message({self.role!r}, {self.content if isinstance(self.content, dict) else self.text!r}{calls})"

    def _repr_markdown_(self) -> str:
        calls = "".join(f"\n\n`{call!r}`" for call in self.tool_calls)
        said = str(self.content) if isinstance(self.content, dict) else self.text
        said = as_code(said) if self.role == "tool" and said else said
        return f"**{self.role}**{': ' if said else ''}{said}{calls}"


def system(text: str) -> Message:
    """A system message.

    >>> system("Be brief.")
    Message('system', 'Be brief.')
    """
    return Message("system", text)


def user(content: str | list[Part] | tuple[Part, ...]) -> Message:
    """A user's message: text, or parts.

    >>> user("Hi")
    Message('user', 'Hi')
    """
    return Message("user", content if isinstance(content, str) else tuple(content))


def assistant(text: str) -> Message:
    """An assistant's message.

    >>> assistant("Hello")
    Message('assistant', 'Hello')
    """
    return Message("assistant", text)


def tool_result(tool_call_id: str, content: str | dict[str, Any]) -> Message:
    """The answer to a tool call.

    >>> tool_result("call_0", "42").tool_call_id
    'call_0'
    """
    return Message("tool", content, tool_call_id=tool_call_id)


def as_code(text: str) -> str:
    """Markdown that shows `text` as it is.

    >>> as_code("<b>")
    '`<b>`'
    """
    return f"`{text.replace('`', chr(39))}`"
