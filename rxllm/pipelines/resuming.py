"""resume and stream_resume: continue a halted chat, in this process or another.

====================================  ==================================================================================
an unanswered tool call               is
====================================  ==================================================================================
with a result                         answered with it: ``ToolResultEncoded``
approved                              run, once: ``ToolExecutionStarted``, ..., as by ``run_tools``
approved with other arguments         the same, with these; they are checked before any tool runs
denied                                a ``ToolError("denied")``, passed to the model by ``on_tool_error``
of an approval tool, with `approve`   passed to ``approve``, as in a chat that does not halt; it may stay open
of an agent that has halted           continued: the agent's chat receives the answers to its own pending calls
anything else                         ``EngineError("missing_tool_results")``, before any tool runs
====================================  ==================================================================================

The step's response is rebuilt from the thread. Its usage is empty, since the halted step has already reported it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, Unpack, cast, overload

from msgspec.structs import replace
from reactivex import Observable, abc

from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.engine import Engine
from rxllm.events import NOTHING, Event, StepCompleted
from rxllm.operators import lift
from rxllm.pipelines._generate import ask_functions
from rxllm.pipelines._observers import ChatSpan
from rxllm.pipelines._setup import Input, Setup, as_thread
from rxllm.pipelines.caller_answers import Answers, HaltedStep, agent_ids, agent_setup, is_over
from rxllm.pipelines.options import ChatOptions, PlainChatOptions, chat_options, request_id, set_options, with_options
from rxllm.runtime import Bounded, Deferred, Stream, clock, conclude, current_scope, fail
from rxllm.tools import AgentCall, AgentChat, Approval, ToolSettings, WaitingCalls, is_halting
from rxllm.values import ChatResult, Request, Thread, ValidationError
from rxllm.values.argument_checks import invalid_option, must_be

T = TypeVar("T")


def complete_step(setup: Setup, halted: HaltedStep, answers: Answers, settings: ToolSettings) -> Stream[Event]:
    """Return the events produced by the answers; ``StepCompleted`` is the last."""

    def make() -> Stream[Event]:
        scope, agents = replace(current_scope.get(), request_id=request_id(setup.options)), halted.agents
        outcomes = [answers.outcome(call, settings, halted.thread, scope, agents.get(call.id)) for call in halted.calls]
        return _merge_outcomes(outcomes, settings.concurrency(len(outcomes)))

    return Deferred(make).pipe(lift(lambda: _StepCompleter(halted)))


class _StepCompleter:
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


def _merge_outcomes(sources: Iterable[Observable[Event]], limit: int) -> Stream[Event]:
    """Merge `sources`, `limit` at a time; the events that halt the chat are emitted last, in the order of the calls."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        halts: dict[int, Event] = {}

        def receive(index: int, event: Event) -> None:
            if is_halting(event):
                halts[index] = event
                return
            try:
                observer.on_next(event)
            except BaseException as error:  # the subscriber raised, and no caller would report it
                fail(observer, error)

        def finish() -> None:
            conclude(observer, [halts[index] for index in sorted(halts)])

        def run(_: abc.SchedulerBase, __: object = None) -> abc.DisposableBase:
            def end(index: int, error: Exception | None) -> None:
                if error is not None:  # the caller's code raised: do not wait for the other tools
                    running.dispose()
                    observer.on_error(error)

            running = Bounded(sources, limit, receive, end, finish, observer.on_error)
            running.start(scheduler)
            return running

        # Hop to the call's event loop, where everything else runs.
        return clock(scheduler).schedule(run)

    return Stream(subscribe)


@with_options(ChatOptions)
def stream_resume(
    engine: Engine | str | Any,
    thread: Input,
    *,
    approvals: Mapping[str, Approval] | None = None,
    results: Mapping[str, str | Mapping[str, Any]] | None = None,
    **opts: Unpack[ChatOptions],
) -> Stream[Event]:
    """Return the events of a halted chat that continues; ``ChatCompleted`` is the last. See `resume`.

    The events of the tools that run now are first, then the halted step's ``StepCompleted``, then the model's events.
    """
    setup, chat, answers = Setup.of(engine, ChatOptions, opts), thread, _answers(approvals, results)
    thread = as_thread(chat)
    _check(setup, chat, thread, answers)
    return setup.returned_by("stream_resume", setup.drop_hidden(resumed_events(setup, thread, answers)))


def unchecked_resume(
    engine: Any, thread: Thread, approvals: Any, results: Any, opts: Mapping[str, Any]
) -> Stream[Event]:
    """Return the events of `stream_resume`; the answers are checked at each subscription, not at the call."""
    setup = Setup.of(engine, ChatOptions, opts)
    return setup.drop_hidden(resumed_events(setup, thread, _answers(approvals, results)))


@overload
def resume(
    engine: Engine | str | Any,
    thread: Input,
    *,
    approvals: Mapping[str, Approval] | None = None,
    results: Mapping[str, str | Mapping[str, Any]] | None = None,
    response_format: type[T],
    **opts: Unpack[PlainChatOptions],
) -> Stream[ChatResult[T]]: ...
@overload
def resume(
    engine: Engine | str | Any,
    thread: Input,
    *,
    approvals: Mapping[str, Approval] | None = None,
    results: Mapping[str, str | Mapping[str, Any]] | None = None,
    **opts: Unpack[ChatOptions],
) -> Stream[ChatResult]: ...
@with_options(ChatOptions)
def resume(
    engine: Engine | str | Any,
    thread: Input,
    *,
    approvals: Mapping[str, Approval] | None = None,
    results: Mapping[str, str | Mapping[str, Any]] | None = None,
    **opts: Any,
) -> Stream[ChatResult[Any]]:
    """Return the result of a halted chat that continues: the fold of `stream_resume`.

    >>> from rxllm import Fake, ToolCall, chat, tool
    >>> @tool(approval=True)
    ... def pay(amount: int) -> str: return f"paid {amount}"
    >>> model = Fake(ToolCall("c0", "pay", {"amount": 5}), "Done.")
    >>> halted = chat(model, "Pay 5.", tools=[pay]).run()
    >>> halted.halted_reason, resume(model, halted, approvals={"c0": True}, tools=[pay]).run().output_text
    ('approval', 'Done.')

    `thread` may be the halted chat's `ChatResult`, even one read from JSON. Every unanswered tool call needs an answer
    under its id: a result, or an approval. An approval is True (the tool runs, once per subscription), a mapping (the
    tool runs with these arguments instead of the model's, which the thread keeps), or False or a reason to deny the
    call (the model receives a ``ToolError("denied")``). With the option ``approve``, calls to approval tools may be
    left to that function. A call that is pending inside an agent is answered under the id that it has in the result,
    such as ``"c1/c2"``, and the agent continues. A question to the user is answered in `results`, with text or with a
    mapping for a form, under the id of the tool call that asks it; without an answer it stays open.

    The first of the result's `steps` is the halted step, now complete. It calls no model, so it does not count towards
    ``max_turns`` and its usage is empty. If the model fails once tools have run, the failure is the result's `error`,
    so the results of the tools are not lost. A chat that halted without unanswered calls, for example at ``max_turns``,
    calls the model; a chat that ends with the model's answer is refused.

    Raises at once ``EngineError("missing_tool_results")``, which names the unanswered calls, and
    ``ValidationError("invalid_option")`` for an id that no unanswered call has, for arguments that do not fit their
    tool, and for a chat that has nothing to resume.
    """
    setup, chat, answers = Setup.of(engine, ChatOptions, opts), thread, _answers(approvals, results)
    thread = as_thread(chat)
    _check(setup, chat, thread, answers)
    events = resumed_events(setup, thread, answers)
    to_result = ops.to_chat_result(parse=setup.response_format(Request()))
    return setup.returned_by("resume", events.pipe(to_result), ChatResult)


def resumed_events(setup: Setup, thread: Thread, answers: Answers) -> Stream[Event]:
    """Return the events of the halted chat in `thread` as it continues with these `answers`."""
    until_halt = chat_options(setup.options)
    thread, others = answers.replied(thread)

    def make() -> Stream[Event]:
        ask, finalize = ask_functions(setup, thread)
        settings = ToolSettings(**setup.tool_options())
        halted = HaltedStep.of(thread)
        others.check(halted, settings)
        halted_step = None if halted is None else complete_step(setup, halted, others, settings)
        first = ask(thread) if halted_step is None else setup.observe_step(halted_step)
        events = first.pipe(ops.repeat_until_halt(ask, finalize=finalize, **until_halt))
        return setup.observe(events, ChatSpan)

    return Deferred(make)


def _check(setup: Setup, chat: Any, thread: Thread, answers: Answers) -> None:
    was_cut = isinstance(chat, ChatResult) and chat.halted_reason != "completed"
    answered, others = answers.replied(thread)
    others.check(HaltedStep.of(answered), ToolSettings(**setup.tool_options()))
    if is_over(answered) and not was_cut:
        remedy = "send a new message with rxllm.chat, or pass the chat as it halted"
        raise invalid_option("thread", f"has nothing to resume: it ends with the model's answer; {remedy}")


def _answers(approvals: Any, results: Any) -> Answers:
    approvals, results = [NOTHING if by_id is None else by_id for by_id in (approvals, results)]
    faults = [
        *_faults("approvals", approvals, "True, False, a reason or a mapping of arguments", bool | str | Mapping),
        *_faults("results", results, "a string or a mapping", str | Mapping),
    ]
    if faults:
        raise ValidationError("invalid_option", errors=faults)
    return Answers(approvals, results)


def _faults(name: str, by_id: Any, expected: str, types: Any) -> list[tuple[tuple[str, ...], str]]:
    if not isinstance(by_id, Mapping):
        return [((name,), must_be("a mapping by the ids of the tool calls", by_id))]
    answers = cast(Mapping[Any, Any], by_id).items()
    return [((name, str(id)), must_be(expected, answer)) for id, answer in answers if not isinstance(answer, types)]


class AgentChats:
    """The ``Chats`` of ``rxllm.tools``."""

    def engine_with(self, engine: Engine, options: Mapping[str, Any]) -> Engine:
        setup = Setup.of(engine, ChatOptions, options)
        return engine.with_params(**set_options(setup.own_options))

    def chat(self, call: AgentCall) -> AgentChat:
        setup = agent_setup(call.tool, call.settings, **agent_ids(call)).traced_by(call.settings.engine)
        thread = call.tool.thread(call.call.arguments) if call.halted is None else call.halted
        events = setup.drop_hidden(resumed_events(setup, thread, call.answers or Answers({}, {})))
        return AgentChat(events, ops.to_chat_result(parse=setup.response_format(Request())))
