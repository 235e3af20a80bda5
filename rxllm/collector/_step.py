"""Build a step from a response, its tools and its agents.

`Executions` contains the tool calls that are running. It also keeps each agent's call, along with the agent's own
state, until the step ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from rxllm.collector._message import content_of
from rxllm.events import (
    AskUserRequested,
    Event,
    Nested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolResultEncoded,
)
from rxllm.values import (
    ChatResult,
    LLMError,
    Message,
    Part,
    ProviderPart,
    Response,
    StepResult,
    ThinkingPart,
    Thread,
    ToolCall,
    ToolCallPart,
    Usage,
    tool_result,
    unanswered,
    with_results,
)
from rxllm.values.sessions import nested_call, nested_id, open_agents, question, with_open_agents

if TYPE_CHECKING:
    from rxllm.collector._stream_collector import StreamCollector

STOPPED = "The tool was stopped before it finished. It may already have done some or all of its work."
"""The result given to an open call whose tool was still running when the chat was stopped."""


class Execution(msgspec.Struct, frozen=True):
    """A running tool call. If the tool is an agent, `agent` is the agent's state."""

    agent: StreamCollector
    started: ToolExecutionStarted | None = None
    completed: ToolExecutionCompleted | None = None

    def after(self, event: Nested | ToolExecutionStarted | ToolExecutionCompleted) -> Execution | None:
        """Return the execution updated with `event`, or None if there is nothing left to keep."""
        if isinstance(event, ToolExecutionStarted):
            return msgspec.structs.replace(self, started=event, completed=None)
        if isinstance(event, ToolExecutionCompleted):
            execution = msgspec.structs.replace(self, completed=event)
            return execution if self.agent.to_events() or execution.is_stopped else None
        agent = self.agent.apply_event(unnest(event)[1])
        return self if agent is self.agent else msgspec.structs.replace(self, agent=agent)

    @property
    def is_stopped(self) -> bool:
        """Whether an operator cut off the stream before the tool finished on its own."""
        error = self.completed and self.completed.error
        return self.started is not None and error is not None and error.reason == "cancelled"

    @property
    def is_running(self) -> bool:
        return self.started is not None and (self.completed is None or self.is_stopped)

    def to_events(self, id: str) -> list[Event]:
        nested = [nest(id, event) for event in self.agent.to_events()]
        return [event for event in (self.started, *nested, self.completed) if event is not None]


Executions = Mapping[str, Execution]


def execute(
    executions: Executions, event: Nested | ToolExecutionStarted | ToolExecutionCompleted, start: StreamCollector
) -> Executions:
    """Return `executions` updated with `event`. A new agent begins in the state `start`."""
    id = event.path[0] if isinstance(event, Nested) else event.id
    before = executions.get(id)
    execution = before or Execution(start)
    after = execution.after(event)
    if after is before or after is execution:
        return executions
    if after is None:
        return {other: entry for other, entry in executions.items() if other != id}
    return {**executions, id: after}


def unfold_executions(executions: Executions) -> list[Event]:
    return [event for id, execution in executions.items() for event in execution.to_events(id)]


def innermost(event: Event) -> Event:
    return event.event if type(event) is Nested else event


def unnest(event: Nested) -> tuple[str, Event]:
    """Return the id of the outermost tool call, and the event as it was emitted by that call's agent."""
    id, *path = event.path
    return id, Nested(tuple(path), event.event) if path else event.event


def nest(id: str, event: Event) -> Nested:
    """Wrap an agent's event in a `Nested` that names the tool call `id`."""
    return Nested((id, *event.path), event.event) if type(event) is Nested else Nested((id,), event)


_WAITING = ("approval", "manual_tool_calls")

CALLS = ("manual_tool_calls", "approval_tool_calls")
"""The metadata keys that list the tool calls that are waiting for the caller."""


def is_waiting(result: ChatResult) -> bool:
    """Return whether the chat is waiting for an answer from the caller."""
    return bool(result.pending_tool_calls) or result.pending_question is not None


def agent_usage(executions: Executions) -> Usage:
    """Return the total usage of all the steps that agents have completed."""
    agents = [execution.agent for execution in executions.values()]
    steps = sum((step.usage for agent in agents for step in agent.steps), Usage())
    return sum((agent_usage(agent.executions) for agent in agents), steps)


def with_answers_so_far(thread: Thread, state: StreamCollector) -> Thread:
    """Return `thread` with the results that have arrived for its open calls.

    The steps that an open agent has completed are added to that agent's thread. A tool that was stopped may already
    have acted. Its call gets a result too, so that an approval cannot run the tool a second time.
    """
    agents = open_agents(thread)
    threads = {id: agents[id] for id in agents.keys() & state.executions.keys()}
    for id, resumed in threads.items():
        agent = state.executions[id].agent
        threads[id] = with_answers_so_far(agent.thread or resumed, agent)
    ids = {call.id for call in unanswered(thread)}
    stopped = [id for id in ids - threads.keys() if id in state.executions and state.executions[id].is_running]
    results = {id: tool_result(id, {"error": STOPPED}) for id in stopped}
    results |= {id: result for result in state.tool_results if (id := result.tool_call_id or "") in ids}
    return with_results(with_open_agents(thread, threads), results)


def with_agents(step: StepResult, executions: Executions) -> StepResult:
    """Return `step` with the usage of its agents added.

    If agents are waiting for the caller, their pending tool calls and their first question are also added.
    """
    if not executions:
        return step
    step = replace(step, agent_usage=agent_usage(executions))
    ended = {id: execution.agent.chat_result for id, execution in executions.items()}
    results = ((call.id, ended.get(call.id)) for call in unanswered(step.thread))
    waiting = {id: result for id, result in results if result is not None and is_waiting(result)}
    return _halt_for(step, waiting) if waiting else step


def _halt_for(step: StepResult, waiting: Mapping[str, ChatResult]) -> StepResult:
    thread = with_open_agents(step.thread, {id: result.thread for id, result in waiting.items()})
    nested, own = _waiting_metadata(waiting), step.metadata
    if "pending_question" in nested and own.get("halted_reason") == "ask_user":
        # The step's own question must be the last message in the thread.
        thread += question(own["pending_question"], own["pending_tool_call_id"], own)
        return replace(step, thread=thread, metadata=joined(nested, own))
    return replace(step, thread=thread, metadata=joined(own, nested))


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings of metadata. The values in `first` win, but the lists of waiting calls are joined."""
    calls = {name: (*first[name], *second[name]) for name in CALLS if name in first and name in second}
    return {**second, **first, **calls}


def _waiting_metadata(waiting: Mapping[str, ChatResult]) -> dict[str, Any]:
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


AWAITING_USER = "<awaiting user response>"
"""The result of a call that is waiting for the user."""

PAUSE = "pause_turn"
"""The raw finish reason of a paused message."""

STEERED = "steered"
"""The raw finish reason of a response that the user cut short.

If rxllm cut it, it has the metadata ``cut``. OpenAI gives this reason to a response that it ends between two items.
"""

VETOED = "vetoed"
"""The raw finish reason of a response that a tool cut short while the model was still writing the tool's arguments."""


def answer(response: Response[Any]) -> tuple[Message, ...]:
    """Return the messages that `response` adds to its thread.

    Calls that will never have a result are removed. If rxllm cut the response short, signed parts are removed too.
    """
    message = response.message
    if message is None:
        return ()
    if response.raw_finish_reason == STEERED and response.metadata.get("cut"):
        parts = (unsigned(part) for part in message.parts)
        message = replace(message, content=content_of(tuple(part for part in parts if part is not None)))
    kept = tuple(call for call in message.tool_calls if is_server(call)) + response.tool_calls
    kept = kept if response.finish_reason == "tool_calls" else tuple(call for call in kept if is_server(call))
    if kept == message.tool_calls and response.raw_finish_reason != VETOED:
        return (message,) if message.content or kept else ()
    ids = {call.id for call in kept}
    calls = tuple(without_cut_text(call) for call in message.tool_calls if call.id in ids)
    parts = tuple(part for part in message.parts if not isinstance(part, ToolCallPart) or part.id in ids)
    content = content_of(parts)
    return (replace(message, content=content, tool_calls=calls),) if content or calls else ()


def without_cut_text(call: ToolCall) -> ToolCall:
    """Return `call` without its argument text if a veto cut the text off. Providers reject text that is not JSON."""
    return replace(call, raw_arguments=None) if call.metadata.get("vetoed") else call


def unsigned(part: Part) -> Part | None:
    """Return `part` without signed or opaque data, which providers reject unless it is complete.

    Return None if nothing is left.
    """
    match part:
        case ToolCallPart() | ProviderPart():
            return None
        case ThinkingPart(text=text):
            return ThinkingPart(text) if text else None
        case _:
            return part


def is_unfinished(response: Response[Any]) -> bool:
    """Return whether the model is waiting for tool results or has paused its message."""
    waits = response.finish_reason == "tool_calls" and bool(response.tool_calls)
    return waits or response.raw_finish_reason == PAUSE


def tool_message(event: Event) -> Message | None:
    """Return the message that `event` adds to the thread, or None if `event` is not the outcome of a tool."""
    match event:
        case ToolResultEncoded():
            return Message("tool", event.parts or event.content, tool_call_id=event.id)
        case ToolHalt():
            content = event.content if event.content is not None else str(event.result)
            return Message("tool", event.parts or content, tool_call_id=event.tool_call_id)
        case AskUserRequested():
            return Message("tool", AWAITING_USER, tool_call_id=event.tool_call_id)
        case _:
            return None


def halted_by(error: LLMError) -> str:
    """Return the `halted_reason` of a failed chat."""
    return "budget" if error.reason == "budget_exceeded" else "error"


def halt_metadata(halt: ToolHalt | AskUserRequested | None) -> dict[str, Any]:
    """Return the metadata for a step in which `halt` stopped the chat."""
    match halt:
        case None:
            return {}
        case AskUserRequested():
            return {
                "halted_reason": "ask_user",
                "pending_tool_call_id": halt.tool_call_id,
                "pending_question": halt.question,
                "ask_user_opts": dict(halt.opts),
            }
        case ToolHalt(reason="tool_error"):
            return {"halted_reason": "tool_error", "halt_tool_call_id": halt.tool_call_id, **halt.metadata}
        case ToolHalt():
            return {
                "halted_reason": halt.reason,
                "halt_tool_call_id": halt.tool_call_id,
                "halt_result": halt.result,
                **halt.metadata,
            }


def is_server(call: ToolCall) -> bool:
    """Return whether the provider runs this call itself."""
    return bool(call.metadata.get("server"))


def is_hosted(call: ToolCall) -> bool:
    """Return whether the provider runs this call once the caller has approved it."""
    return bool(call.metadata.get("hosted"))


FALLBACK = "fallback"
"""The type of the part in which another model takes over from one that refused. Anthropic's server adds it."""


def pending_calls(message: Message) -> tuple[ToolCall, ...]:
    """Return the calls that the client must run. The calls of a model that refused are not among them."""
    calls = tuple(filter(is_pending, message.tool_calls))
    if not calls or isinstance(message.content, str):
        return calls
    refused: set[str] = set()
    ids: set[str] = set()
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            ids.add(part.id)
        elif isinstance(part, ProviderPart) and part.data.get("type") == FALLBACK:
            refused |= ids
    return tuple(call for call in calls if call.id not in refused)


def is_pending(call: ToolCall) -> bool:
    """Return whether the client must run this call."""
    return not is_server(call) and not is_incomplete(call)


def is_incomplete(call: ToolCall) -> bool:
    """Return whether the stream ended before the call was complete.

    A vetoed call has a result, so it counts as complete.
    """
    return call.metadata.get("error") == "incomplete" and not call.metadata.get("vetoed")
