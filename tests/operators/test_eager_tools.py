"""Tools that start while the model is still writing: when they start, what is emitted, and what is dropped."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import reactivex
from reactivex import Observable, Subject, from_iterable
from reactivex.testing import TestScheduler

import rxllm
from rxllm import Engine, Fake, Stream, ToolContext, ValidationError, halt, tool
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import (
    AskUserRequested,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.testing.loopback import DONE, Loopback, Reply, chat_event, chat_finish
from rxllm.testing.marbles import record
from rxllm.values import Message, Tool, ToolCall, ToolError, request_key
from tests.operators.tools import THREAD, contents
from tests.runtime.support import model
from tests.waiting import PATIENCE, pauses, wait_until

RAN: list[str] = []
DISPOSED: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()
    DISPOSED.clear()


def slow(name: str, seconds: float = 3, result: Any = "done", **flags: Any) -> Tool:
    """A tool that takes so many seconds, and notes its runs and its disposals."""

    def run(arguments: Any) -> Observable[Any]:
        RAN.append(name)
        ended = reactivex.timer(seconds).map(lambda _: result)
        return ended.finally_action(lambda: DISPOSED.append(name))

    return tool(name=name, handler=run, **{"eager": True, **flags})


def call(name: str, id: str = "") -> ToolCall:
    return ToolCall(id or name, name, {}, "{}")


def written(event: Event) -> str | None:
    """What matters here, in a few words."""
    match event:
        case TextDelta(delta=text):
            return text
        case ToolExecutionStarted(id=id):
            return f"{id} starts"
        case ToolExecutionCompleted(id=id, error=ToolError(reason=reason)):
            return f"{id} ends: {reason}"
        case ToolExecutionCompleted(id=id):
            return f"{id} ends"
        case ToolResultEncoded(id=id, content=content):
            return f"{id} told {content}"
        case ToolHalt(tool_call_id=id, reason=reason):
            return f"{id} halts: {reason}"
        case AskUserRequested(tool_call_id=id):
            return f"{id} asks"
        case ToolApprovalRequested(id=id):
            return f"{id} waits"
        case MessageCompleted():
            return "end"
        case ErrorEvent(error=error):
            return f"error: {error.reason}"
        case StepRestarted():
            return "restarted"
        case StepCompleted():
            return "step"
        case _:
            return None


def noted(turn: list[Any], tools: list[Tool], *, operators: list[Any] | None = None, **options: Any) -> list[Any]:
    """What a step emits and when, in virtual time; every stream is verified."""
    scheduler = TestScheduler()
    model = Engine(Fake(turn), operators=operators or [])
    step = rxllm.stream_generate(model, THREAD).pipe(ops.run_tools(tools, thread=THREAD, **options), ops.verify())
    notes = record(scheduler, lambda: step, disposed=options.pop("disposed", None))
    assert [kind for _, kind, _ in notes if kind == "error"] == [], notes
    return [(tick, text) for tick, kind, event in notes if kind == "next" and (text := written(event))]


# When they start


def test_an_eager_tool_starts_when_its_call_is_complete() -> None:
    assert noted([call("look"), ("delay", 5), "So. "], [slow("look")]) == [
        (0, "look starts"),
        (3, "look ends"),
        (5, "So. "),
        (5, "end"),
        (5, "look told done"),
        (5, "step"),
    ]


def test_a_tool_that_is_not_declared_waits_for_the_end() -> None:
    assert noted([call("pay"), ("delay", 5)], [slow("pay", eager=False)]) == [
        (5, "end"),
        (5, "pay starts"),
        (8, "pay ends"),
        (8, "pay told done"),
        (8, "step"),
    ]


@pytest.mark.parametrize(
    ("flags", "eager", "starts"),
    [
        ({}, None, 0),
        ({}, True, 0),
        ({}, False, 5),
        ({"eager": False}, True, 5),
        ({"eager": False, "idempotent": True}, None, 5),
        ({"eager": False, "idempotent": True}, True, 0),
        ({"eager": False, "idempotent": True}, False, 5),
        ({"approval": True}, True, 5),
    ],
)
def test_who_starts_early(flags: Any, eager: bool | None, starts: int) -> None:
    notes = noted([call("look"), ("delay", 5)], [slow("look", **flags)], eager=eager, approve=lambda call: True)
    assert (starts, "look starts") in notes
    assert RAN == ["look"]


@pytest.mark.parametrize("options", [{"mode": "manual"}, {}])
def test_a_call_that_is_left_to_the_caller_never_starts(options: Any) -> None:
    flags = {} if options else {"manual": True}
    assert noted([call("look"), ("delay", 5)], [slow("look", **flags)], eager=True, **options) == [
        (5, "end"),
        (5, "step"),
    ]
    assert RAN == []


def test_an_approval_without_an_approver_waits() -> None:
    notes = noted([call("pay"), call("look"), ("delay", 5)], [slow("pay", approval=True), slow("look")])
    assert notes == [
        (0, "look starts"),
        (3, "look ends"),
        (5, "end"),
        (5, "pay waits"),
        (5, "look told done"),
        (5, "step"),
    ]


@pytest.mark.parametrize(
    "broken", [ToolCall("look", "look", {}, '{"x": '), ToolCall("look", "look", {}, "{}", {"server": True})]
)
def test_a_broken_call_and_the_providers_own_do_not_start_early(broken: ToolCall) -> None:
    notes = noted([broken, ("delay", 5)], [slow("look")])
    assert [tick for tick, text in notes if "starts" in text] in ([], [5])
    assert RAN == []


def test_a_source_on_another_thread_runs_its_tools_after_the_response() -> None:
    """Its events could overlap with the tool's."""
    seen: list[Event] = []
    over = threading.Event()
    source: Subject[Event] = Subject()
    source.pipe(
        ops.run_tools([tool(name="look", handler=lambda arguments: "done", eager=True)], thread=THREAD)
    ).subscribe(seen.append, on_completed=over.set)
    source.on_next(MessageStarted(Message("assistant")))
    source.on_next(ToolCallStarted("look", "look"))
    source.on_next(ToolCallCompleted("look", "look", {}, ""))
    source.on_next(MessageCompleted(Message("assistant"), "tool_calls"))
    assert not any(isinstance(event, ToolExecutionStarted) for event in seen)
    source.on_completed()
    wait_until(over.is_set)
    assert isinstance(seen[-1], StepCompleted)
    assert contents(seen[-1].result) == {"look": "done"}


def test_a_model_can_wait_for_its_tool() -> None:
    ended = asyncio.Event()

    async def look(arguments: Any) -> str:
        return "done"

    async def model(request: Any, call: Any) -> Any:
        yield ToolCallStarted("look", "look")
        yield ToolCallCompleted("look", "look", {}, "")
        await ended.wait()  # the model waits for the tool
        yield TextDelta("So.")

    def see(event: Event) -> None:
        if isinstance(event, ToolExecutionCompleted):
            ended.set()

    events = rxllm.stream_step(model, "Hi", tools=[tool(name="look", handler=look, eager=True)], timeout=PATIENCE)
    step = events.pipe(ops.tap(see), ops.verify(), ops.to_step_result()).run()
    assert (step.response.output_text, contents(step)) == ("So.", {"look": "done"})


# In which order


def test_results_follow_the_response_in_the_order_of_the_calls() -> None:
    tools = [slow("a", 4), slow("b", 1), slow("c", 9), slow("d", 1, eager=False)]
    notes = noted([call("a"), call("b"), ("delay", 1), call("c"), call("d"), ("delay", 5)], tools)
    assert notes == [
        (0, "a starts"),
        (0, "b starts"),
        (1, "b ends"),
        (1, "c starts"),
        (4, "a ends"),
        (6, "end"),
        (6, "a told done"),
        (6, "b told done"),
        (6, "d starts"),
        (7, "d ends"),
        (7, "d told done"),
        (10, "c ends"),
        (10, "c told done"),
        (10, "step"),
    ]


def test_no_more_run_at_once_than_allowed() -> None:
    tools = [slow("a"), slow("b"), slow("c", eager=False), slow("d")]
    notes = noted([call("a"), call("b"), call("c"), call("d"), ("delay", 4)], tools, max_concurrency=1)
    assert [note for note in notes if "starts" in note[1]] == [
        (0, "a starts"),
        (3, "b starts"),
        (6, "d starts"),
        (9, "c starts"),
    ]


def test_a_halt_waits_for_all_tools_and_the_earliest_call_wins() -> None:
    tools = [slow("a", 9, halt("late")), slow("b", 1, halt("early")), slow("c", 1, eager=False)]
    notes = noted([call("a"), call("b"), call("c"), ("delay", 5)], tools)
    assert notes[-4:] == [(9, "a ends"), (9, "a halts: late"), (9, "b halts: early"), (9, "step")]
    assert "c told done" in [text for _, text in notes]


def test_its_time_limit_counts_from_its_start() -> None:
    notes = noted([call("a"), ("delay", 5)], [slow("a", 60)], tool_timeout=2)
    assert notes[:2] == [(0, "a starts"), (2, "a ends: timeout")]


def test_progress_and_agents_are_live() -> None:
    def run(arguments: Any, context: ToolContext) -> str:
        context.progress("half")
        return "done"

    agent = dataclasses.replace(Engine(Fake("Inner.")).as_tool(name="agent"), eager=True)
    model = Fake([call("run"), ToolCall("agent", "agent", {"prompt": "Go"}), ("delay", 5), "Outer."])
    events = rxllm.stream_step(model, "Hi", tools=[tool(name="run", handler=run, eager=True), agent])
    kinds = [
        type(event) for _, kind, event in record(TestScheduler(), lambda: events.pipe(ops.verify())) if kind == "next"
    ]
    ended = kinds.index(MessageCompleted)
    assert kinds.index(ToolProgress) < ended
    assert kinds.index(Nested) < ended
    assert ToolResultEncoded not in kinds[:ended]


def test_an_agent_starts_early_only_if_it_is_declared() -> None:
    agent = Engine(Fake("Inner.")).as_tool(name="agent")
    model = [ToolCall("agent", "agent", {"prompt": "Go"}), ("delay", 5)]
    assert (5, "agent starts") in noted(model, [agent], eager=True)
    assert (0, "agent starts") in noted(model, [dataclasses.replace(agent, eager=True)])


# What is dropped

FAILS = ("error", "provider_unavailable")


def test_a_failed_response_stops_its_tools_and_drops_their_results() -> None:
    notes = noted([call("a"), call("b"), ("delay", 2), FAILS], [slow("a", 1), slow("b", 5)])
    assert notes == [
        (0, "a starts"),
        (0, "b starts"),
        (1, "a ends"),
        (2, "b ends: cancelled"),
        (2, "error: provider_unavailable"),
        (2, "step"),
    ]
    assert DISPOSED == ["a", "b"]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_response_whose_calls_do_not_run(reason: str) -> None:
    notes = noted([call("a"), call("b"), ("delay", 2), ("finish", reason)], [slow("a", 1), slow("b", 5)])
    assert notes[3:] == [(2, "end"), (2, "b ends: cancelled"), (2, "step")]


def test_an_unknown_tool_stops_the_others() -> None:
    notes = noted([call("a"), ("delay", 1), call("who"), ("delay", 2)], [slow("a", 5)])
    assert notes == [
        (0, "a starts"),
        (3, "end"),
        (3, "error: unknown_tool"),
        (3, "a ends: cancelled"),
        (3, "step"),
    ]


def test_a_guard_that_trips_stops_them() -> None:
    guard = ops.guard(lambda text: "no" if "secret" in text else None)
    turn = [call("a"), ("delay", 2), "A secret. ", ("delay", 2), "More."]
    notes = noted(turn, [slow("a", 9)], operators=[guard])
    assert notes == [(0, "a starts"), (4, "a ends: cancelled"), (4, "error: guard_tripped"), (4, "step")]


def test_a_guard_after_the_step_is_asked_before_they_start() -> None:
    scheduler = TestScheduler()
    guard = ops.guard(lambda text: reactivex.timer(2).map(lambda _: True))
    model = Fake(["Well. ", call("a"), ("delay", 5), "So."])
    step = rxllm.stream_generate(model, THREAD).pipe(ops.run_tools([slow("a", 1)], thread=THREAD), guard)
    notes = [
        (tick, text)
        for tick, kind, event in record(scheduler, lambda: step)
        if kind == "next" and (text := written(event))
    ]
    assert notes[:3] == [(2, "Well. "), (2, "a starts"), (3, "a ends")]


@pytest.mark.parametrize(
    ("cut", "eager"),
    [
        (ops.guard(lambda text: "no"), True),
        (ops.time_limits(total=4), True),
        (ops.time_limits(total=9), False),
    ],
)
def test_an_outer_guard_or_time_limit_ends_the_running_tool_by_an_event(cut: Any, eager: bool) -> None:
    model = Fake([call("a"), ("delay", 5), "A secret. "])
    step = rxllm.stream_step(model, "Hi", tools=[slow("a", 9, eager=eager)]).pipe(cut, ops.verify())
    *_, ended, last = [event for _, kind, event in record(TestScheduler(), lambda: step) if kind == "next"]
    assert written(ended) == "a ends: cancelled"
    assert isinstance(last, ErrorEvent)


def test_a_budget_that_cuts_the_response_stops_them() -> None:
    turn = [call("a"), ("delay", 2), "word " * 50, ("delay", 2), "More."]
    notes = noted(turn, [slow("a", 9)], operators=[ops.budget(tokens=20)])
    assert notes[-2:] == [(2, "a ends: cancelled"), (2, "step")]


RESTART = StepRestarted("again", 1)


def restarting(*second: Event) -> Stream[Event]:
    first = [MessageStarted(Message("assistant")), ToolCallStarted("a", "a"), ToolCallCompleted("a", "a", {}, "")]
    before = reactivex.from_iterable(first)
    later = reactivex.timer(2).flat_map(lambda _: from_iterable([RESTART, *first, *second]))
    return Stream.of(reactivex.concat(before, later, reactivex.timer(2).ignore_elements()))


def test_a_restart_stops_them_and_the_new_response_runs_them_again() -> None:
    last = MessageCompleted(Message("assistant", tool_calls=(ToolCall("a", "a", {}, ""),)), "tool_calls")
    step = restarting(last).pipe(ops.run_tools([slow("a", 3)], thread=THREAD), ops.verify())
    notes = record(TestScheduler(), lambda: step)
    assert [(tick, text) for tick, kind, event in notes if kind == "next" and (text := written(event))] == [
        (0, "a starts"),
        (2, "a ends: cancelled"),
        (2, "restarted"),
        (2, "end"),
        (2, "a starts"),
        (5, "a ends"),
        (5, "a told done"),
        (5, "step"),
    ]


def test_disposing_the_stream_disposes_them() -> None:
    scheduler = TestScheduler()
    model = Fake([call("a"), ("delay", 60)])
    record(scheduler, lambda: rxllm.stream_step(model, "Hi", tools=[slow("a", 30)]), disposed=5)
    assert (RAN, DISPOSED) == (["a"], ["a"])


def test_an_error_of_the_source_disposes_them() -> None:
    source = Stream.of(
        reactivex.concat(
            from_iterable([ToolCallCompleted("a", "a", {}, "")]),
            reactivex.timer(2).flat_map(lambda _: reactivex.throw(RuntimeError("a bug"))),
        )
    )
    notes = record(TestScheduler(), lambda: source.pipe(ops.run_tools([slow("a", 9)], thread=THREAD)))
    assert notes[-1][:2] == (2, "error")
    assert DISPOSED == ["a"]


def test_a_subscriber_that_raises_ends_the_source_too() -> None:
    def see(event: Event) -> None:
        if isinstance(event, ToolExecutionCompleted):
            raise RuntimeError("the subscriber's own")

    model = Fake([call("a"), ("delay", 60), "Never."])
    notes = record(TestScheduler(), lambda: rxllm.stream_step(model, "Hi", tools=[slow("a", 1)]).pipe(ops.tap(see)))
    assert notes[-1][:2] == (1, "error")


# Once


def test_a_call_that_the_response_repeats_runs_once() -> None:
    begun, completed = ToolCallStarted("a", "a"), ToolCallCompleted("a", "a", {}, "")
    last = MessageCompleted(Message("assistant", tool_calls=(ToolCall("a", "a", {}, ""),)), "tool_calls")
    source = reactivex.concat(
        from_iterable([MessageStarted(Message("assistant")), begun, completed]),
        reactivex.timer(5).flat_map(lambda _: from_iterable([completed, last])),
    )
    notes = record(TestScheduler(), lambda: Stream.of(source).pipe(ops.run_tools([slow("a")], thread=THREAD)))
    step = notes[-2][2].result
    assert (RAN, contents(step)) == (["a"], {"a": "done"})


def test_verify_finds_a_tool_that_runs_twice() -> None:
    started = ToolExecutionStarted("a", "a", {})
    events = [
        MessageStarted(Message("assistant")),
        ToolCallStarted("a", "a"),
        ToolCallCompleted("a", "a", {}, ""),
        started,
        started,
    ]
    with pytest.raises(rxllm.StreamError, match="tool_started"):
        rxllm.run(from_iterable(events).pipe(ops.verify()))


# The option and the flag


@pytest.mark.parametrize("eager", ["yes", 1.5, []])
def test_the_option_is_checked(eager: Any) -> None:
    with pytest.raises(ValidationError, match="eager"):
        ops.run_tools(thread=THREAD, eager=eager)
    with pytest.raises(ValidationError, match="eager"):
        rxllm.chat(Fake("Hi"), "Hi", eager=eager)


def test_the_flag_is_checked_and_kept() -> None:
    with pytest.raises(TypeError, match="eager of the tool 'look' must be True or False"):
        tool(name="look", eager=1)  # type: ignore[call-overload]

    @tool(eager=True)
    def look(x: int) -> int:
        """Look."""
        return x

    assert look.eager
    assert tool(name="look", eager=True)(lambda: None).eager
    assert rxllm.serializer.from_json(rxllm.serializer.to_json(Tool("t", eager=True))) == Tool("t", eager=True)
    assert request_key(rxllm.request("Hi", tools=(look,))) == request_key(
        rxllm.request("Hi", tools=(dataclasses.replace(look, eager=False),))
    )


# What it brings


def test_three_slow_tools_are_over_sooner() -> None:
    tools = [slow(name, 10) for name in ("a", "b", "c")]
    answer: list[Any] = [piece for name in ("a", "b", "c") for piece in (call(name), ("delay", 4))]

    def seconds(eager: bool | None) -> int:
        model = Fake(scripts=[answer, ["Done."]])
        return record(TestScheduler(), lambda: rxllm.chat(model, "Hi", tools=tools, eager=eager))[-1][0]

    assert (seconds(False), seconds(None)) == (22, 18)


def test_a_state_in_the_middle_unfolds() -> None:
    events = rxllm.stream_step(Fake(["Hm. ", call("a"), ("delay", 60)]), "Hi", tools=[slow("a", 1, eager=True)])
    seen = [event for _, kind, event in record(TestScheduler(), lambda: events, disposed=5) if kind == "next"]
    state = StreamCollector(rxllm.Thread())
    for event in seen:
        state = state.apply_event(event)
        again = StreamCollector(rxllm.Thread())
        for other in state.to_events():
            again = again.apply_event(other)
        assert again == state


# On the wire of Chat Completions, which does not say where a call ends


LOOK = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}
PAY = {"index": 1, "id": "c2", "function": {"name": "pay"}}


@pytest.mark.sockets
@pytest.mark.parametrize(
    "after",
    [{"content": "So."}, {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "pay"}}]}],
    ids=["text", "call"],
)
def test_a_call_is_complete_when_something_else_begins(after: Any) -> None:
    started = threading.Event()
    look = tool(name="look", handler=lambda given: started.set(), eager=True)
    pay = tool(name="pay", handler=lambda given: "paid")

    def body() -> Iterator[Any]:
        yield chat_event({"tool_calls": [LOOK]})
        yield chat_event(after)
        yield from pauses(started.is_set)
        yield from (chat_finish("tool_calls"), DONE)

    with Loopback([Reply(body()), Reply([chat_event({"content": "Done."}), chat_finish(), DONE])]) as server:
        result = rxllm.chat(model(server), "Hi", tools=[look, pay]).run()
    assert (result.output_text, result.error) == ("Done.", None)


@pytest.mark.sockets
def test_what_adds_to_a_complete_call_ends_the_answer_and_stops_the_tool() -> None:
    started, stopped = threading.Event(), threading.Event()

    async def handler(given: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def body() -> Iterator[Any]:
        yield chat_event({"tool_calls": [LOOK]})
        yield chat_event({"content": "So."})
        yield from pauses(started.is_set)
        yield chat_event({"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]})
        yield from (chat_finish("tool_calls"), DONE)

    with Loopback(Reply(body())) as server:
        look = tool(name="look", handler=handler, eager=True)
        response = rxllm.step(model(server), "Hi", tools=[look], retry=False).run().response
    assert response.error is not None
    assert response.error.reason == "malformed_event"
    assert "the call c1 was complete" in response.error.message
    wait_until(stopped.is_set)
