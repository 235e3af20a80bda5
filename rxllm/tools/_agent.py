"""`AgentTool`: a tool that runs a chat on behalf of another chat.

The code that runs chats is in a higher layer, so this module cannot import it. Instead, ``rxllm`` registers that code
with `run_with`. An argument would not work, because users call ``ops.run_tools`` and ``Engine.as_tool`` directly, and
both are below that layer.
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
    """A tool that runs a chat on `engine` on behalf of another chat; see ``Engine.as_tool``.

    `system` is the system prompt. A call's arguments become the user's message: the text of ``prompt`` if that is the
    only argument, and otherwise all arguments as JSON. By default, an agent has no timeout. Agents are never run by a
    ``tool_executor``.
    """

    schema: dict[str, Any] = field(default_factory=lambda: dict(PROMPT))  # pyright: ignore[reportIncompatibleMethodOverride]
    timeout: ToolTimeout = None
    idempotent: bool = True
    engine: Any = field(default=None, repr=False)
    system: str = field(default="", repr=False)

    def thread(self, arguments: Mapping[str, Any]) -> Thread:
        """Return the initial thread for a call with these `arguments`."""
        thread = Thread().add_system(self.system) if self.system else Thread()
        match dict(arguments):
            case {"prompt": str(prompt), **others} if not others:
                return thread + prompt
            case others:
                return thread + json_text(others)


class AgentCall(msgspec.Struct, frozen=True):
    """One run of an agent. The `settings` and the `request_id` belong to the step that made the `call`.

    If the run continues an earlier run, `halted` is the earlier run's thread, and `answers` are the caller's answers.
    """

    tool: AgentTool
    call: ToolCall
    settings: ToolSettings
    request_id: str | None
    halted: Thread | None = None
    answers: Any = None


class AgentChat(msgspec.Struct, frozen=True):
    """The `events` of an agent's chat, and `to_result`, the operator that turns them into the chat's result."""

    events: Stream[Event]
    to_result: Callable[[Observable[Event]], Stream[ChatResult]]


class Chats(Protocol):
    """The interface of the layer that runs agents' chats."""

    def engine_with(self, engine: Any, options: Mapping[str, Any]) -> Any:
        """Return a copy of `engine` with these chat `options`. Invalid ones raise errors as in ``rxllm.chat``."""
        ...

    def chat(self, call: AgentCall) -> AgentChat: ...


_chats: list[Chats] = []


def run_with(chats: Chats) -> None:
    """Set `chats` as the layer that runs agents' chats."""
    _chats[:] = [chats]


def chats() -> Chats:
    """Return the layer that runs agents' chats."""
    return _chats[0]


def blame_caller(error: BaseException) -> None:
    """Mark `error` as the fault of the caller's code, for example of an approver. It is then never sent to a model."""
    vars(error)["_is_callers"] = True


def blames_caller(error: BaseException) -> bool:
    """Whether `error`, which ended an agent's chat, is a fault in the caller's code."""
    is_invalid = isinstance(error, ValidationError) and error.reason == "invalid_option"
    return is_invalid or not isinstance(error, LLMError) or "_is_callers" in vars(error)


def agent_failure(call: ToolCall, error: LLMError) -> ToolError:
    """Return the tool error for a `call` to an agent that failed with `error`."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    message = f"the agent {call.name!r} failed: {type(error).__name__}: {first_line}"
    failure = tool_error(call, "handler_raised", message)
    failure.__cause__ = error
    return failure


def answer_of(result: ChatResult) -> Any:
    """Return the chat's answer. If the chat did not complete, return a dict with the answer and the reason."""
    answer = result.output_text if result.parsed is None else result.parsed
    if result.halted_reason == "completed":
        return answer
    halt_result = {name: value for name, value in result.metadata.items() if name == "halt_result"}
    return {"output_text": answer, "halted_reason": result.halted_reason, **halt_result}
