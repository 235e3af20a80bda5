"""Complete the step that a chat halted in: its tool calls are answered, run or denied, then ``StepCompleted`` follows.

====================================  ==================================================================================
an unanswered tool call               is
====================================  ==================================================================================
with a result                         answered by it: ``ToolResultEncoded``
approved                              run, once: ``ToolExecutionStarted``, ..., as by ``run_tools``
approved with other arguments         the same, with these; they are checked before any tool runs
denied                                a ``ToolError("denied")``, passed to the model by ``on_tool_error``
of an approval tool, with `approve`   put to ``approve``, as in a chat that does not halt; it may stay open
of an agent that has halted           gone on with: the agent's chat gets the answers to what waits in it
anything else                         ``EngineError("missing_tool_results")``, before any tool runs
====================================  ==================================================================================

The step's response is what the thread holds of it. Its usage is empty, since the step that halted has reported it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from reactivex import Observable, abc, from_iterable

from rxllm.collector import StreamCollector, halt_metadata, is_server
from rxllm.events import Event, StepCompleted, ToolResultEncoded
from rxllm.operators import lift
from rxllm.pipelines._agent_setup import agent_settings
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._options import request_id
from rxllm.pipelines._request import unanswered_calls
from rxllm.runtime import Bounded, Question, Scope, Stream, clock, conclude, current_scope, fail
from rxllm.tools import AgentTool, Approval, ToolSettings, WaitingCalls, edited, execution, failed, is_halting
from rxllm.values import (
    EngineError,
    Message,
    Response,
    StepResult,
    Thread,
    Tool,
    ToolCall,
    ValidationError,
    denied,
    listed,
    unanswered,
    user,
    with_results,
)
from rxllm.values._agents import nested_call, nested_id, open_agents, open_ids, open_questions, with_answer
from rxllm.values.argument_checks import invalid_option, must_be


class HaltedStep(msgspec.Struct, frozen=True):
    """What is open in `thread`: the `calls` without an answer, and the `question` to the user that ends it."""

    thread: Thread
    calls: tuple[ToolCall, ...]
    question: Message | None

    @classmethod
    def of(cls, thread: Thread) -> HaltedStep | None:
        """Return the step to complete, or None if nothing is open."""
        last = thread.last
        question = last if last is not None and last.metadata.get("ask_user") else None
        calls = unanswered(thread)
        return cls(thread if question is None else thread[:-1], calls, question) if calls or question else None

    def completed(self, state: StreamCollector, waiting: WaitingCalls) -> StepResult:
        """Return the step, with the results that `state` has collected, and the calls that still wait."""
        thread = with_results(self.thread, {result.tool_call_id or "": result for result in state.tool_results})
        calling = (message for message in reversed(thread.messages) if not all(map(is_server, message.tool_calls)))
        message = next(calling, Message("assistant"))
        calls = tuple(call for call in message.tool_calls if not is_server(call))
        ids = {call.id for call in calls}
        response = Response[Any](message, message.text, calls, "tool_calls")
        results = tuple(result for result in thread if result.role == "tool" and result.tool_call_id in ids)
        metadata = self._question_metadata() or halt_metadata(state.halt)
        done = bool(metadata)
        metadata |= waiting.of(self.calls)
        return state.with_agents(StepResult(thread, response, results, done=done, metadata=metadata))

    @property
    def agents(self) -> dict[str, Thread]:
        """The threads of the agents among the calls, by the ids of these."""
        return open_agents(self.thread)

    def _question_metadata(self) -> dict[str, Any]:
        if self.question is None:
            return {}
        metadata = self.question.metadata
        return {
            "halted_reason": "ask_user",
            "pending_question": self.question.text,
            "pending_tool_call_id": metadata.get("tool_call_id"),
            "ask_user_opts": metadata.get("ask_user_opts", {}),
        }


class Answers(msgspec.Struct, frozen=True):
    """A caller's answers by the ids of tool calls."""

    approvals: Mapping[str, Approval]
    results: Mapping[str, Any]

    def check(self, halted: HaltedStep | None, settings: ToolSettings) -> None:
        """Raise unless each call of the step, and nothing else, has an answer or is left to ``approve``."""
        calls, agents = (halted.calls, halted.agents) if halted else ((), {})
        self._refuse_unknown(calls, agents)
        waiting = list(self._waiting(calls, agents, settings, lambda call: call))
        missing = [outer for outer, call, answers, settings in waiting if not answers._covers(call, settings)]
        if missing:
            names = [call.name for call in missing]
            remedy = "give each a result or, if its tool runs here, an approval"
            raise unanswered_calls(missing, remedy, tool_names=names)
        for outer, call, answers, settings in waiting:
            verdict = answers.approvals.get(call.id)
            if call.id not in answers.results and (verdict is True or isinstance(verdict, Mapping)):
                answers._edited_call(answers._approved_tool(call, settings, outer.id), call, outer.id)

    def replied(self, thread: Thread) -> tuple[Thread, Answers]:
        """Return `thread` with the answers to questions of the user, also of agents, and the other answers."""
        replies = {id: self.results[id] for id in open_questions(thread) if id in self.results}
        known = Counter(open_ids(thread))
        for id, reply in replies.items():
            if known[id] > 1:
                raise invalid_option(("results", id), _AMBIGUOUS)
            if not isinstance(reply, str):
                raise invalid_option(("results", id), must_be("text, since it answers a question", reply))
            thread = with_answer(thread, id, user(reply))
        results = {id: result for id, result in self.results.items() if id not in replies}
        return thread, Answers(self.approvals, results)

    def _waiting(
        self,
        calls: tuple[ToolCall, ...],
        agents: Mapping[str, Thread],
        settings: ToolSettings,
        outside: Callable[[ToolCall], ToolCall],
    ) -> Iterator[tuple[ToolCall, ToolCall, Answers, ToolSettings]]:
        """Yield each call that needs an answer, at any depth: as the caller sees it, and where it is made."""
        for call in calls:
            if call.id not in agents or self._decides(call):
                yield outside(call), call, self, settings
            elif (inner := HaltedStep.of(agents[call.id])) is not None:
                below = agent_settings(self._agent(call, settings), settings)
                name = partial(_named, outside, call.id)
                yield from self._within(call, inner.thread)._waiting(inner.calls, inner.agents, below, name)

    def _within(self, call: ToolCall, agent: Thread) -> Answers:
        """Return the answers to what waits in the agent of `call`."""
        ids = {nested_id(call.id, id): id for id in open_ids(agent)}
        approvals = {ids[id]: approval for id, approval in self.approvals.items() if id in ids}
        return Answers(approvals, {ids[id]: result for id, result in self.results.items() if id in ids})

    def _decides(self, call: ToolCall) -> bool:
        """Whether there is an answer to the call itself, in place of answers to what waits in its agent."""
        return call.id in self.results or call.id in self.approvals

    def _agent(self, call: ToolCall, settings: ToolSettings) -> AgentTool:
        tool = settings.tools_by_name.get(call.name)
        if isinstance(tool, AgentTool):
            return tool
        message = f"the agent of the tool call {call.id} waits for answers, but no tool {call.name!r} is an agent"
        raise EngineError("unknown_tool", message, metadata={"tool_name": call.name})

    def outcome(
        self,
        call: ToolCall,
        settings: ToolSettings,
        question: Question,
        scope: Scope,
        agent: Thread | None = None,
    ) -> Observable[Event]:
        """Return the events that follow from the answer to `call`, or from those to what waits in its `agent`."""
        if agent is not None and not self._decides(call):
            tool = replace(self._agent(call, settings), approval=False)
            return execution(tool, call, settings, question, scope, resumed=(agent, self._within(call, agent)))
        if call.id in self.results:
            return from_iterable([ToolResultEncoded(call.id, settings.encode(self.results[call.id], call))])
        verdict = self.approvals.get(call.id)
        if _is_denial(verdict):
            return from_iterable(failed(denied(call, verdict), call, settings))
        tool = self._approved_tool(call, settings, call.id)
        tool = replace(tool, approval=tool.approval and verdict is None)
        return execution(tool, call, settings, question, scope, self._edited_call(tool, call, call.id))

    def _edited_call(self, tool: Tool, call: ToolCall, id: str) -> ToolCall | None:
        """Return `call`, which the caller knows by `id`, with the arguments of its approval, if there are any."""
        verdict = self.approvals.get(call.id)
        return edited(tool, call, verdict, "approvals", id) if isinstance(verdict, Mapping) else None

    def _covers(self, call: ToolCall, settings: ToolSettings) -> bool:
        tool = settings.tools_by_name.get(call.name)
        asks = tool is not None and tool.approval and not tool.manual and settings.approve is not None
        return call.id in self.results or call.id in self.approvals or asks

    def _approved_tool(self, call: ToolCall, settings: ToolSettings, id: str) -> Tool:
        tool = settings.tools_by_name.get(call.name)
        if tool is None:
            message = f"the tool call {id} is approved, but there is no tool {call.name!r} to run"
            raise EngineError("unknown_tool", message, metadata={"tool_name": call.name})
        if tool.manual:
            fault = f"is a call of the manual tool {call.name!r}, which is not run here; pass its result in results"
            raise invalid_option(("approvals", id), fault)
        return tool

    def _refuse_unknown(self, calls: tuple[ToolCall, ...], agents: Mapping[str, Thread]) -> None:
        inside = [nested_id(id, inner) for id, agent in agents.items() for inner in _open_call_ids(agent)]
        known = Counter([*(call.id for call in calls), *inside])
        fault = f"is not the id of an unanswered tool call; those are: {listed(known)}"
        answers: dict[str, Mapping[str, Any]] = {"approvals": self.approvals, "results": self.results}
        faults = [((name, id), fault) for name, by_id in answers.items() for id in by_id if id not in known]
        faults += [(("approvals", id), "has a result too") for id in self.approvals if id in self.results]
        faults += [((name, id), _AMBIGUOUS) for name, by_id in answers.items() for id in by_id if known[id] > 1]
        begun = (id for id, approval in self.approvals.items() if id in agents and not _is_denial(approval))
        faults += [(("approvals", id), _BEGUN) for id in begun]
        if faults:
            raise ValidationError("invalid_option", errors=faults)


def completing(setup: Setup, halted: HaltedStep, answers: Answers, settings: ToolSettings) -> Stream[Event]:
    """Return the events that follow from the answers, and one ``StepCompleted``, last."""

    def make() -> Stream[Event]:
        question, scope = Question(), current_scope.get()
        setup.ask(question, halted.thread, request_id(setup.options))
        agents = halted.agents
        outcomes = [answers.outcome(call, settings, question, scope, agents.get(call.id)) for call in halted.calls]
        return _merged(outcomes, settings.concurrency(len(outcomes)))

    return Deferred(make).pipe(lift(lambda: _Completing(halted)))


_BEGUN = "is the call of an agent that has begun: answer what waits in it, or deny the call with False"
_AMBIGUOUS = "is the id of more than one tool call that waits, since ids have a '/'; pass approve=... to decide"


def _is_denial(approval: object) -> bool:
    return approval is False or isinstance(approval, str)


def _open_call_ids(thread: Thread) -> list[str]:
    questions = set(open_questions(thread))
    return [id for id in open_ids(thread) if id not in questions]


def _named(outside: Callable[[ToolCall], ToolCall], id: str, call: ToolCall) -> ToolCall:
    return outside(nested_call(id, call))


class _Completing:
    def __init__(self, halted: HaltedStep) -> None:
        self._halted = halted
        self._state = StreamCollector()
        self._waiting = WaitingCalls()

    def feed(self, event: Event) -> Iterator[Event]:
        self._state = self._state.apply_event(event)
        self._waiting.note(event)
        yield event

    def close(self) -> Iterable[Event]:
        return [StepCompleted(self._halted.completed(self._state, self._waiting))]


def _merged(sources: Iterable[Observable[Event]], limit: int) -> Stream[Event]:
    """Merge `sources`, `limit` at a time; the events that halt the chat come last, in the order of the calls."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        halts: dict[int, Event] = {}

        def receive(index: int, event: Event) -> None:
            if is_halting(event):
                halts[index] = event
                return
            try:
                observer.on_next(event)
            except BaseException as error:  # a subscriber's, which nobody above would deliver
                fail(observer, error)

        def finish() -> None:
            conclude(observer, [halts[index] for index in sorted(halts)])

        def run(_: abc.SchedulerBase, __: object = None) -> abc.DisposableBase:
            def end(index: int, error: Exception | None) -> None:
                if error is not None:  # of the caller's code: the other tools are not waited for
                    running.dispose()
                    observer.on_error(error)

            running = Bounded(sources, limit, receive, end, finish, observer.on_error)
            running.start(scheduler)
            return running

        # One hop to the loop of the call, where everything else happens.
        return clock(scheduler).schedule(run)

    return Stream(subscribe)
