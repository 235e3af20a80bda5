"""How tools run: at once, bounded, timed, cancelled, approved."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import reactivex
from reactivex import Observable, never, of
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import Fake, ToolContext, halt, tool
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    Event,
    StepCompleted,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.runtime import Stream, call_loop, daemon_threads
from rxllm.testing import World, simulate
from rxllm.testing.marbles import START, cold, record
from rxllm.values import Tool, ToolCall, ToolError
from tests.operators.tools import THREAD, calling, contents, response, result, told
from tests.waiting import PATIENCE, turns, until, wait_until


def calls(name: str, count: int) -> list[ToolCall]:
    return [ToolCall(f"c{i}", name, {}, "{}") for i in range(count)]


def error_of(events: list[Event]) -> ToolError:
    (completed,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert isinstance(completed.error, ToolError)
    return completed.error


# At once


def test_plain_functions_run_at_once() -> None:
    together = threading.Barrier(4, timeout=PATIENCE)
    meet = tool(name="meet", handler=lambda arguments: together.wait() >= 0)
    step = result(calling(*calls("meet", 4)), [meet], max_concurrency=4)
    assert set(contents(step).values()) == {"true"}


def test_async_functions_run_at_once() -> None:
    arrived: list[int] = []

    async def meet(arguments: Any) -> str:
        arrived.append(1)
        while len(arrived) < 4:
            await asyncio.sleep(0)
        return "met"

    step = result(
        calling(*calls("meet", 4)), [tool(name="meet", handler=meet)], max_concurrency=4, tool_timeout=PATIENCE
    )
    assert set(contents(step).values()) == {"met"}


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (50, 12), (None, 12)])
def test_no_more_run_at_once_than_allowed(limit: int | None, most: int) -> None:
    live, seen = 0, 0

    async def work(arguments: Any) -> None:
        nonlocal live, seen
        live += 1
        seen = max(seen, live)
        await turns()
        live -= 1

    step = result(calling(*calls("work", 12)), [tool(name="work", handler=work)], max_concurrency=limit)
    assert (seen, len(step.tool_results)) == (most, 12)


def test_the_next_one_starts_when_one_ends() -> None:
    scheduler = TestScheduler()
    work = tool(name="work", handler=lambda arguments: reactivex.timer(10).map(lambda _: "done"))
    notes = timed(scheduler, [work], *calls("work", 3), max_concurrency=2)
    started = [tick for tick, event in notes if isinstance(event, ToolExecutionStarted)]
    assert started == [1, 1, 11]


# Time


def test_a_late_tool_is_told_to_be_late_and_is_disposed() -> None:
    scheduler = TestScheduler()
    late = scheduler.create_cold_observable(ReactiveTest.on_next(50, "too late"), ReactiveTest.on_completed(51))
    notes = timed(scheduler, [tool(name="late", handler=lambda arguments: late)], "late", tool_timeout=20)
    (tick, completed), (_, encoded) = notes[1:3]
    assert tick == 21
    assert isinstance(completed, ToolExecutionCompleted)
    assert isinstance(completed.error, ToolError)
    assert completed.error.reason == "timeout"
    assert isinstance(encoded, ToolResultEncoded)
    assert "did not finish within 20 s" in json.loads(encoded.content)["error"]
    assert late.subscriptions == [ReactiveTest.subscribe(START + 1, START + 21)]


def test_each_tool_has_its_own_time() -> None:
    scheduler = TestScheduler()
    work = tool(name="work", handler=lambda arguments: reactivex.timer(15).map(lambda _: "done"))
    notes = timed(scheduler, [work], *calls("work", 3), tool_timeout=20, max_concurrency=1)
    assert [event.content for _, event in notes if isinstance(event, ToolResultEncoded)] == ["done"] * 3


@pytest.mark.parametrize(("own", "option", "ends"), [(30, 20, 31), (30, None, 31), (10, 20, 11), (None, 20, 501)])
def test_the_timeout_of_a_tool_goes_before_the_option(own: float | None, option: float | None, ends: int) -> None:
    scheduler = TestScheduler()
    slow = scheduler.create_cold_observable(ReactiveTest.on_next(500, "done"), ReactiveTest.on_completed(500))
    work = tool(name="work", handler=lambda arguments: slow, timeout=own)
    notes = timed(scheduler, [work], "work", tool_timeout=option)
    tick, completed = next((tick, event) for tick, event in notes if isinstance(event, ToolExecutionCompleted))
    assert tick == ends
    assert slow.subscriptions == [ReactiveTest.subscribe(START + 1, START + ends)]
    if own is None:
        assert completed.error is None
    else:
        assert completed.error is not None
        assert f"did not finish within {own} s (its timeout)" in completed.error.message


def test_tools_with_and_without_a_timeout_run_beside_each_other() -> None:
    scheduler = TestScheduler()
    plain = tool(name="plain", handler=lambda arguments: reactivex.timer(50).map(lambda _: "done"))
    tools = [plain, replace(plain, name="quick", timeout=5), replace(plain, name="long", timeout=None)]
    notes = timed(scheduler, tools, "quick", "long", "plain", tool_timeout=20, max_concurrency=3)
    ends = {event.id: (tick, event.error is None) for tick, event in notes if isinstance(event, ToolExecutionCompleted)}
    assert ends == {"quick": (6, False), "plain": (21, False), "long": (51, True)}


def test_without_a_timeout_a_tool_may_take_its_time() -> None:
    scheduler = TestScheduler()
    work = tool(name="work", handler=lambda arguments: reactivex.timer(500).map(lambda _: "done"))
    notes = timed(scheduler, [work], "work", tool_timeout=None)
    assert (501, ToolResultEncoded("work", "done")) in notes


def test_a_timeout_counts_for_the_policy_as_any_failure_does() -> None:
    scheduler = TestScheduler()
    asked: list[str] = []

    def policy(call: ToolCall, error: ToolError) -> str:
        asked.append(error.reason)
        return "never mind"

    late = tool(name="late", handler=lambda arguments: never())
    notes = timed(scheduler, [late], "late", tool_timeout=20, on_tool_error=policy)
    assert (21, ToolResultEncoded("late", "never mind")) in notes
    assert asked == ["timeout"]


def test_a_late_async_function_is_cancelled() -> None:
    cancelled = threading.Event()

    async def late(arguments: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    error = error_of(told(calling("late"), [tool(name="late", handler=late)], tool_timeout=0.01))
    assert error.reason == "timeout"
    wait_until(cancelled.is_set)


def test_a_late_plain_function_is_left_behind_and_its_context_says_so() -> None:
    contexts: list[ToolContext] = []
    let_go = threading.Event()

    def late(arguments: Any, context: ToolContext) -> str:
        contexts.append(context)
        let_go.wait(PATIENCE)
        return "nobody hears this"

    def has_begun() -> bool:  # on a busy machine the time may be over before the thread begins
        error = error_of(told(calling("late"), [tool(name="late", handler=late)], tool_timeout=0.5))
        assert error.reason == "timeout"
        return bool(contexts)

    wait_until(has_begun)
    wait_until(contexts[0].cancelled.is_set)
    let_go.set()


def test_the_check_of_the_arguments_takes_none_of_the_tool_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def importing(world: World) -> None:
        def import_the_library(schema: Any, data: Any) -> list[Any]:
            time.sleep(3.0)
            return []

        async def work(arguments: Any) -> str:
            await asyncio.sleep(1.0)
            return "done"

        monkeypatch.setattr("rxllm.tools._settings.schema_faults", import_the_library)
        tools = [tool(name="work", handler=work)]
        options: Any = {"thread": THREAD, "tool_timeout": 2.0}
        step = await calling("work").pipe(ops.run_tools(tools, **options), ops.to_step_result())
        assert contents(step) == {"work": "done"}
        assert time.monotonic() == pytest.approx(4.0)

    simulate(importing, faults=())


def test_plain_functions_that_are_left_behind_are_counted_and_told_and_no_more_than_so_many_run_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rxllm.runtime.threads._threads", None)  # other tests leave functions behind too
    monkeypatch.setattr("rxllm.tools._caller.THREADS_LEFT", 2)
    begun, leave, threads = list[Any](), threading.Event(), daemon_threads()
    stuck = tool(name="stuck", handler=lambda arguments: begun.append(arguments) or leave.wait(PATIENCE))
    for count in (1, 2):
        while len(begun) < count:  # on a busy machine the time may be over before the thread begins
            assert error_of(told(calling("stuck"), [stuck], tool_timeout=0.5)).reason == "timeout"
        wait_until(lambda count=count: threads.left == count)
    left_behind = "the tool 'stuck' was cancelled or timed out, but keeps running"
    # a function is logged after it is counted
    wait_until(lambda: sum(left_behind in record.message for record in caplog.records) == 2)
    refused = error_of(told(calling("stuck"), [stuck], tool_timeout=PATIENCE))
    assert refused.reason == "cancelled"
    assert "was not run: 2 other functions are still running in threads" in refused.message
    assert "ToolContext.cancelled" in refused.message
    leave.set()
    wait_until(lambda: threads.left == 0)
    fine = told(calling("fine"), [tool(name="fine", handler=lambda arguments: "yes")], tool_timeout=PATIENCE)
    assert [event.content for event in fine if isinstance(event, ToolResultEncoded)] == ["yes"]


def test_a_burst_of_calls_leaves_no_more_functions_behind_than_may_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rxllm.runtime.threads._threads", None)
    monkeypatch.setattr("rxllm.tools._caller.THREADS", 5)
    begun, refused, leave, threads = list[Any](), list[Any](), threading.Event(), daemon_threads()
    stuck = tool(name="stuck", handler=lambda arguments: begun.append(arguments) or leave.wait(PATIENCE))
    made = [ToolCall(f"c{index}", "stuck", {}) for index in range(20)]
    source = calling(*made).pipe(ops.run_tools([stuck], thread=THREAD), ops.only(ToolExecutionCompleted))
    subscription = source.subscribe(lambda event: refused.append(event.error))
    wait_until(lambda: (len(begun), len(refused)) == (5, 15))
    subscription.dispose()
    wait_until(lambda: threads.left == 5)
    assert {error.reason for error in refused} == {"cancelled"}
    assert "5 other functions are running in threads; pass max_concurrency=..." in refused[0].message
    leave.set()
    wait_until(lambda: threads.left == threads.running == 0)


def test_under_virtual_time_an_async_function_is_a_clear_failure() -> None:
    async def work(arguments: Any) -> None: ...

    notes = timed(TestScheduler(), [tool(name="work", handler=work)], "work")
    (completed,) = [event for _, event in notes if isinstance(event, ToolExecutionCompleted)]
    assert completed.error is not None
    assert "needs an event loop" in completed.error.message


# What it runs on


def test_a_plain_function_runs_off_the_loops_thread_with_the_callers_context() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    threads: list[threading.Thread] = []

    def look(arguments: Any) -> str:
        threads.append(threading.current_thread())
        return who.get()

    async def main() -> Any:
        who.set("me")
        step = await calling("look").pipe(
            ops.run_tools([tool(name="look", handler=look)], thread=THREAD), ops.to_step_result()
        )
        return contents(step)

    assert asyncio.run(main()) == {"look": "me"}
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon


def test_an_async_function_runs_on_the_calls_loop() -> None:
    loops: list[Any] = []

    async def look(arguments: Any) -> None:
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        await calling("look").pipe(ops.run_tools([tool(name="look", handler=look)], thread=THREAD))
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_callable_object_is_a_handler_too(is_async: bool) -> None:
    class Later:
        async def __call__(self, arguments: Any) -> str:
            return "called"

    class Now:
        def __call__(self, arguments: Any) -> str:
            return "called"

    handler = Later() if is_async else Now()
    assert contents(result(calling("f"), [tool(name="f", handler=handler)])) == {"f": "called"}


@pytest.mark.parametrize("failure", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration("none left")])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_tool_cannot_end_the_process_or_hang_the_call(failure: BaseException, is_async: bool) -> None:
    def now(arguments: Any) -> None:
        raise failure

    async def later(arguments: Any) -> None:
        raise failure

    handler = later if is_async else now
    error = error_of(told(calling("f"), [tool(name="f", handler=handler)], tool_timeout=PATIENCE))
    assert error.reason == ("handler_raised" if isinstance(failure, StopIteration) else "handler_exit")


def test_a_tool_that_is_cancelled_by_its_own_doing_has_failed() -> None:
    async def lose(arguments: Any) -> None:
        raise asyncio.CancelledError

    error = error_of(told(calling("f"), [tool(name="f", handler=lose)], tool_timeout=PATIENCE))
    assert error.reason != "timeout"


# Items as they come


def test_a_started_tool_says_so_before_it_ends() -> None:
    seen = threading.Event()
    wait = tool(name="wait", handler=lambda arguments: seen.wait(PATIENCE))
    source = calling("wait").pipe(
        ops.run_tools([wait], thread=THREAD),
        ops.tap(lambda event: seen.set(), ToolExecutionStarted),
        ops.to_step_result(),
    )
    assert contents(source.run()) == {"wait": "true"}


def test_progress_comes_at_once_and_before_the_end() -> None:
    heard = threading.Event()

    @tool
    def work(context: ToolContext) -> str:
        context.progress({"percent": 50})
        heard.wait(PATIENCE)
        return "done" if heard.is_set() else "nobody heard"

    source = calling("work").pipe(
        ops.run_tools([work], thread=THREAD), ops.tap(lambda event: heard.set(), ToolProgress)
    )
    events = list(source)
    assert [type(event) for event in events[2:]][1:] == [
        ToolExecutionStarted,
        ToolProgress,
        ToolExecutionCompleted,
        ToolResultEncoded,
        StepCompleted,
    ]
    assert ToolProgress("work", "work", {"percent": 50}) in events
    assert ToolResultEncoded("work", "done") in events


async def counting(arguments: Any) -> AsyncIterator[Any]:
    yield 1
    yield 2


def sync_observable(arguments: Any) -> Observable[int]:
    return of(1, 2)


async def later_observable(arguments: Any) -> Observable[int]:
    return of(1, 2)


def generator_made_by_a_function(arguments: Any) -> AsyncIterator[Any]:
    return counting(arguments)


@pytest.mark.parametrize("handler", [counting, sync_observable, later_observable, generator_made_by_a_function])
def test_each_item_of_a_stream_is_progress_and_the_last_is_the_result(handler: Callable[..., Any]) -> None:
    assert told(calling("f"), [tool(name="f", handler=handler)])[1:] == [
        ToolProgress("f", "f", 1),
        ToolProgress("f", "f", 2),
        ToolExecutionCompleted("f", "f", 2),
        ToolResultEncoded("f", "2"),
    ]


def test_a_stream_without_items_gives_nothing() -> None:
    empty = tool(name="f", handler=lambda arguments: reactivex.empty())
    assert contents(result(calling("f"), [empty])) == {"f": "null"}


def test_a_stream_that_fails_is_a_failure() -> None:
    broken = tool(name="f", handler=lambda arguments: reactivex.throw(ValueError("no")))
    assert error_of(told(calling("f"), [broken])).reason == "handler_raised"


def test_the_last_item_of_a_stream_can_halt() -> None:
    stop = tool(name="f", handler=lambda arguments: of("looking", halt("found", 42)))
    assert isinstance(told(calling("f"), [stop])[-1], ToolHalt)


def test_an_observable_takes_its_time_from_the_subscription() -> None:
    scheduler = TestScheduler()
    slow = tool(name="f", handler=lambda arguments: reactivex.interval(5).take(3))
    notes = timed(scheduler, [slow], "f")
    assert [(tick, event.data) for tick, event in notes if isinstance(event, ToolProgress)] == [
        (6, 0),
        (11, 1),
        (16, 2),
    ]


# Dispose


def test_dispose_cancels_async_functions_and_generators() -> None:
    ended: list[str] = []

    async def wait(arguments: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("function")

    async def drip(arguments: Any) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.append("generator")

    async def main() -> None:
        tools = [tool(name="wait", handler=wait), tool(name="drip", handler=drip)]
        dripping = asyncio.Event()
        source = calling("wait", "drip").pipe(
            ops.run_tools(tools, max_concurrency=2, thread=THREAD), ops.tap(lambda event: dripping.set(), ToolProgress)
        )
        subscription = source.subscribe()
        await dripping.wait()
        subscription.dispose()
        while len(ended) < 2:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(ended) == ["function", "generator"]


def test_dispose_leaves_a_plain_function_behind_and_its_context_says_so() -> None:
    let_go = threading.Event()
    heard: list[Event] = []
    seen: list[bool] = []

    def late(arguments: Any, context: ToolContext) -> str:
        context.progress("running")
        seen.append(context.cancelled.wait(PATIENCE))
        context.progress("nobody hears this")
        let_go.set()
        return "nor this"

    async def main() -> None:
        started = asyncio.Event()
        source = calling("late").pipe(
            ops.run_tools([tool(name="late", handler=late)], thread=THREAD),
            ops.tap(lambda event: started.set(), ToolProgress),
        )
        subscription = source.subscribe(heard.append)
        await started.wait()
        subscription.dispose()
        await until(let_go.is_set)
        await turns()

    asyncio.run(main())
    assert heard[-1] == ToolProgress("late", "late", "running")
    assert seen == [True]


def test_dispose_reaches_an_observable_and_nothing_more_is_started() -> None:
    scheduler = TestScheduler()
    running = scheduler.create_cold_observable(ReactiveTest.on_next(50, 1))
    work = tool(name="work", handler=lambda arguments: running)
    source = cold(scheduler, "(abcd|)", dict(zip("abcd", response(*calls("work", 2)), strict=True)))
    record(scheduler, lambda: source.pipe(ops.run_tools([work], max_concurrency=1, thread=THREAD)), disposed=10)
    assert running.subscriptions == [ReactiveTest.subscribe(START, START + 10)]


# A subscriber that raises


@pytest.mark.parametrize(
    "wanted", [ToolExecutionStarted, ToolProgress, ToolExecutionCompleted, ToolResultEncoded, ToolHalt, StepCompleted]
)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_subscriber_that_raises_gets_it_once(wanted: type[Any], is_async: bool) -> None:
    failure = ValueError("the subscriber's own")
    errors: list[Exception] = []
    after: list[Event] = []

    async def later(arguments: Any, context: ToolContext) -> Any:
        context.progress(1)
        return "done"

    def now(arguments: Any, context: ToolContext) -> Any:
        context.progress(1)
        return halt("found")

    async def main() -> None:
        ended = asyncio.Event()

        def on_next(event: Event) -> None:
            if errors:
                after.append(event)
            if isinstance(event, wanted) and not errors:
                raise failure

        def on_error(error: Exception) -> None:
            errors.append(error)
            ended.set()

        tools = [tool(name="later", handler=later), tool(name="now", handler=now)]
        calling("later", "now").pipe(ops.run_tools(tools, thread=THREAD)).subscribe(on_next, on_error)
        await until(ended.is_set)
        await turns()

    asyncio.run(main())
    assert (errors, after) == ([failure], [])


# Approval


def answers() -> dict[str, Callable[[ToolCall], Any]]:
    async def later(call: ToolCall) -> bool:
        return True

    return {
        "yes": lambda call: True,
        "awaited": later,
        "observed": lambda call: of(True),
        "awaited and observed": lambda call: later(call),
    }


@pytest.mark.parametrize("approve", answers().values(), ids=answers())
@pytest.mark.parametrize("is_async", [True, False])
def test_an_approved_call_runs(approve: Callable[[ToolCall], Any], is_async: bool) -> None:
    async def later(arguments: Any) -> str:
        return "paid"

    pay = tool(name="pay", handler=later if is_async else lambda arguments: "paid", approval=True)
    assert told(calling("pay"), [pay], approve=approve) == [
        ToolApprovalRequested("pay", "pay", {}),
        ToolExecutionStarted("pay", "pay", {}),
        ToolExecutionCompleted("pay", "pay", "paid"),
        ToolResultEncoded("pay", "paid"),
    ]


async def too_dear(call: ToolCall) -> str:
    return "too dear"


@pytest.mark.parametrize(
    ("approve", "because"),
    [
        (lambda call: False, "it was not approved"),
        (lambda call: "too dear", "too dear"),
        (lambda call: of("too dear"), "too dear"),
        (too_dear, "too dear"),
    ],
)
def test_a_denied_call_does_not_run_and_the_model_is_told_why(approve: Callable[[ToolCall], Any], because: str) -> None:
    ran: list[int] = []
    pay = tool(name="pay", handler=lambda arguments: ran.append(1), approval=True)
    events = told(calling("pay"), [pay], approve=approve)
    assert error_of(events).reason == "denied"
    assert isinstance(events[-1], ToolResultEncoded)
    assert because in events[-1].content
    assert (ran, any(isinstance(event, ToolExecutionStarted) for event in events)) == ([], False)


def test_an_approver_is_asked_about_those_tools_alone() -> None:
    asked: list[str] = []
    tools = [
        tool(name="pay", handler=lambda arguments: 1, approval=True),
        tool(name="look", handler=lambda arguments: 2),
    ]
    result(calling("pay", "look"), tools, approve=lambda call: asked.append(call.id) or True)
    assert asked == ["pay"]


@pytest.mark.parametrize("is_async", [True, False])
def test_an_approver_that_raises_ends_the_call_with_its_error_and_no_tool_runs(is_async: bool) -> None:
    def approve(call: ToolCall) -> bool:
        raise ValueError("nobody is there")

    async def later(call: ToolCall) -> bool:
        return approve(call)

    ran: list[Any] = []
    pay = tool(name="pay", handler=ran.append, approval=True)
    with pytest.raises(ValueError, match="nobody is there"):
        told(calling("pay", "pay2"), [pay, replace(pay, name="pay2")], approve=later if is_async else approve)
    assert ran == []


@pytest.mark.parametrize(
    "approve", [lambda call: None, lambda call: reactivex.empty(), lambda call: 1, lambda call: halt("found")]
)
def test_an_answer_that_is_neither_yes_nor_no_is_the_approver_s_bug(approve: Callable[[ToolCall], Any]) -> None:
    ran: list[Any] = []
    pay = tool(name="pay", handler=ran.append, approval=True)
    with pytest.raises(TypeError, match=r"approve must return True, False, .*, not .* \(for the tool 'pay'\)"):
        told(calling("pay"), [pay], approve=approve)
    assert ran == []


def test_the_time_of_the_approver_is_not_the_tools() -> None:
    scheduler = TestScheduler()
    pay = tool(name="pay", handler=lambda arguments: "paid", approval=True)
    notes = timed(
        scheduler, [pay], "pay", approve=lambda call: reactivex.timer(100).map(lambda _: True), tool_timeout=20
    )
    assert (101, ToolResultEncoded("pay", "paid")) in notes


@pytest.mark.parametrize("is_async", [True, False])
def test_an_approver_that_blocks_does_not_block_the_loop(is_async: bool) -> None:
    async def later(arguments: Any) -> str:
        return "paid"

    answered = threading.Event()

    def approve(call: ToolCall) -> bool:
        return answered.wait(PATIENCE)

    def ask(event: ToolApprovalRequested) -> None:
        call_loop().call_soon(lambda: call_loop().call_soon(answered.set))

    pay = tool(name="pay", handler=later if is_async else lambda arguments: "paid", approval=True)
    source = calling("pay").pipe(
        ops.run_tools([pay], approve=approve, thread=THREAD), ops.tap(ask, ToolApprovalRequested)
    )
    assert contents(source.pipe(ops.to_step_result()).run()) == {"pay": "paid"}


def timed(scheduler: TestScheduler, tools: list[Tool], *made: ToolCall | str, **options: Any) -> list[tuple[int, Any]]:
    """What tools say, and when, of a response that ends at tick 1."""
    events = response(*made)
    letters = "abcdefgh"[: len(events)]
    source = cold(scheduler, f"-({letters}|)", dict(zip(letters, events, strict=True)))
    notes = record(scheduler, lambda: source.pipe(ops.run_tools(tools, thread=THREAD, **options)))
    return [(tick, what) for tick, kind, what in notes if kind == "next"][len(events) :]


def test_streams_stay_streams() -> None:
    assert isinstance(calling("f").pipe(ops.run_tools(thread=THREAD)), Stream)


# What tools do to their arguments


def spoil(arguments: Any) -> None:
    arguments["list"].append("spoilt")
    arguments["deep"]["er"][0]["x"] = "spoilt"
    arguments["new"] = "spoilt"


def spoiling_handler(arguments: Any, context: ToolContext) -> str:
    spoil(arguments)
    spoil(context.tool_call.arguments)
    return "done"


@tool
def spoil_parts(list: Any, deep: dict[str, Any], context: ToolContext) -> str:
    spoil({"list": list, "deep": deep})
    spoil(context.tool_call.arguments)
    return "done"


def spoiling_executor(tool: Tool, arguments: Any, context: ToolContext) -> str:
    return spoiling_handler(arguments, context)


def spoiling_approval(call: ToolCall) -> bool:
    spoil(call.arguments)
    return True


def raising_handler(arguments: Any) -> None:
    spoil(arguments)
    raise ValueError("no")


def spoiling_policy(call: ToolCall, error: ToolError) -> str:
    spoil(call.arguments)
    return "done"


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (Tool("f", handler=spoiling_handler), {}),
        (replace(spoil_parts, name="f"), {}),
        (Tool("f"), {"tool_executor": spoiling_executor}),
        (Tool("f", handler=spoiling_handler, approval=True), {"approve": spoiling_approval}),
        (Tool("f", handler=raising_handler), {"on_tool_error": spoiling_policy}),
    ],
    ids=["handler", "decorated", "executor", "approve", "on_tool_error"],
)
def test_a_tool_gets_a_copy_of_its_arguments(made: Tool, options: Any) -> None:
    def arguments() -> dict[str, Any]:
        return {"list": ["a"], "deep": {"er": [{"x": 1}]}}

    seen: list[Any] = []
    model = Fake(ToolCall("c", "f", arguments()), "Done.")
    played = list(rxllm.stream(model, "Hi", tools=[made], on_event=seen.append, **options))
    calls = [call for message in model.requests[1].messages for call in message.tool_calls]
    assert [call.arguments for call in calls] == [arguments()]
    last = played[-1]
    assert isinstance(last, ChatCompleted)
    assert [message.text for message in last.result.thread if message.role == "tool"] == ["done"]
    assert [call.arguments for message in last.result.thread for call in message.tool_calls] == [arguments()]
    told = (ToolCallCompleted, ToolExecutionStarted, ToolApprovalRequested)
    assert all(event.arguments == arguments() for event in [*seen, *played] if isinstance(event, told))


def test_the_tool_does_not_see_the_changes_that_an_approver_makes_in_place() -> None:
    got: list[Any] = []
    made = Tool("f", handler=got.append, approval=True)
    given = {"list": ["a"], "deep": {"er": [{"x": 1}]}}
    rxllm.chat(Fake(ToolCall("c", "f", given), "Done."), "Hi", tools=[made], approve=spoiling_approval).run()
    assert got == [{"list": ["a"], "deep": {"er": [{"x": 1}]}}]


def test_arguments_that_cannot_be_copied_are_a_tool_error() -> None:
    nested: Any = []
    for _ in range(5_000):
        nested = [nested]
    step = result(calling(ToolCall("c", "f", {"x": nested}, "[...]")), [Tool("f", handler=print)])
    assert "nested too deeply" in step.tool_results[0].text
