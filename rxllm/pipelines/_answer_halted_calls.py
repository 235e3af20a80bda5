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

from collections.abc import Iterable, Iterator

from reactivex import Observable, abc

from rxllm.collector import StreamCollector
from rxllm.events import Event, StepCompleted
from rxllm.operators import lift
from rxllm.pipelines._answers import Answers
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._halted_step import HaltedStep
from rxllm.pipelines._options import request_id
from rxllm.runtime import Bounded, Question, Stream, clock, conclude, current_scope, fail
from rxllm.tools import ToolSettings, WaitingCalls, is_halting


def completing(setup: Setup, halted: HaltedStep, answers: Answers, settings: ToolSettings) -> Stream[Event]:
    """Return the events that follow from the answers, and one ``StepCompleted``, last."""

    def make() -> Stream[Event]:
        question, scope = Question(), current_scope.get()
        setup.ask(question, halted.thread, request_id(setup.options))
        agents = halted.agents
        outcomes = [answers.outcome(call, settings, question, scope, agents.get(call.id)) for call in halted.calls]
        return _merged(outcomes, settings.concurrency(len(outcomes)))

    return Deferred(make).pipe(lift(lambda: _Completing(halted)))


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
