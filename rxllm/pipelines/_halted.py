"""The step that a chat halted in, completed: its calls are answered, run or denied, and its ``StepCompleted`` follows.

==============================  ====================================================================================
an unanswered call              is
==============================  ====================================================================================
with a result                   answered by it: ``ToolResultEncoded``
approved                        run, once: ``ToolExecutionStarted``, ..., as ``run_tools`` says
denied                          a ``ToolError("denied")``, told to the model by ``on_tool_error``
of an approval tool, where      asked for, as in a chat that does not halt
there is ``approve``
anything else                   ``EngineError("missing_tool_results")``, and nothing has run
==============================  ====================================================================================

The step's response is what the thread holds of it; its usage is empty, for the call that halted has reported it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from reactivex import Observable, abc, from_iterable

from rxllm.collector import StreamCollector, halt_metadata, is_server
from rxllm.events import Event, StepCompleted, ToolResultEncoded
from rxllm.operators import lift
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.runtime import Bounded, Question, Scope, Stream, clock, conclude, current_scope, fail
from rxllm.tools import ToolSettings, execution, failed, is_halting
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
    with_results,
)
from rxllm.values.arguments import invalid_option


class HaltedStep(msgspec.Struct, frozen=True):
    """What of `thread` is still open: the `calls` without an answer, and the `question` to the user that ends it."""

    thread: Thread
    calls: tuple[ToolCall, ...]
    question: Message | None

    @classmethod
    def of(cls, thread: Thread) -> HaltedStep | None:
        """The step to complete; None where nothing is open."""
        last = thread.last
        asking = last if last is not None and last.metadata.get("ask_user") else None
        calls = unanswered(thread)
        return cls(thread if asking is None else thread[:-1], calls, asking) if calls or asking else None

    def completed(self, state: StreamCollector) -> StepResult:
        """The step, with the results that `state` has folded."""
        thread = with_results(self.thread, {result.tool_call_id or "": result for result in state.tool_results})
        turns = (each for each in reversed(thread.messages) if not all(map(is_server, each.tool_calls)))
        turn = next(turns, Message("assistant"))
        calls = tuple(call for call in turn.tool_calls if not is_server(call))
        ids = {call.id for call in calls}
        response = Response[Any](turn, turn.text, calls, "tool_calls")
        results = tuple(each for each in thread if each.role == "tool" and each.tool_call_id in ids)
        metadata = self._asking() or halt_metadata(state.halt)
        return StepResult(thread, response, results, done=bool(metadata), metadata=metadata)

    def _asking(self) -> dict[str, Any]:
        if self.question is None:
            return {}
        asked = {
            "pending_question": self.question.text,
            "pending_tool_call_id": self.question.metadata.get("tool_call_id"),
        }
        return {"halted_reason": "ask_user", **asked}


class Answers(msgspec.Struct, frozen=True):
    """What a caller says of the calls, by their ids: `approvals` are True, False or the reason why not."""

    approvals: Mapping[str, bool | str]
    results: Mapping[str, Any]

    def check(self, calls: tuple[ToolCall, ...], settings: ToolSettings) -> None:
        """Raise a typed error where something is unknown or missing."""
        self._refuse_unknown(calls)
        missing = [call for call in calls if not self._covers(call, settings)]
        if missing:
            raise _missing(missing)
        for call in calls:
            if call.id not in self.results and self.approvals.get(call.id) is True:
                self._approved(call, settings)

    def outcome(self, call: ToolCall, settings: ToolSettings, question: Question, scope: Scope) -> Observable[Event]:
        """What becomes of `call`."""
        if call.id in self.results:
            return from_iterable([ToolResultEncoded(call.id, settings.encode(self.results[call.id], call))])
        verdict = self.approvals.get(call.id)
        if verdict is False or isinstance(verdict, str):
            return from_iterable(failed(denied(call, verdict), call, settings))
        tool = self._approved(call, settings)
        tool = replace(tool, approval=tool.approval and verdict is None)
        return execution(tool, call, settings, question, scope)

    def _covers(self, call: ToolCall, settings: ToolSettings) -> bool:
        tool = settings.tools_by_name.get(call.name)
        asks = tool is not None and tool.approval and not tool.manual and settings.approve is not None
        return call.id in self.results or call.id in self.approvals or asks

    def _approved(self, call: ToolCall, settings: ToolSettings) -> Tool:
        tool = settings.tools_by_name.get(call.name)
        if tool is None:
            message = f"the call {call.id} is approved, and there is no tool {call.name!r} to run"
            raise EngineError("unknown_tool", message, metadata={"tool_name": call.name})
        if tool.manual:
            fault = f"is a call of the manual tool {call.name!r}: it is not run here; give its result in results"
            raise invalid_option(("approvals", call.id), fault)
        return tool

    def _refuse_unknown(self, calls: tuple[ToolCall, ...]) -> None:
        known = {call.id: call for call in calls}
        shown = f"is the id of no unanswered call; those are: {listed(known)}"
        given: dict[str, Mapping[str, Any]] = {"approvals": self.approvals, "results": self.results}
        faults = [((name, id), shown) for name, held in given.items() for id in held if id not in known]
        faults += [(("approvals", id), "has a result too") for id in self.approvals if id in self.results]
        if faults:
            raise ValidationError("invalid_option", errors=faults)


def completing(setup: Setup, halted: HaltedStep, answers: Answers, settings: ToolSettings) -> Stream[Event]:
    """The events of the calls' outcomes, and one ``StepCompleted``, last."""

    def make() -> Stream[Event]:
        question, scope = Question(), current_scope.get()
        setup.ask(question, halted.thread, setup.request_id(scope))
        outcomes = [answers.outcome(call, settings, question, scope) for call in halted.calls]
        return _all(outcomes, settings.concurrency(len(outcomes)))

    return Deferred(make).pipe(lift(lambda: _Completing(halted)))


class _Completing:
    def __init__(self, halted: HaltedStep) -> None:
        self._halted = halted
        self._state = StreamCollector()

    def feed(self, event: Event) -> Iterator[Event]:
        self._state = self._state.apply_event(event)
        yield event

    def close(self) -> Iterable[Event]:
        return [StepCompleted(self._halted.completed(self._state))]


def _all(sources: Iterable[Observable[Event]], limit: int) -> Stream[Event]:
    """All at once; what halts the chat comes last, in the order of the calls."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        halts: dict[int, Event] = {}

        def receive(index: int, event: Event) -> None:
            if is_halting(event):
                halts[index] = event
            else:
                _tell(observer, event)

        def finish() -> None:
            conclude(observer, [halts[index] for index in sorted(halts)])

        def run(_: abc.SchedulerBase, __: object = None) -> abc.DisposableBase:
            running = Bounded(sources, limit, receive, lambda index, error: None, finish, observer.on_error)
            running.start(scheduler)
            return running

        # One hop to the call's own loop, where all the rest happens.
        return clock(scheduler).schedule(run)

    return Stream(subscribe)


def _tell(observer: abc.ObserverBase[Event], event: Event) -> None:
    try:
        observer.on_next(event)
    except BaseException as error:  # a subscriber's: nobody above would deliver it
        fail(observer, error)


def _missing(calls: list[ToolCall]) -> EngineError:
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    message = f"nobody has answered {names}; give each a result, or for a tool that runs here an approval"
    metadata = {"tool_call_ids": [call.id for call in calls], "tool_names": [call.name for call in calls]}
    return EngineError("missing_tool_results", message, metadata=metadata)
