"""What the agents of a step have used, and what those that have halted wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rxllm.collector._executions import Executions
from rxllm.values import ChatResult, StepResult, Thread, ToolCall, Usage, unanswered
from rxllm.values.sessions import nested_call, nested_id, open_agents, question, with_open_agents

_WAITING = ("approval", "manual_tool_calls")

CALLS = ("manual_tool_calls", "approval_tool_calls")
"""The metadata of a step that hold the calls that wait for the caller."""


def is_waiting(result: ChatResult) -> bool:
    """Whether a chat has halted for the caller: their answers let it go on."""
    return bool(result.pending_tool_calls) or result.pending_question is not None


def agent_usage(executions: Executions) -> Usage:
    """Return what the agents have used by the end of their last steps, at any depth."""
    agents = [execution.agent for execution in executions.values()]
    steps = sum((step.usage for agent in agents for step in agent.steps), Usage())
    return sum((agent_usage(agent.executions) for agent in agents), steps)


def with_agents_so_far(thread: Thread, executions: Executions) -> Thread:
    """Return `thread` with what its open agents, which go on, have done by the end of their last steps."""
    threads = {id: thread for id, thread in open_agents(thread).items() if id in executions}
    for id, resumed in threads.items():
        agent = executions[id].agent
        threads[id] = with_agents_so_far(agent.thread or resumed, agent.executions)
    return with_open_agents(thread, threads)


def with_agents(step: StepResult, executions: Executions) -> StepResult:
    """Return `step` with what its agents did: their usage, and what they wait for."""
    if not executions:
        return step
    step = replace(step, agent_usage=agent_usage(executions))
    ended = {id: execution.agent.chat_result for id, execution in executions.items()}
    results = ((call.id, ended.get(call.id)) for call in unanswered(step.thread))
    waiting = {id: result for id, result in results if result is not None and is_waiting(result)}
    return _halted(step, waiting) if waiting else step


def _halted(step: StepResult, waiting: Mapping[str, ChatResult]) -> StepResult:
    thread = with_open_agents(step.thread, {id: result.thread for id, result in waiting.items()})
    nested, own = _metadata(waiting), step.metadata
    if "pending_question" in nested and own.get("halted_reason") == "ask_user":
        # One question at a time, and the step's own last: it is the end of the thread.
        thread += question(own["pending_question"], own["pending_tool_call_id"], own)
        return replace(step, thread=thread, metadata=joined(nested, own))
    return replace(step, thread=thread, metadata=joined(own, nested))


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both metadata, `first` where they differ; the calls that wait are put together."""
    calls = {name: (*first[name], *second[name]) for name in CALLS if name in first and name in second}
    return {**second, **first, **calls}


def _metadata(waiting: Mapping[str, ChatResult]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for id, result in waiting.items():
        approvals = result.metadata.get("approval_tool_calls", ())
        manual = tuple(call for call in result.pending_tool_calls if call not in approvals)
        _add_calls(metadata, "manual_tool_calls", id, manual)
        _add_calls(metadata, "approval_tool_calls", id, approvals)
        if result.pending_question is not None and "pending_question" not in metadata:
            metadata |= {"halted_reason": "ask_user", **_question(id, result)}
        elif result.halted_reason not in _WAITING:
            metadata.setdefault("halted_reason", result.halted_reason)
    return metadata


def _add_calls(metadata: dict[str, Any], name: str, id: str, calls: tuple[ToolCall, ...]) -> None:
    if calls:
        metadata[name] = (*metadata.get(name, ()), *(nested_call(id, call) for call in calls))


def _question(id: str, result: ChatResult) -> dict[str, Any]:
    opts = {name: result.metadata[name] for name in ("ask_user_opts",) if name in result.metadata}
    inner = result.pending_tool_call_id or ""
    return {"pending_tool_call_id": nested_id(id, inner), "pending_question": result.pending_question, **opts}
