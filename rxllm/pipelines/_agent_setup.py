"""The setup of an agent's chat: what it inherits from the chat around it."""

from __future__ import annotations

from typing import Any

from rxllm.pipelines._call import Setup
from rxllm.pipelines._options import ChatOptions
from rxllm.runtime import Question
from rxllm.tools import AgentTool, ToolSettings
from rxllm.values import ToolCall


def agent_setup(tool: AgentTool, settings: ToolSettings, **ids: str) -> Setup:
    """Return the setup of the chat of `tool`, which runs in a step with these `settings`.

    Its own options and those of its engine come first. It inherits the step's `approve` with its timeout, and the
    step's context under its own.
    """
    own = Setup.of(tool.engine, ChatOptions, {})
    context = {**settings.context, **own.engine.context, **own.options.get("context", {})}
    inherited: dict[str, Any] = {"context": context, **ids}
    if settings.approve is not None and "approve" not in own.options:
        timeout = own.options.get("approve_timeout", settings.approve_timeout)
        inherited |= {"approve": settings.approve, "approve_timeout": timeout}
    return Setup.of(tool.engine, ChatOptions, inherited)


def agent_settings(tool: AgentTool, settings: ToolSettings) -> ToolSettings:
    """Return how the tools of the agent run."""
    return ToolSettings(**agent_setup(tool, settings).tool_options())


def agent_ids(tool: AgentTool, call: ToolCall, question: Question) -> dict[str, str]:
    """Return the ids of the agent's chat: the request's has that of the step and of the `call`."""
    ids: dict[str, str] = {}
    if question.request_id is not None:
        ids["request_id"] = f"{question.request_id}/{call.id}"
    if question.session_id is not None and not tool.engine.params.get("session_id"):
        ids["session_id"] = question.session_id
    return ids
