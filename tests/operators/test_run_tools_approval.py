"""Approvers that edit, that leave a call to the caller, and that take too long. Yes and no are in
`test_run_tools_execution`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import Callable
from datetime import date
from types import MappingProxyType
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import never, of
from reactivex.subject import Subject
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import ChatResult, Fake, OpenAIChat, ToolContext, ValidationError, halt, serializer, session, tool
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    Event,
    StepCompleted,
    ToolApprovalRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolResultEncoded,
)
from rxllm.pipelines import resume, stream_resume
from rxllm.runtime import call_loop, daemon_threads
from rxllm.testing import strategies
from rxllm.testing.loopback import DONE, Loopback, Reply, chat, chat_event, chat_finish
from rxllm.testing.marbles import START, cold, record
from rxllm.values import Tool, ToolCall
from tests.examples import examples
from tests.operators.tools import THREAD, calling, contents, events_of, response, result, told
from tests.waiting import PATIENCE, turns, until, wait_until

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool(approval=True)
def pay(amount: int = 1, to: str = "Ada") -> str:
    RAN.append((amount, to))
    return f"paid {amount} to {to}"


@tool
def look() -> str:
    return "seen"


CALL = ToolCall("c1", "pay", {"amount": 500}, '{"amount":500}')
EDIT = {"amount": 5, "to": "Bob"}


# Edits


async def edit_later(call: ToolCall) -> Any:
    return EDIT


async def edit_observed_later(call: ToolCall) -> Any:
    return of(EDIT)


EDITING = {
    "plain": lambda call: EDIT,
    "async": edit_later,
    "Observable": lambda call: of(EDIT),
    "async Observable": edit_observed_later,
    "the last item": lambda call: of(False, True, EDIT),
    "in time": lambda call: reactivex.timer(0.001).map(lambda _: EDIT),
    "another mapping": lambda call: MappingProxyType(EDIT),
}


@pytest.mark.parametrize("approve", EDITING.values(), ids=EDITING)
def test_a_tool_runs_with_the_arguments_of_its_approver(approve: Callable[[ToolCall], Any]) -> None:
    assert told(calling(CALL), [pay], approve=approve) == [
        ToolApprovalRequested("c1", "pay", {"amount": 500}),
        ToolExecutionStarted("c1", "pay", EDIT),
        ToolExecutionCompleted("c1", "pay", "paid 5 to Bob"),
        ToolResultEncoded("c1", "paid 5 to Bob"),
    ]
    assert RAN == [(5, "Bob")]


def test_the_thread_keeps_the_call_as_the_model_wrote_it() -> None:
    fake = Fake(CALL, "Done.")
    done = rxllm.chat(fake, "Pay!", tools=[pay], approve=lambda call: EDIT).run()
    assert done.thread[1].tool_calls == done.steps[0].response.tool_calls == (CALL,)
    assert fake.requests[1].messages[1].tool_calls == (CALL,)
    assert contents(done.steps[0]) == {"c1": "paid 5 to Bob"}


@pytest.mark.sockets
def test_over_a_real_socket_the_model_is_sent_its_own_arguments_again() -> None:
    function = {"name": "pay", "arguments": '{"amount":500}'}
    call = chat_event({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})
    replies = iter([Reply([call, chat_finish("tool_calls"), DONE]), Reply(chat("Done."))])
    with Loopback(lambda request: next(replies)) as server:
        engine = OpenAIChat(base_url=server.url, api_key="k")
        done = rxllm.chat(engine, "Pay!", model="m", tools=[pay], approve=lambda call: EDIT).run()
        sent = [json.loads(request.body)["messages"] for request in server.requests]
    assert (done.output_text, RAN) == ("Done.", [(5, "Bob")])
    assert sent[1][1]["tool_calls"][0]["function"] == function
    assert sent[1][2]["content"] == "paid 5 to Bob"


def test_tools_executors_and_policies_see_what_is_run() -> None:
    seen: list[Any] = []

    def handle(arguments: Any, context: ToolContext) -> None:
        seen.append((arguments, context.tool_call.arguments, context.tool_call.raw_arguments))
        raise ValueError("no")

    def policy(call: ToolCall, error: Any) -> str:
        seen.append(call.arguments)
        return "done"

    def execute(tool: Tool, arguments: Any, context: ToolContext) -> str:
        seen.append((arguments, context.tool_call.arguments))
        return "done"

    made = Tool("pay", handler=handle, approval=True)
    result(calling(CALL), [made], approve=lambda call: EDIT, on_tool_error=policy)
    result(calling(CALL), [pay], approve=lambda call: EDIT, executor=execute)
    assert seen == [(EDIT, EDIT, None), EDIT, (EDIT, EDIT)]
    assert RAN == []


def test_arguments_of_a_wrong_json_may_be_mended() -> None:
    broken = ToolCall("c1", "pay", {}, '{"amount": 5', {"error": "invalid_json"})
    assert contents(result(calling(broken), [pay], approve=lambda call: EDIT)) == {"c1": "paid 5 to Bob"}
    step = result(calling(broken), [pay], approve=lambda call: True)
    assert "not a JSON object" in json.loads(contents(step)["c1"])["error"]


def test_no_arguments_are_an_edit_too() -> None:
    assert contents(result(calling(CALL), [pay], approve=lambda call: {})) == {"c1": "paid 1 to Ada"}


SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
MISFITS: list[tuple[Any, tuple[str, ...], str]] = [
    ({"amount": "five"}, ("approve", "amount"), "Expected `int`, got `str`"),
    ({"amont": 5}, ("approve", "amont"), r"is not a parameter \(did you mean 'amount'\?\)"),
    ({"amount": object()}, ("approve",), "object is not data"),
]


@pytest.mark.parametrize(("edit", "path", "fault"), MISFITS)
def test_an_edit_that_does_not_fit_is_the_developer_s_error_and_no_tool_runs(
    edit: Any, path: tuple[str, ...], fault: str
) -> None:
    fake = Fake(CALL, "never asked")
    source = rxllm.stream(fake, "Pay!", tools=[pay], approve=lambda call: edit)
    events: list[Event] = []
    with pytest.raises(
        ValidationError, match=f"approve edits the arguments of the tool call c1.*'pay'.*{fault}"
    ) as caught:
        source.pipe(ops.tap(events.append)).run()
    assert (caught.value.reason, [at for at, _ in caught.value.errors]) == ("invalid_option", [path])
    assert RAN == []
    assert len(fake.requests) == 1
    assert not any(isinstance(event, ToolExecutionStarted) for event in events)


def test_an_edit_is_checked_by_the_schema_of_a_tool_from_pieces() -> None:
    made = tool(name="pay", schema=SCHEMA, handler=RAN.append, approval=True)
    with pytest.raises(ValidationError, match='"five" is not of type "integer"'):
        told(calling(CALL), [made], approve=lambda call: {"amount": "five"})
    with pytest.raises(ValidationError, match='"amount" is a required property'):
        told(calling(CALL), [made], approve=lambda call: {})
    assert RAN == []
    told(calling(CALL), [made], approve=lambda call: {"amount": 5})
    assert RAN == [{"amount": 5}]


def test_a_misfit_ends_the_tools_beside_it() -> None:
    scheduler = TestScheduler()
    running = scheduler.create_cold_observable(ReactiveTest.on_next(50, 1))
    work = tool(name="work", handler=lambda arguments: running)
    approve = lambda call: reactivex.timer(9).map(lambda _: {"amont": 1})  # noqa: E731
    events = response("work", CALL)
    source = cold(scheduler, "-(abcd|)", dict(zip("abcd", events, strict=True)))
    notes = record(
        scheduler, lambda: source.pipe(ops.run_tools([work, pay], thread=THREAD, approve=approve, max_concurrency=2))
    )
    assert (notes[-1][:2], type(notes[-1][2])) == ((10, "error"), ValidationError)
    assert running.subscriptions == [ReactiveTest.subscribe(START + 1, START + 10)]


def test_later_changes_of_the_arguments_by_the_approver_or_the_tool_reach_no_event() -> None:
    edit: dict[str, Any] = {"deep": {"er": [1]}}

    def spoil(arguments: Any) -> None:
        arguments["deep"]["er"].append("spoilt")
        arguments["new"] = "spoilt"

    def handle(arguments: Any, context: ToolContext) -> str:
        for spoilt in (edit, arguments, context.tool_call.arguments):
            spoil(spoilt)
        return "done"

    made = Tool("pay", handler=handle, approval=True)
    played = list(rxllm.stream(Fake(CALL, "Done."), "Pay!", tools=[made], approve=lambda call: edit))
    started = [event.arguments for event in played if isinstance(event, ToolExecutionStarted)]
    assert started == [{"deep": {"er": [1]}}]


def test_arguments_with_objects_are_kept_as_their_json() -> None:
    @tool(approval=True)
    def book(day: date) -> str:
        return f"{day:%d.%m.}"

    made = events_of(calling(ToolCall("c1", "book")), [book], approve=lambda call: {"day": date(2026, 5, 1)})
    (started,) = [event for event in made if isinstance(event, ToolExecutionStarted)]
    assert started.arguments == {"day": "2026-05-01"}
    assert [serializer.from_json(serializer.to_json(event)) for event in made] == made
    assert ToolResultEncoded("c1", "01.05.") in made


scalars = st.none() | st.booleans() | st.integers() | st.floats() | strategies.texts
data = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(strategies.texts, inner), max_leaves=5)
edits = st.dictionaries(strategies.texts, data, max_size=3)


@settings(deadline=None, max_examples=examples(60))
@given(edits, st.booleans())
def test_a_live_edit_and_a_resumed_one_are_one(edit: dict[str, Any], from_json: bool) -> None:
    """Law: what edits a call, live or later, is what the tool and the events have; the thread keeps the model's."""
    seen: list[Any] = []
    made = tool(name="pay", handler=seen.append, approval=True)
    live = list(rxllm.stream(Fake(CALL, "Done."), "Pay!", tools=[made], approve=lambda call: edit))
    halted = rxllm.chat(Fake(CALL), "Pay!", tools=[made]).run()
    if from_json:
        halted = serializer.from_json(serializer.to_json(halted), ChatResult)
    later = list(stream_resume(Fake("Done."), halted, tools=[made], approvals={"c1": edit}))
    (now,), (then,) = ([e for e in events if isinstance(e, ToolExecutionStarted)] for events in (live, later))
    assert repr(now) == repr(then)
    assert repr(seen) == repr([dict(now.arguments)] * 2)
    ends = [event.result for event in (live[-1], later[-1]) if isinstance(event, ChatCompleted)]
    assert ends[0].thread == ends[1].thread
    assert ends[0].thread[1].tool_calls == (CALL,)


# Left to the caller


def leaving(*ids: str) -> Callable[[ToolCall], Any]:
    return lambda call: halt("approval") if call.id in ids else True


async def leave_later(call: ToolCall) -> Any:
    return halt("approval")


@pytest.mark.parametrize("approve", [lambda call: halt("approval"), leave_later, lambda call: of(halt("approval"))])
def test_a_call_that_is_left_to_the_caller_waits_as_without_an_approver(approve: Callable[[ToolCall], Any]) -> None:
    calls = (CALL, ToolCall("c2", "look", {}, "{}"))
    assert result(calling(*calls), [pay, look], approve=approve) == result(calling(*calls), [pay, look])
    left = told(calling(*calls), [pay, look], approve=approve)
    assert sorted(map(repr, left)) == sorted(map(repr, told(calling(*calls), [pay, look])))
    assert RAN == []


def test_only_those_wait_that_were_left_in_the_order_of_the_calls() -> None:
    made = [ToolCall(id, "pay", {"to": id}, None) for id in "abcd"]
    step = result(calling(*made), [pay], approve=leaving("d", "b"))
    assert [call.id for call in step.metadata["approval_tool_calls"]] == ["b", "d"]
    assert contents(step) == {"a": "paid 1 to a", "c": "paid 1 to c"}
    assert step.done


def test_a_chat_halts_for_what_was_left_and_goes_on_from_json() -> None:
    made = [ToolCall(id, "pay", {"to": id}) for id in "ab"]
    halted = rxllm.chat(Fake(made), "Pay!", tools=[pay], approve=leaving("b")).run()
    assert (halted.halted_reason, [call.id for call in halted.pending_tool_calls]) == ("approval", ["b"])
    assert RAN == [(1, "a")]
    halted = serializer.from_json(serializer.to_json(halted), ChatResult)
    done = resume(Fake("Done."), halted, approvals={"b": {"amount": 7}}, tools=[pay]).run()
    assert (done.halted_reason, RAN) == ("completed", [(1, "a"), (7, "Ada")])


def test_a_halt_beside_it_keeps_it_pending() -> None:
    stop = tool(name="stop", handler=lambda arguments: halt("found"))
    halted = rxllm.chat(Fake([CALL, ToolCall("c2", "stop")]), "Pay!", tools=[pay, stop], approve=leaving("c1")).run()
    assert (halted.halted_reason, halted.pending_tool_calls) == ("found", (CALL,))


def test_a_resumed_chat_may_leave_its_call_again() -> None:
    halted = rxllm.chat(Fake(CALL), "Pay!", tools=[pay]).run()
    fake = Fake("Done.")
    again = resume(fake, halted, tools=[pay], approve=leaving("c1")).run()
    assert (again.halted_reason, again.pending_tool_calls, again.thread) == ("approval", (CALL,), halted.thread)
    assert (fake.requests, RAN) == ([], [])
    assert resume(fake, again, tools=[pay], approve=lambda call: EDIT).run().output_text == "Done."
    assert RAN == [(5, "Bob")]


def test_a_session_waits_for_what_was_left() -> None:
    turn = session.start(Fake(CALL), "Pay!", tools=[pay], approve=leaving("c1")).run()
    assert (turn.session.status, turn.session.pending_tool_calls) == ("awaiting_tools", (CALL,))
    done = session.resume(Fake("Done."), turn.session, approvals={"c1": EDIT}, tools=[pay]).run()
    assert (done.session.status, RAN) == ("completed", [(5, "Bob")])


# Too late


def timed(scheduler: TestScheduler, tools: list[Tool], *made: ToolCall, **options: Any) -> list[tuple[int, Any]]:
    events = response(*made)
    letters = "abcdefgh"[: len(events)]
    source = cold(scheduler, f"-({letters}|)", dict(zip(letters, events, strict=True)))
    notes = record(scheduler, lambda: source.pipe(ops.run_tools(tools, thread=THREAD, **options)))
    return [(tick, what) for tick, kind, what in notes if kind == "next"][len(events) :]


def test_no_answer_in_time_is_a_denial_that_says_so() -> None:
    scheduler = TestScheduler()
    waiting = scheduler.create_cold_observable(ReactiveTest.on_next(50, True), ReactiveTest.on_completed(50))
    notes = timed(scheduler, [pay], CALL, approve=lambda call: waiting, approve_timeout=20)
    assert [(tick, type(event)) for tick, event in notes] == [
        (1, ToolApprovalRequested),
        (21, ToolExecutionCompleted),
        (21, ToolResultEncoded),
        (21, StepCompleted),
    ]
    assert notes[1][1].error.reason == "denied"
    assert json.loads(notes[2][1].content) == {
        "error": "the call was denied: there was no answer within 20 s (approve_timeout)"
    }
    assert waiting.subscriptions == [ReactiveTest.subscribe(START + 1, START + 21)]
    assert RAN == []


@pytest.mark.parametrize("tool_timeout", [None, 15])
def test_the_approver_s_time_ends_with_its_answer_and_the_tool_s_begins(tool_timeout: float | None) -> None:
    scheduler = TestScheduler()
    work = tool(name="work", handler=lambda arguments: reactivex.timer(14).map(lambda _: "done"), approval=True)
    notes = timed(
        scheduler,
        [work],
        ToolCall("c1", "work"),
        approve=lambda call: reactivex.timer(19).map(lambda _: True),
        approve_timeout=20,
        tool_timeout=tool_timeout,
    )
    assert (34, ToolResultEncoded("c1", "done")) in notes


def test_without_a_timeout_an_approver_may_take_its_time() -> None:
    notes = timed(TestScheduler(), [pay], CALL, approve=lambda call: reactivex.timer(700).map(lambda _: True))
    assert (701, ToolResultEncoded("c1", "paid 500 to Ada")) in notes


def test_a_denial_by_time_is_a_failure_to_the_policy() -> None:
    options: dict[str, Any] = {"approve": lambda call: never(), "approve_timeout": 20, "on_tool_error": "halt"}
    notes = timed(TestScheduler(), [pay], CALL, **options)
    assert [(tick, event.reason) for tick, event in notes if isinstance(event, ToolHalt)] == [(21, "tool_error")]


def test_each_approval_has_its_own_time_from_its_request_on() -> None:
    made = [ToolCall(id, "pay") for id in "ab"]
    approve = lambda call: reactivex.timer(15).map(lambda _: True)  # noqa: E731
    notes = timed(TestScheduler(), [pay], *made, approve=approve, approve_timeout=20, max_concurrency=1)
    assert [tick for tick, event in notes if isinstance(event, ToolResultEncoded)] == [16, 31]


@pytest.mark.parametrize("kind", ["plain", "async", "Observable"])
def test_on_a_loop_a_late_approver_is_left_cancelled_or_disposed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    begun, ended, let_go, subject = threading.Event(), threading.Event(), threading.Event(), Subject[Any]()

    async def later(call: ToolCall) -> bool:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    def now(call: ToolCall) -> bool:
        begun.set()
        let_go.wait(PATIENCE)
        ended.set()
        return True

    def is_left() -> bool:  # on a busy machine the time may be over before the approver begins
        step = result(calling(CALL), [pay], approve=approve, approve_timeout=1.0)
        assert "no answer within 1.0 s" in contents(step)["c1"]
        return begun.is_set()

    approve: Any = {"plain": now, "async": later, "Observable": lambda call: begun.set() or subject}[kind]
    wait_until(is_left)
    if kind == "plain":
        left = "the approver for the tool 'pay' was cancelled or timed out"
        wait_until(lambda: any(record.message.startswith(left) for record in caplog.records))
        let_go.set()
    if kind == "Observable":
        wait_until(lambda: not subject.observers)
    else:
        wait_until(ended.is_set)
    assert RAN == []


@pytest.mark.parametrize("seconds", [0, -1, "5", True])
def test_a_timeout_that_is_no_time_is_refused_at_the_call(seconds: Any) -> None:
    with pytest.raises(ValidationError, match="approve_timeout must be None, or a positive number of seconds"):
        rxllm.chat(Fake("x"), "Hi", approve_timeout=seconds)
    with pytest.raises(ValidationError, match="approve_timeout must be None or a positive number of seconds"):
        ops.run_tools(approve_timeout=seconds)


def test_none_lifts_the_timeout_of_the_engine() -> None:
    engine = rxllm.Engine(Fake(CALL, "Done."), tools=(pay,)).with_params(approve_timeout=1.0)

    def slow(call: ToolCall) -> Any:
        return reactivex.timer(5.0).map(lambda _: True)

    record(TestScheduler(), lambda: rxllm.chat(engine, "Pay!", approve=slow, approve_timeout=None))
    assert RAN == [(500, "Ada")]


# Observables


def test_the_answer_of_a_subject_on_another_thread_is_heard_on_the_call_s_loop() -> None:
    threads: list[threading.Thread] = []
    click = Subject[Any]()

    async def main() -> Any:
        loop = asyncio.get_running_loop()

        @tool(approval=True)
        async def where() -> str:
            assert asyncio.get_running_loop() is loop
            return "here"

        def note(event: Event) -> None:
            threads.append(threading.current_thread())

        def answer() -> None:
            wait_until(lambda: click.observers)
            click.on_next(True)
            click.on_completed()

        def approve(call: ToolCall) -> Any:
            threading.Thread(target=answer, daemon=True).start()
            return click

        source = calling(ToolCall("c1", "where")).pipe(ops.run_tools([where], thread=THREAD, approve=approve))
        return await asyncio.wait_for(source.pipe(ops.tap(note), ops.to_step_result()), PATIENCE)

    assert contents(asyncio.run(main())) == {"c1": "here"}
    assert {*threads} == {threading.current_thread()}


def test_a_subject_that_fails_on_another_thread_ends_the_call_on_its_loop() -> None:
    click = Subject[Any]()

    def approve(call: ToolCall) -> Any:
        def fail() -> None:
            wait_until(lambda: click.observers)
            click.on_error(ValueError("the button is broken"))

        threading.Thread(target=fail, daemon=True).start()
        return click

    with pytest.raises(ValueError, match="the button is broken"):
        told(calling(CALL), [pay], approve=approve)
    assert RAN == []


def test_an_approver_s_observable_is_timed_by_the_call_s_own_loop() -> None:
    loops: list[Any] = []

    def approve(call: ToolCall) -> Any:
        return reactivex.timer(0.001).map(lambda _: loops.append(asyncio.get_running_loop()) or True)

    source = calling(CALL).pipe(ops.run_tools([pay], thread=THREAD, approve=approve))
    source.pipe(ops.tap(lambda event: loops.append(call_loop()), ToolApprovalRequested)).run()
    assert loops[0] is loops[1]


def test_a_stream_without_items_is_no_answer() -> None:
    with pytest.raises(TypeError, match=r"approve must return True, False, .*, not a stream without items"):
        told(calling(CALL), [pay], approve=lambda call: reactivex.empty())
    with pytest.raises(TypeError, match=r"not None \(for the tool 'pay'\)"):
        told(calling(CALL), [pay], approve=lambda call: of(None))


def test_an_async_approver_needs_a_loop() -> None:
    scheduler = TestScheduler()
    source = cold(scheduler, "-(abc|)", dict(zip("abc", response(CALL), strict=True)))
    notes = record(scheduler, lambda: source.pipe(ops.run_tools([pay], thread=THREAD, approve=edit_later)))
    assert (notes[-1][1], "needs an event loop" in str(notes[-1][2])) == ("error", True)


def test_a_tool_s_observable_on_another_thread_is_heard_on_the_call_s_loop_too() -> None:
    feed, threads = Subject[Any](), set[threading.Thread]()

    def push() -> None:
        wait_until(lambda: feed.observers)
        feed.on_next("half")
        feed.on_next("done")
        feed.on_completed()

    def work(arguments: Any) -> Any:
        threading.Thread(target=push, daemon=True).start()
        return feed

    async def main() -> Any:
        tools = ops.run_tools([tool(name="work", handler=work)], thread=THREAD)
        note = ops.tap(lambda event: threads.add(threading.current_thread()))
        return await asyncio.wait_for(calling("work").pipe(tools, note, ops.to_step_result()), PATIENCE)

    assert contents(asyncio.run(main())) == {"work": "done"}
    assert threads == {threading.current_thread()}


# Dispose


def test_disposing_at_the_request_asks_nobody() -> None:
    asked: list[ToolCall] = []

    async def main() -> None:
        requested = asyncio.Event()

        def on_next(event: Event) -> None:
            if isinstance(event, ToolApprovalRequested):
                subscription.dispose()
                requested.set()

        tools = ops.run_tools([pay], thread=THREAD, approve=lambda call: asked.append(call) or True)
        subscription = calling(CALL).pipe(tools).subscribe(on_next)
        await requested.wait()
        await turns()

    asyncio.run(main())
    assert (asked, RAN) == ([], [])


def test_disposing_ends_the_question_and_a_late_answer_runs_nothing() -> None:
    click = Subject[Any]()

    async def main() -> None:
        source = calling(CALL).pipe(ops.run_tools([pay], thread=THREAD, approve=lambda call: click, approve_timeout=60))
        subscription = source.subscribe()
        while not click.observers:
            await asyncio.sleep(0)
        subscription.dispose()
        assert not click.observers
        click.on_next(True)
        click.on_completed()
        await turns()

    asyncio.run(main())
    assert RAN == []


def test_an_answer_that_is_on_its_way_when_the_call_is_disposed_runs_nothing() -> None:
    click = Subject[Any]()

    async def main() -> None:
        source = calling(CALL).pipe(ops.run_tools([pay], thread=THREAD, approve=lambda call: click))
        subscription = source.subscribe()
        while not click.observers:
            await asyncio.sleep(0)

        def answer() -> None:
            click.on_next(True)
            click.on_completed()

        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()  # the answer now waits for the loop
        subscription.dispose()
        await turns()

    asyncio.run(main())
    assert RAN == []


# What is left


@pytest.mark.judges
def test_a_thousand_approvals_leave_nothing_behind() -> None:
    """Edits, denials, misfits, halts, time-outs and disposals: no task, timer, thread or subscription stays."""
    click, gates = Subject[Any](), list[threading.Event]()

    def answer_too_late(call: ToolCall) -> bool:
        gates.append(threading.Event())
        return gates[-1].wait(PATIENCE)

    yes: Any = lambda call: click if call.id == "c1" else True  # noqa: E731
    approvers: list[tuple[Any, float | None]] = [
        (lambda call: EDIT, 60.0),
        (lambda call: of(False), 60.0),
        (edit_later, 60.0),
        (lambda call: {"amont": 1}, 60.0),
        (lambda call: halt("approval"), 60.0),
        (yes, 0.001),
        (answer_too_late, 0.001),
        (yes, None),
        (lambda call: reactivex.throw(ZeroDivisionError()), 60.0),
    ]

    async def once(approve: Any, seconds: float | None) -> None:
        source = calling(CALL).pipe(ops.run_tools([pay], thread=THREAD, approve=approve, approve_timeout=seconds))
        if seconds is None:
            subscription = source.subscribe()
            while not click.observers:
                await asyncio.sleep(0)
            subscription.dispose()
            return
        with contextlib.suppress(ValidationError, ZeroDivisionError):
            await source
        for gate in gates:
            gate.set()

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        await asyncio.gather(*(once(*each) for each in approvers))
        threads, tasks = threading.active_count(), len(asyncio.all_tasks())
        for _ in range(112):
            for each in approvers:
                await once(*each)
        await turns()
        gc.collect()
        assert not click.observers
        assert len(asyncio.all_tasks()) == tasks
        assert threading.active_count() <= threads + 2
        assert sum(not handle.cancelled() for handle in loop._scheduled) == 0
        await until(lambda: [gate.set() for gate in gates] and daemon_threads().left == 0)

    asyncio.run(main())
