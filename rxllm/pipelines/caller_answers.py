"""Create events from the answers that the caller gave to tool calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from reactivex import Observable, from_iterable

from rxllm.collector import StreamCollector, halt_metadata, is_server
from rxllm.events import Event, ToolResultEncoded
from rxllm.pipelines._setup import Setup, unanswered_calls
from rxllm.pipelines.options import ChatOptions
from rxllm.runtime import Scope
from rxllm.tools import (
    QUESTION,
    AgentCall,
    AgentTool,
    Approval,
    ToolSettings,
    WaitingCalls,
    denied,
    edited,
    execution,
    failed,
    is_question,
)
from rxllm.values import (
    EngineError,
    Message,
    Response,
    StepResult,
    Thread,
    Tool,
    ToolCall,
    ValidationError,
    listed,
    unanswered,
    user,
    with_results,
)
from rxllm.values.argument_checks import invalid_option
from rxllm.values.json_text import json_text
from rxllm.values.sessions import nested_call, nested_id, open_agents, open_ids, open_questions, with_answer


def is_over(thread: Thread) -> bool:
    """Return True if the model has answered and no tool call or question is still open."""
    last = thread.last
    return last is not None and last.role == "assistant" and HaltedStep.of(thread) is None


class HaltedStep(msgspec.Struct, frozen=True):
    """The unanswered `calls` of a halted chat, and its `question`, if there is one."""

    thread: Thread
    calls: tuple[ToolCall, ...]
    question: Message | None

    @classmethod
    def of(cls, thread: Thread) -> HaltedStep | None:
        """Return the halted step, or None if no tool call or question is still open."""
        last = thread.last
        question = last if last is not None and last.metadata.get("ask_user") else None
        calls = unanswered(thread)
        return cls(thread if question is None else thread[:-1], calls, question) if calls or question else None

    def completed(self, state: StreamCollector, waiting: WaitingCalls) -> StepResult:
        """Return the step's result, including the tool results in `state`."""
        thread = with_results(self.thread, {result.tool_call_id or "": result for result in state.tool_results})
        calling = (message for message in reversed(thread.messages) if not all(map(is_server, message.tool_calls)))
        message = next(calling, Message("assistant"))
        calls = tuple(call for call in message.tool_calls if not is_server(call))
        ids = {call.id for call in calls}
        response = Response[Any](message, message.text, calls, "tool_calls")
        results = tuple(result for result in thread if result.role == "tool" and result.tool_call_id in ids)
        metadata = halt_metadata(state.halt)
        if self.question is not None:
            notes = self.question.metadata
            metadata = {
                "halted_reason": "ask_user",
                "pending_question": self.question.text,
                "pending_tool_call_id": notes.get("tool_call_id"),
                "ask_user_opts": notes.get("ask_user_opts", {}),
            }
        metadata |= waiting.of(self.calls)
        return state.with_agents(StepResult(thread, response, results, done=bool(metadata), metadata=metadata))

    @property
    def agents(self) -> dict[str, Thread]:
        return open_agents(self.thread)


def agent_setup(tool: AgentTool, settings: ToolSettings, **ids: str) -> Setup:
    """Return the setup for an agent's chat.

    If the agent has no `approve` of its own, it uses the step's. Its own context entries override the step's.
    """
    own = Setup.of(tool.engine, ChatOptions, {})
    context = {**settings.context, **own.engine.context, **own.options.get("context", {})}
    inherited: dict[str, Any] = {"context": context, **ids}
    if settings.approve is not None and "approve" not in own.options:
        timeout = own.options.get("approve_timeout", settings.approve_timeout)
        inherited |= {"approve": settings.approve, "approve_timeout": timeout}
    return Setup.of(tool.engine, ChatOptions, inherited)


def agent_ids(call: AgentCall) -> dict[str, str]:
    """Return the options ``request_id`` and ``session_id`` for an agent's chat."""
    ids: dict[str, str] = {}
    if call.request_id is not None:
        ids["request_id"] = f"{call.request_id}/{call.call.id}"
    session_id = call.settings.session_id
    if session_id is not None and not call.tool.engine.params.get("session_id"):
        ids["session_id"] = session_id
    return ids


_BEGUN = (
    "is a call to an agent or tool that has already started; answer the open calls or the question inside it, "
    "or deny this call by passing False"
)
_AMBIGUOUS = "is the id of several pending tool calls, because ids can contain a '/'; pass approve=... instead"


class Answers(msgspec.Struct, frozen=True):
    approvals: Mapping[str, Approval]
    results: Mapping[str, Any]

    def check(self, halted: HaltedStep | None, settings: ToolSettings) -> None:
        """Raise an error if an answer matches no call, or if a call has no answer."""
        calls, agents = (halted.calls, halted.agents) if halted else ((), {})
        self._refuse_unknown(calls, agents)
        waiting = list(self._waiting(calls, agents, settings, lambda call: call))
        missing = [outer for outer, call, answers, settings in waiting if not answers._covers(call, settings)]
        if missing:
            names = [call.name for call in missing]
            remedy = "pass a result for each call, or an approval if its tool runs here"
            raise unanswered_calls(missing, remedy, tool_names=names)
        for outer, call, answers, settings in waiting:
            verdict = answers.approvals.get(call.id)
            if call.id not in answers.results and (verdict is True or isinstance(verdict, Mapping)):
                answers._edited_call(answers._approved_tool(call, settings, outer.id), call, outer.id)

    def replied(self, thread: Thread) -> tuple[Thread, Answers]:
        """Add replies to the questions in `thread`, including questions inside agents.

        Returns the new thread, and the answers that are not replies.
        """
        replies = {id: self.results[id] for id in open_questions(thread) if id in self.results}
        known = Counter(open_ids(thread))
        for id, reply in replies.items():
            if known[id] > 1:
                raise invalid_option(("results", id), _AMBIGUOUS)
            thread = with_answer(thread, id, user(reply if isinstance(reply, str) else json_text(reply)))
        results = {id: result for id, result in self.results.items() if id not in replies}
        return thread, Answers(self.approvals, results)

    def _waiting(
        self,
        calls: tuple[ToolCall, ...],
        agents: Mapping[str, Thread],
        settings: ToolSettings,
        outside: Callable[[ToolCall], ToolCall],
    ) -> Iterator[tuple[ToolCall, ToolCall, Answers, ToolSettings]]:
        """Yield each call that needs an answer, including calls inside agents.

        Each item holds the call in two forms (as the caller sees it, and as it appears in its own chat), along with the
        answers and settings for that chat.
        """
        for call in calls:
            if call.id not in agents or self._decides(call):
                yield outside(call), call, self, settings
            elif (inner := HaltedStep.of(agents[call.id])) is not None:
                tool = self._begun(call, agents[call.id], settings)
                if isinstance(tool, AgentTool):
                    below = ToolSettings(**agent_setup(tool, settings).tool_options())
                    name = partial(_rename_call, outside, call.id)
                    yield from self._within(call, inner.thread)._waiting(inner.calls, inner.agents, below, name)

    def _within(self, call: ToolCall, agent: Thread) -> Answers:
        ids = {nested_id(call.id, id): id for id in open_ids(agent)}
        approvals = {ids[id]: approval for id, approval in self.approvals.items() if id in ids}
        return Answers(approvals, {ids[id]: result for id, result in self.results.items() if id in ids})

    def _decides(self, call: ToolCall) -> bool:
        return call.id in self.results or call.id in self.approvals

    def _calls_again(self, call: ToolCall, agent: Thread) -> bool:
        """Return whether `call` must run again: its tool's question now has a reply, and `call` has been approved."""
        return _is_replied(agent) and call.id in self.approvals and not _is_denial(self.approvals[call.id])

    def _begun(self, call: ToolCall, thread: Thread, settings: ToolSettings) -> Tool:
        """Return the tool that `call` has already started.

        This is either an agent whose chat is `thread`, or a tool whose question is the first message in `thread`.
        """
        tool = settings.tools_by_name.get(call.name)
        if isinstance(tool, AgentTool) or (tool is not None and is_question(thread[0])):
            return tool
        message = (
            f"the tool call {call.id} has started an agent, but there is no agent named {call.name!r}; "
            "pass the agent again in tools=[...]"
        )
        if is_question(thread[0]):
            message = (
                f"the tool call {call.id} has asked the user a question, but there is no tool named {call.name!r}; "
                "pass the tool again in tools=[...]"
            )
        raise EngineError("unknown_tool", message, metadata={"tool_name": call.name})

    def outcome(
        self,
        call: ToolCall,
        settings: ToolSettings,
        thread: Thread,
        scope: Scope,
        agent: Thread | None = None,
    ) -> Observable[Event]:
        """Return the events that result from answering `call`."""
        if agent is not None and (not self._decides(call) or self._calls_again(call, agent)):
            tool = replace(self._begun(call, agent, settings), approval=False)
            edited = self._edited_call(tool, call, call.id)
            return execution(tool, call, settings, thread, scope, edited, (agent, self._within(call, agent)))
        if call.id in self.results:
            return from_iterable([ToolResultEncoded(call.id, *settings.encode(self.results[call.id], call))])
        verdict = self.approvals.get(call.id)
        if _is_denial(verdict):
            return from_iterable(failed(denied(call, verdict), call, settings))
        tool = self._approved_tool(call, settings, call.id)
        tool = replace(tool, approval=tool.approval and verdict is None)
        return execution(tool, call, settings, thread, scope, self._edited_call(tool, call, call.id))

    def _edited_call(self, tool: Tool, call: ToolCall, id: str) -> ToolCall | None:
        """Return `call` with the arguments in its approval, or None if the approval contains no arguments.

        `id` is the call's id as the caller sees it.
        """
        verdict = self.approvals.get(call.id)
        return edited(tool, call, verdict, "approvals", id) if isinstance(verdict, Mapping) else None

    def _covers(self, call: ToolCall, settings: ToolSettings) -> bool:
        tool = settings.tool_of(call)
        asks = tool is not None and tool.approval and not tool.manual and settings.approve is not None
        return call.id in self.results or call.id in self.approvals or asks

    def _approved_tool(self, call: ToolCall, settings: ToolSettings, id: str) -> Tool:
        tool = settings.tool_of(call)
        if tool is None:
            message = f"the tool call {id} is approved, but no tool is named {call.name!r}; pass one in tools=[...]"
            raise EngineError("unknown_tool", message, metadata={"tool_name": call.name})
        if tool.manual:
            fault = f"is a call to the manual tool {call.name!r}, which is not run here; pass its result in results"
            raise invalid_option(("approvals", id), fault)
        return tool

    def _refuse_unknown(self, calls: tuple[ToolCall, ...], agents: Mapping[str, Thread]) -> None:
        inside: list[str] = []
        for id, agent in agents.items():
            questions = set(open_questions(agent))
            inside += [nested_id(id, inner) for inner in open_ids(agent) if inner not in questions]
        known = Counter([*(call.id for call in calls), *inside])
        fault = f"is not the id of an unanswered tool call; the unanswered calls are: {listed(known)}"
        answers: dict[str, Mapping[str, Any]] = {"approvals": self.approvals, "results": self.results}
        faults = [((name, id), fault) for name, by_id in answers.items() for id in by_id if id not in known]
        asking = set(_asking(agents))
        asks = (
            "is the id of a tool call that asked a question; pass the answer as results={{{!r}: ...}}, "
            "or use approvals to deny the call"
        )
        faults += [(("results", id), asks.format(nested_id(id, QUESTION))) for id in self.results if id in asking]
        faults += [(("approvals", id), "also has a result; choose one") for id in self.approvals if id in self.results]
        faults += [((name, id), _AMBIGUOUS) for name, by_id in answers.items() for id in by_id if known[id] > 1]
        approved = (id for id, approval in self.approvals.items() if id in agents and not _is_denial(approval))
        begun = (id for id in approved if not _is_replied(agents[id]))
        faults += [(("approvals", id), _BEGUN) for id in begun]
        if faults:
            raise ValidationError("invalid_option", errors=faults)


def _is_denial(approval: object) -> bool:
    return approval is False or isinstance(approval, str)


def _asking(agents: Mapping[str, Thread]) -> Iterator[str]:
    """Yield the id of each call whose tool is waiting for a reply."""
    for id, agent in agents.items():
        if any(map(is_question, agent.messages[:1])) and not _is_replied(agent):
            yield id
        yield from (nested_id(id, inner) for inner in _asking(open_agents(agent)))


def _is_replied(agent: Thread) -> bool:
    return len(agent) > 1 and is_question(agent[0])


def _rename_call(outside: Callable[[ToolCall], ToolCall], id: str, call: ToolCall) -> ToolCall:
    return outside(nested_call(id, call))
