"""Result types for steps and chats."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rxllm.values.argument_checks import shorten
from rxllm.values.base import Value, value
from rxllm.values.errors import LLMError
from rxllm.values.messages import Message
from rxllm.values.responses import Response
from rxllm.values.threads import MessageLike, Thread
from rxllm.values.tools import ToolCall
from rxllm.values.usage import Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    T = TypeVar("T")


@value
class StepResult(Value, Generic[T]):
    """One round trip to the model: the response, the results of the tools it called, and the thread with both.

    `done` is True if there is nothing to send back to the model, or if tool calls are waiting for the caller to approve
    or answer them. A loop that calls ``step`` should end when `done` is True. In ``mode="manual"``, `done` is False if
    there are tool calls, because the caller has yet to send their results.

    `metadata` can have the keys ``mode``, ``manual_tool_calls``, ``approval_tool_calls``, ``halted_reason``,
    ``halt_tool_call_id``, ``halt_result``, ``pending_tool_call_id``, ``pending_question``, ``ask_user_opts`` and
    ``on_tool_error_exception``. `agent_usage` is the usage of the agents that the step called as tools.
    """

    thread: Thread
    response: Response[T]
    tool_results: tuple[Message, ...] = ()
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    agent_usage: Usage = field(default_factory=Usage)

    @property
    def output_text(self) -> str:
        """The text of the response."""
        return self.response.output_text

    @property
    def usage(self) -> Usage:
        """The combined usage of the response and all agents that the step called, however deeply nested."""
        return self.response.usage + self.agent_usage

    @property
    def parsed(self) -> T | None:
        """The parsed answer from the response, or None if the step calls tools or has failed."""
        return self.response.parsed

    def __add__(self, other: str | MessageLike) -> Thread:
        return self.thread + other

    def __repr__(self) -> str:
        ran = f", {len(self.tool_results)} tool results" if self.tool_results else ""
        return f"StepResult({self.response!r}{ran}, done={self.done})"

    def _repr_markdown_(self) -> str:
        results = "".join(f"\n\n{message._repr_markdown_()}" for message in self.tool_results)  # pyright: ignore[reportPrivateUsage]
        return self.response._repr_markdown_() + results  # pyright: ignore[reportPrivateUsage]


@value
class ChatResult(Value, Generic[T]):
    """The result of a chat that has completed or halted.

    `halted_reason` is ``completed``, ``error``, ``max_turns``, ``halt_when``, ``ask_user``, ``tool_error``,
    ``manual_tool_calls``, ``approval``, ``budget``, ``cancelled``, or the reason that a tool gave for halting. `usage`
    is the total usage of the steps. The id of a pending call inside an agent begins with the ids of the enclosing
    calls, as in ``"c1/c2"``.
    """

    thread: Thread
    final_response: Response[T] | None = None
    steps: tuple[StepResult[Any], ...] = ()
    halted_reason: str | None = None
    pending_question: str | None = None
    pending_tool_call_id: str | None = None
    pending_tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: LLMError | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def output_text(self) -> str:
        """The text of the final response."""
        return self.final_response.output_text if self.final_response else ""

    @property
    def parsed(self) -> T | None:
        """The parsed answer from the final response, or None if the chat has failed or halted."""
        return self.final_response.parsed if self.final_response else None

    def raise_for_error(self) -> ChatResult[T]:
        """Raise `error` if there is one; otherwise return this result."""
        if self.error is not None:
            raise self.error
        return self

    def __add__(self, other: str | MessageLike) -> Thread:
        return self.thread + other

    def __repr__(self) -> str:
        error = f", {self.error!r}" if self.error else ""
        text = shorten(self.output_text)
        return f"ChatResult({text!r}, {self.halted_reason}, {len(self.steps)} steps, {self.usage.total} tokens{error})"

    def _repr_markdown_(self) -> str:
        error = f"\n\n**{type(self.error).__name__}**: {self.error}" if self.error else ""
        summary = f"*{self.halted_reason}, {len(self.steps)} steps, {self.usage.total} tokens*"
        return f"{self.thread._repr_markdown_()}{error}\n\n{summary}"  # pyright: ignore[reportPrivateUsage]
