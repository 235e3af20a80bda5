"""`AgentTool`, a tool that runs a chat.

This module cannot import the layer that runs chats, because that layer is above this one. Therefore, ``rxllm``
registers the layer with `run_with`. The layer cannot be passed as an argument instead, because users call
``ops.run_tools`` and ``Engine.as_tool`` directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

import msgspec
from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.tools._settings import PROMPT, ToolSettings, tool_error
from rxllm.values import ChatResult, LLMError, Thread, Tool, ToolCall, ToolError, ValidationError
from rxllm.values.base import value
from rxllm.values.json_text import json_text
from rxllm.values.tools import ToolTimeout


@value
class AgentTool(Tool):
    """A tool that runs a chat on `engine`; see ``Engine.as_tool``.

    `system` is the system prompt. The user's message is the argument ``prompt`` or, if there are other arguments, all
    arguments as JSON. An agent has no timeout by default. A ``tool_executor`` never runs agents.
    """

    schema: dict[str, Any] = field(default_factory=lambda: dict(PROMPT))  # pyright: ignore[reportIncompatibleMethodOverride]
    timeout: ToolTimeout = None
    idempotent: bool = True
    engine: Any = field(default=None, repr=False)
    system: str = field(default="", repr=False)

    def thread(self, arguments: Mapping[str, Any]) -> Thread:
        """Return the thread that the agent's chat starts with."""
        thread = Thread().add_system(self.system) if self.system else Thread()
        match dict(arguments):
            case {"prompt": str(prompt), **others} if not others:
                return thread + prompt
            case others:
                return thread + json_text(others)


class AgentCall(msgspec.Struct, frozen=True):
    """One run of an agent. `settings` are the settings of the step that calls the agent.

    To continue an earlier run, pass its thread as `halted`, along with the caller's `answers`.
    """

    tool: AgentTool
    call: ToolCall
    settings: ToolSettings
    request_id: str | None
    halted: Thread | None = None
    answers: Any = None


class AgentChat(msgspec.Struct, frozen=True):
    """The `events` of an agent's chat, and `to_result`, a function that turns these events into the chat's result."""

    events: Stream[Event]
    to_result: Callable[[Observable[Event]], Stream[ChatResult]]


class Chats(Protocol):
    """The layer that runs agents' chats."""

    def engine_with(self, engine: Any, options: Mapping[str, Any]) -> Any:
        """Return `engine` with these chat options.

        Raises the same errors as ``rxllm.chat``.
        """
        ...

    def chat(self, call: AgentCall) -> AgentChat: ...


_chats: list[Chats] = []


def run_with(chats: Chats) -> None:
    _chats[:] = [chats]


def chats() -> Chats:
    return _chats[0]


def blame_caller(error: BaseException) -> None:
    """Mark `error` as the caller's fault, so that no model receives it."""
    vars(error)["_is_callers"] = True


def blames_caller(error: BaseException) -> bool:
    """Whether the caller's code caused `error`."""
    is_invalid = isinstance(error, ValidationError) and error.reason == "invalid_option"
    return is_invalid or not isinstance(error, LLMError) or "_is_callers" in vars(error)


def agent_failure(call: ToolCall, error: LLMError) -> ToolError:
    """Return the tool error to report for an agent that failed with `error`."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    message = f"the agent {call.name!r} failed: {type(error).__name__}: {first_line}"
    failure = tool_error(call, "handler_raised", message)
    failure.__cause__ = error
    return failure


def answer_of(result: ChatResult) -> Any:
    """Return the chat's answer. If the chat halted early, return a dict that also contains the reason."""
    answer = result.output_text if result.parsed is None else result.parsed
    if result.halted_reason == "completed":
        return answer
    halt_result = {name: value for name, value in result.metadata.items() if name == "halt_result"}
    return {"output_text": answer, "halted_reason": result.halted_reason, **halt_result}
