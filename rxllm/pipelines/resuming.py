"""Continue a halted chat in this process or another.

====================================  ==================================================================================
unanswered tool call                  outcome
====================================  ==================================================================================
The caller passes a result.           The call is answered with this result (``ToolResultEncoded``).
The caller approves it.               The tool runs once, as in ``run_tools`` (``ToolExecutionStarted`` and so on).
The caller changes its arguments.     The tool runs once with the new arguments, which are checked before any tool runs.
The caller denies it.                 A ``ToolError("denied")`` is handled by ``on_tool_error``. By default, the model
                                      receives the error.
The caller leaves it to `approve`.    ``approve`` decides, as in a chat that has not halted. The call can stay open.
Its agent has halted.                 The agent's chat continues with the answers to its own pending calls.
None of these applies.                An ``EngineError("missing_tool_results")`` is raised before any tool runs.
====================================  ==================================================================================

The halted step's response has empty usage, because its usage has already been reported.
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
    """Return the events that result from the answers. The last event is ``StepCompleted``."""

    def make() -> Stream[Event]:
        scope, agents = replace(current_scope.get(), request_id=request_id(setup.options)), halted.agents
        outcomes = [answers.outcome(call, settings, halted.thread, scope, agents.get(call.id)) for call in halted.calls]
        return _merge_outcomes(outcomes, settings.concurrency)

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


def _merge_outcomes(sources: Iterable[Observable[Event]], limit: float) -> Stream[Event]:
    """Merge `sources`, but emit halting events last, in the order of the calls."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        halts: dict[int, Event] = {}

        def receive(index: int, event: Event) -> None:
            if is_halting(event):
                halts[index] = event
                return
            try:
                observer.on_next(event)
            except BaseException as error:  # the subscriber raised an error, and no caller would report it
                fail(observer, error)

        def finish() -> None:
            conclude(observer, [halts[index] for index in sorted(halts)])

        def run(_: abc.SchedulerBase, __: object = None) -> abc.DisposableBase:
            def end(index: int, error: Exception | None) -> None:
                if error is not None:  # the caller's code raised an error, so stop the other tools
                    running.dispose()
                    observer.on_error(error)

            running = Bounded(sources, limit, receive, end, finish, observer.on_error)
            running.start(scheduler)
            return running

        # Switch to the call's event loop.
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
    """Continue a halted chat, and return its events. See `resume`.

    The stream emits the tools' events, the halted step's ``StepCompleted``, and then the model's events. The last event
    is ``ChatCompleted``.
    """
    setup, chat, answers = Setup.of(engine, ChatOptions, opts), thread, _answers(approvals, results)
    thread = as_thread(chat)
    _check(setup, chat, thread, answers)
    events = resumed_events(setup, thread, answers, setup.response_format(Request()))
    return setup.returned_by("stream_resume", setup.drop_hidden(events))


def unchecked_resume(
    engine: Any, thread: Thread, approvals: Any, results: Any, opts: Mapping[str, Any]
) -> Stream[Event]:
    """Do the same as `stream_resume`, but compare the answers with the pending calls only on subscription.

    A thread that has nothing to resume is not an error here.
    """
    setup = Setup.of(engine, ChatOptions, opts)
    parse = setup.response_format(Request())
    return setup.drop_hidden(resumed_events(setup, thread, _answers(approvals, results), parse))


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
    """Continue a halted chat, and return its result.

    >>> from rxllm import Fake, ToolCall, chat, tool
    >>> @tool(approval=True)
    ... def pay(amount: int) -> str: return f"paid {amount}"
    >>> model = Fake(ToolCall("c0", "pay", {"amount": 5}), "Done.")
    >>> halted = chat(model, "Pay 5.", tools=[pay]).run()
    >>> halted.halted_reason, resume(model, halted, approvals={"c0": True}, tools=[pay]).run().output_text
    ('approval', 'Done.')

    `thread` can be the halted chat's `ChatResult`, even if it was loaded from JSON. Every unanswered tool call needs a
    result or an approval under its id. An approval is one of these values:

    - True: the tool runs, once per subscription.
    - A mapping: the tool runs with these arguments. The thread keeps the model's own arguments.
    - False, or a string with the reason: the call is denied, and the model receives a ``ToolError("denied")``.

    If you do not answer a call to a tool that needs approval, the option ``approve`` decides. A call inside an agent
    has an id such as ``"c1/c2"`` in the halted result. The agent continues once that call has been answered. A reply to
    a question goes into `results`, under the id of the tool call. The reply is a string or, for a form, a mapping. A
    question without a reply stays open.

    The result's first step is the halted step, now complete. It does not count towards ``max_turns``, and its usage is
    empty. If the model fails after tools have run, the result holds the tools' results and an `error`. A chat that
    halted without unanswered calls, for example at ``max_turns``, calls the model immediately. A chat that ends with
    the model's answer cannot be resumed.

    Raises ``EngineError("missing_tool_results")`` if calls are left unanswered. The error names these calls. Raises
    ``ValidationError("invalid_option")`` for an unknown id, for arguments that the tool does not accept, and if there
    is nothing to resume.
    """
    setup, chat, answers = Setup.of(engine, ChatOptions, opts), thread, _answers(approvals, results)
    thread = as_thread(chat)
    _check(setup, chat, thread, answers)
    events = resumed_events(setup, thread, answers)
    to_result = ops.to_chat_result(parse=setup.response_format(Request()))
    return setup.returned_by("resume", events.pipe(to_result), ChatResult)


def resumed_events(setup: Setup, thread: Thread, answers: Answers, parse: Any = None) -> Stream[Event]:
    until_halt = chat_options(setup.options)
    thread, others = answers.replied(thread)

    def make() -> Stream[Event]:
        ask, finalize = ask_functions(setup, thread)
        settings = ToolSettings(**setup.tool_options())
        halted = HaltedStep.of(thread)
        others.check(halted, settings)
        halted_step = None if halted is None else complete_step(setup, halted, others, settings)
        first = ask(thread) if halted_step is None else setup.observe_step(halted_step)
        events = first.pipe(ops.repeat_until_halt(ask, finalize=finalize, parse=parse, **until_halt))
        return setup.observe(events, ChatSpan)

    return Deferred(make)


def _check(setup: Setup, chat: Any, thread: Thread, answers: Answers) -> None:
    was_cut = isinstance(chat, ChatResult) and chat.halted_reason != "completed"
    answered, others = answers.replied(thread)
    others.check(HaltedStep.of(answered), ToolSettings(**setup.tool_options()))
    if is_over(answered) and not was_cut:
        remedy = "send a new message with rxllm.chat, or pass the chat as it was when it halted"
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
        return [((name,), must_be("a mapping whose keys are tool call ids", by_id))]
    answers = cast(Mapping[Any, Any], by_id).items()
    return [((name, str(id)), must_be(expected, answer)) for id, answer in answers if not isinstance(answer, types)]


class AgentChats:
    def engine_with(self, engine: Engine, options: Mapping[str, Any]) -> Engine:
        setup = Setup.of(engine, ChatOptions, options)
        return engine.with_params(**set_options(setup.own_options))

    def chat(self, call: AgentCall) -> AgentChat:
        setup = agent_setup(call.tool, call.settings, **agent_ids(call)).traced_by(call.settings.engine)
        thread = call.tool.thread(call.call.arguments) if call.halted is None else call.halted
        events = setup.drop_hidden(resumed_events(setup, thread, call.answers or Answers({}, {})))
        return AgentChat(events, ops.to_chat_result(parse=setup.response_format(Request())))
