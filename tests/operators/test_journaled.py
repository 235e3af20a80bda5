"""A stream that is run again with its journal does nothing twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Engine, Fake, StreamError, ToolCall, ToolContext, Usage, ValidationError, halt, tool
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    Event,
    Nested,
    StepCompleted,
    ToolApprovalRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultEncoded,
)
from rxllm.runtime import Stream
from rxllm.testing import World, assert_operator, simulate
from tests.examples import examples
from tests.operators.journal import MemoryJournal
from tests.waiting import turns, until

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool
def add(x: int) -> int:
    RAN.append(("add", x))
    return x + 1


@tool
async def add_async(x: int) -> int:
    await asyncio.sleep(0)
    RAN.append(("add_async", x))
    return x + 1


@tool(idempotent=True)
def send(x: int, context: ToolContext) -> str:
    RAN.append(("send", x, context.idempotency_key))
    return "sent"


@tool(approval=True)
def pay(amount: int) -> str:
    RAN.append(("pay", amount))
    return f"paid {amount}"


def never_asked() -> Fake:
    def refuse(request: Any) -> Any:
        raise AssertionError("the model is asked")

    return Fake(refuse)


def all_of(events: Stream[Event], journal: MemoryJournal) -> list[Event]:
    return list(events.pipe(ops.journaled(journal)))


def again(journal: MemoryJournal, upto: int | None = None) -> MemoryJournal:
    """The journal as another process finds it when the first has died after `upto` entries."""
    return MemoryJournal(journal.entries[:upto])


def results(events: list[Event]) -> Any:
    return events[-1]


def test_it_keeps_the_contract_of_operators() -> None:
    assert_operator(lambda: ops.journaled(MemoryJournal()))


@pytest.mark.parametrize("wrong", [None, "runs.db", MemoryJournal, object()])
def test_an_object_that_is_no_journal_is_refused_at_the_call(wrong: Any) -> None:
    with pytest.raises(ValidationError, match=r"journal must be an object with the methods response, tool"):
        ops.journaled(wrong)


def test_a_finished_response_is_not_asked_again() -> None:
    journal = MemoryJournal()
    first = all_of(rxllm.stream(Fake(ToolCall("c0", "add", {"x": 1}), "two"), "1 + 1?", tools=[add]), journal)
    assert journal.log == ["answered", "begin add", "finish", "answered"]
    second = again(journal)
    replayed = all_of(rxllm.stream(never_asked(), "1 + 1?", tools=[add]), second)
    assert second.log == ["replayed", "replayed"]
    assert results(replayed) == results(first)
    assert RAN == [("add", 1)]


def test_without_a_journal_nothing_is_noted_and_no_key_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxllm.pipelines._call.request_key", lambda *args: pytest.fail("a key is made"))
    monkeypatch.setattr("rxllm.tools._execution.idempotency_key", lambda *args: pytest.fail("a key is made"))
    assert rxllm.chat(Fake(ToolCall("c0", "add", {"x": 1}), "two"), "1 + 1?", tools=[add]).run().output_text == "two"


def test_each_subscription_looks_in_the_journal() -> None:
    journal = MemoryJournal()
    answer = rxllm.stream_generate(Fake("Hi", "Ho"), "Hi").pipe(ops.journaled(journal))
    assert [answer.pipe(ops.to_text()).run() for _ in range(2)] == ["Hi", "Ho"]
    second = rxllm.stream_generate(never_asked(), "Hi").pipe(ops.journaled(again(journal)))
    assert [second.pipe(ops.to_text()).run() for _ in range(2)] == ["Hi", "Ho"]  # equal keys, in their order


def test_a_failure_is_noted_and_fails_again() -> None:
    for failure in ([("error", StreamError("truncated"))], rxllm.AdapterError("rate_limited", "slow down")):
        journal = MemoryJournal()
        engine = Engine(Fake(scripts=[[failure] if isinstance(failure, Exception) else failure]), retry=False)
        with pytest.raises(rxllm.LLMError) as first:
            rxllm.generate(engine, "Hi").pipe(ops.journaled(journal)).map(rxllm.Response.raise_for_error).run()
        events = rxllm.generate(never_asked(), "Hi").pipe(ops.journaled(again(journal)))
        with pytest.raises(rxllm.LLMError) as second:
            events.map(rxllm.Response.raise_for_error).run()
        assert first.value == second.value


def test_a_response_that_is_left_is_not_noted() -> None:
    journal = MemoryJournal()
    with rxllm.to_iter(rxllm.stream_generate(Fake(["a", ("delay", 60), "b"]), "Hi").pipe(ops.journaled(journal))) as it:
        next(it)
    assert journal.entries == []


def test_guards_judge_and_budgets_count_a_noted_answer_again() -> None:
    seen: list[str] = []
    journal = MemoryJournal()

    def events(model: Fake) -> Stream[Event]:
        shared = rxllm.Budget(tokens=100_000)
        operators = [ops.guard(seen.append), ops.budget(shared)]
        engine = Engine(model, operators=operators)
        asked = rxllm.stream(engine, "Hi").pipe(ops.journaled(journal))
        return asked.finally_action(lambda: seen.append(str(shared.spent.tokens)))

    first = events(Fake(["Hello", Usage(10, 2)])).run()
    noted, seen[:] = seen.copy(), []
    journal = again(journal)
    assert events(never_asked()).run() == first
    assert seen == noted
    assert seen[-1] == "12"


def test_a_response_in_an_agent_and_one_outside_are_told_apart() -> None:
    journal = MemoryJournal()

    def chat(model: Any, inner: Any) -> list[Event]:
        helper = Engine(inner, tools=[add]).as_tool(name="helper", description="Helps.")
        return all_of(rxllm.stream(Engine(model), "Hi", tools=[helper]), journal)

    outer = Fake(ToolCall("c0", "helper", {"prompt": "Hi"}), "done")
    first = chat(outer, Fake(ToolCall("c0", "add", {"x": 1}), "inner"))
    assert [key[0] for kind, key, _ in journal.entries if kind == "response"] == [(), ("c0",), ("c0",), ()]
    journal = again(journal)
    assert results(chat(never_asked(), never_asked())) == results(first)
    assert RAN == [("add", 1)]


# Tools


@pytest.mark.parametrize("fn", [add, add_async], ids=["plain", "async"])
def test_it_begins_before_the_body_and_finishes_before_the_outcome_is_emitted(fn: Any) -> None:
    journal = MemoryJournal()

    def log(event: Event) -> None:
        if isinstance(event, ToolExecutionStarted | ToolExecutionCompleted):
            journal.log.append(type(event).__name__)

    @tool(name=fn.name)
    async def body(x: int) -> int:
        journal.log.append("body")
        return x + 1

    model = Fake(ToolCall("c0", fn.name, {"x": 1}), "two")
    list(rxllm.stream(model, "1 + 1?", tools=[body]).pipe(ops.tap(log), ops.journaled(journal)))
    expected = ["ToolExecutionStarted", f"begin {fn.name}", "body", "finish", "ToolExecutionCompleted"]
    assert journal.log == ["answered", *expected, "answered"]


def test_a_tool_that_did_not_finish_is_left_to_the_caller() -> None:
    journal = MemoryJournal()
    model = Fake(ToolCall("c0", "add", {"x": 1}), "two")
    all_of(rxllm.stream(model, "1 + 1?", tools=[add]), journal)
    RAN.clear()
    events = all_of(rxllm.stream(never_asked(), "1 + 1?", tools=[add]), again(journal, 2))
    assert ToolApprovalRequested("c0", "add", {"x": 1}, {"interrupted": True}) in events
    halted: rxllm.ChatResult = results(events).result
    assert (halted.halted_reason, RAN) == ("approval", [])
    (call,) = halted.pending_tool_calls
    assert (call.id, call.metadata) == ("c0", {"interrupted": True})
    halted = rxllm.serializer.from_json(rxllm.serializer.to_json(halted), rxllm.ChatResult)
    assert rxllm.resume(Fake("two"), halted, results={"c0": "2"}, tools=[add]).run().output_text == "two"
    assert RAN == []
    assert rxllm.resume(Fake("two"), halted, approvals={"c0": True}, tools=[add]).run().output_text == "two"
    assert RAN == [("add", 1)]


def test_an_idempotent_tool_runs_again_with_its_key() -> None:
    journal = MemoryJournal()
    model = Fake(ToolCall("c0", "send", {"x": 1}), "done")
    first = all_of(rxllm.stream(model, "Send!", tools=[send]), journal)
    second = again(journal, 2)
    assert results(all_of(rxllm.stream(Fake("done"), "Send!", tools=[send]), second)) == results(first)
    assert len(RAN) == 2
    assert RAN[0] == RAN[1]
    assert second.log == ["replayed", "finish", "answered"]


def test_tools_beside_an_interrupted_one_finish() -> None:
    journal = MemoryJournal()
    calls = [ToolCall("c0", "add", {"x": 1}), ToolCall("c1", "add", {"x": 2})]
    all_of(rxllm.stream(Fake(calls, "done"), "Hi", tools=[add], max_concurrency=1), journal)
    RAN.clear()
    halted = results(
        all_of(rxllm.stream(never_asked(), "Hi", tools=[add], max_concurrency=1), again(journal, 4))
    ).result
    assert [call.id for call in halted.pending_tool_calls] == ["c1"]
    assert [message.text for message in halted.steps[-1].tool_results] == ["2"]
    assert RAN == []


def test_an_interrupted_tool_of_an_agent_waits_at_its_depth() -> None:
    journal = MemoryJournal()

    def chat(outer: Any, middle: Any, inner: Any) -> list[Event]:
        deep = Engine(inner, tools=[add]).as_tool(name="deep", description="Goes deep.")
        helper = Engine(middle, tools=[deep]).as_tool(name="helper", description="Helps.")
        return all_of(rxllm.stream(Engine(outer), "Hi", tools=[helper]), journal)

    go = {"prompt": "Go"}
    chat(
        Fake(ToolCall("c0", "helper", go), "done"),
        Fake(ToolCall("c0", "deep", go), "middle"),
        Fake(ToolCall("c0", "add", {"x": 1}), "inner"),
    )
    kinds = [entry[0] for entry in journal.entries]
    assert kinds == ["response", "begin"] * 3 + ["finish"] + ["response"] * 3  # agents have no outcome of their own
    assert RAN == [("add", 1)]
    journal = again(journal, 6)
    events = chat(never_asked(), never_asked(), never_asked())
    asked = ToolApprovalRequested("c0", "add", {"x": 1}, {"interrupted": True})
    assert Nested(("c0", "c0"), asked) in events
    (call,) = results(events).result.pending_tool_calls
    assert (call.id, call.metadata) == ("c0/c0/c0", {"interrupted": True})
    assert RAN == [("add", 1)]


def test_an_approval_is_not_asked_for_twice() -> None:
    asked: list[ToolCall] = []

    def approve(call: ToolCall) -> Any:
        asked.append(call)
        return {"amount": 5}

    journal = MemoryJournal()
    options: dict[str, Any] = {"tools": [pay], "approve": approve}
    first = all_of(rxllm.stream(Fake(ToolCall("c0", "pay", {"amount": 500}), "done"), "Pay!", **options), journal)
    second = all_of(rxllm.stream(never_asked(), "Pay!", **options), again(journal))
    assert results(second) == results(first)
    assert ToolExecutionStarted("c0", "pay", {"amount": 5}) in second
    assert (len(asked), RAN) == (1, [("pay", 5)])
    interrupted = all_of(rxllm.stream(never_asked(), "Pay!", **options), again(journal, 2))
    assert ToolApprovalRequested("c0", "pay", {"amount": 5}, {"interrupted": True}) in interrupted
    assert len(asked) == 1


def test_a_denial_is_not_asked_for_twice() -> None:
    journal = MemoryJournal()
    model = Fake(ToolCall("c0", "pay", {"amount": 500}), "done")
    first = all_of(rxllm.stream(model, "Pay!", tools=[pay], approve=lambda call: "too much"), journal)
    assert journal.log == ["answered", "finish", "answered"]
    refuse: Callable[[ToolCall], bool] = lambda call: pytest.fail("the user is asked")  # noqa: E731
    second = all_of(rxllm.stream(never_asked(), "Pay!", tools=[pay], approve=refuse), again(journal))
    assert results(second) == results(first)
    assert not any(isinstance(event, ToolExecutionStarted) for event in second)


def test_a_call_that_waits_for_an_approval_still_waits() -> None:
    journal = MemoryJournal()
    first = all_of(rxllm.stream(Fake(ToolCall("c0", "pay", {"amount": 500})), "Pay!", tools=[pay]), journal)
    second = all_of(rxllm.stream(never_asked(), "Pay!", tools=[pay]), again(journal))
    assert results(second) == results(first)
    assert results(second).result.pending_tool_calls[0].metadata == {}


@pytest.mark.parametrize("is_async", [True, False])
def test_a_timeout_is_an_outcome(is_async: bool) -> None:
    @tool(timeout=2.0)
    def slow() -> str:
        RAN.append("slow")
        time.sleep(5.0)
        return "late"

    @tool(name="slow", timeout=2.0)
    async def slow_async() -> str:
        RAN.append("slow")
        await asyncio.sleep(5.0)
        return "late"

    async def timing_out(world: World) -> None:
        journal, tools = MemoryJournal(), [slow_async if is_async else slow]
        call = ToolCall("c0", "slow")
        first = await rxllm.stream(Fake(call, "done"), "Hi", tools=tools).pipe(ops.journaled(journal)).to_list()
        assert time.monotonic() == pytest.approx(2.0)
        assert journal.log == ["answered", "begin slow", "finish", "answered"]
        second = rxllm.stream(never_asked(), "Hi", tools=tools).pipe(ops.journaled(again(journal)))
        assert results(await second.to_list()) == results(first)

    simulate(timing_out, faults=())
    assert RAN == ["slow"]


def test_a_slow_journal_is_not_part_of_the_timeout_of_the_tool() -> None:
    class Slow(MemoryJournal):
        async def begin(self, path: Any, key: str, call: ToolCall) -> None:
            await asyncio.sleep(10.0)
            await super().begin(path, key, call)

        async def finish(self, path: Any, key: str, events: Any) -> None:
            await asyncio.sleep(10.0)
            await super().finish(path, key, events)

    async def noting_slowly(world: World) -> str:
        chat = rxllm.chat(Fake(ToolCall("c0", "add", {"x": 1}), "two"), "Hi", tools=[add], tool_timeout=5.0)
        return (await chat.pipe(ops.journaled(Slow()))).steps[0].tool_results[0].text

    assert simulate(noting_slowly, faults=()).value == "2"


def test_failures_and_halts_are_outcomes() -> None:
    @tool
    def fails(x: int) -> str:
        RAN.append("fails")
        raise ValueError("no")

    @tool
    def stops() -> Any:
        RAN.append("stops")
        return halt("enough", {"n": 1})

    calls = [ToolCall("c0", "fails", {"x": 1}), ToolCall("c1", "fails", {"x": "?"}), ToolCall("c2", "stops")]
    journal = MemoryJournal()
    first = all_of(rxllm.stream(Fake(calls), "Hi", tools=[fails, stops]), journal)
    assert results(first).result.halted_reason == "enough"
    ran = RAN.copy()
    assert results(all_of(rxllm.stream(never_asked(), "Hi", tools=[fails, stops]), again(journal))) == results(first)
    assert ran == RAN


@pytest.mark.parametrize("at", ["begin", "finish"])
def test_a_journal_that_fails_ends_the_stream(at: str) -> None:
    journal = MemoryJournal()
    error = rxllm.RunError("store_unavailable")

    def fail_later(event: Event) -> None:
        if isinstance(event, ToolExecutionStarted) and at == "begin":
            journal.fails = error

    @tool
    def body() -> str:
        RAN.append("body")
        journal.fails = error
        return "done"

    events = rxllm.stream(Fake(ToolCall("c0", "body"), "never"), "Hi", tools=[body]).pipe(ops.tap(fail_later))
    seen: list[Event] = []
    with pytest.raises(rxllm.RunError):
        events.pipe(ops.tap(seen.append), ops.journaled(journal)).run()
    assert ([] if at == "begin" else ["body"]) == RAN
    assert not any(isinstance(event, ToolExecutionCompleted | ToolResultEncoded | StepCompleted) for event in seen)


def test_after_a_dispose_the_tool_does_not_run_and_nothing_is_delivered() -> None:
    async def main() -> None:
        waiting = asyncio.Event()

        class Stuck(MemoryJournal):
            async def begin(self, path: Any, key: str, call: ToolCall) -> None:
                waiting.set()
                await asyncio.Event().wait()

        seen: list[Any] = []
        events = rxllm.stream(Fake(ToolCall("c0", "add", {"x": 1}), "two"), "Hi", tools=[add]).pipe(
            ops.journaled(Stuck())
        )
        before = len(asyncio.all_tasks())
        subscription = events.subscribe(seen.append, on_error=seen.append)
        await until(waiting.is_set)
        count = len(seen)
        subscription.dispose()
        await until(lambda: len(asyncio.all_tasks()) == before)
        assert (RAN, len(seen)) == ([], count)

    asyncio.run(main())


def test_a_dispose_while_the_outcome_is_noted_delivers_nothing() -> None:
    async def main() -> None:
        waiting = asyncio.Event()

        class Stuck(MemoryJournal):
            async def finish(self, path: Any, key: str, events: Any) -> None:
                waiting.set()
                await asyncio.Event().wait()

        seen: list[Any] = []
        events = rxllm.stream(Fake(ToolCall("c0", "add", {"x": 1}), "two"), "Hi", tools=[add]).pipe(
            ops.journaled(Stuck())
        )
        subscription = events.subscribe(seen.append, on_error=seen.append)
        await until(waiting.is_set)
        subscription.dispose()
        await turns()
        assert not any(isinstance(event, ToolExecutionCompleted | ErrorEvent) for event in seen)

    asyncio.run(main())


def test_the_calls_of_a_tool_are_noted_too() -> None:
    inner = Fake("inner")

    @tool(idempotent=True)
    def ask(question: str) -> str:
        RAN.append("ask")
        return rxllm.generate(inner, question).run().output_text

    journal = MemoryJournal()
    first = all_of(rxllm.stream(Fake(ToolCall("c0", "ask", {"question": "?"}), "done"), "Hi", tools=[ask]), journal)
    kinds = [entry[0] for entry in journal.entries]
    assert kinds == ["response", "begin", "response", "finish", "response"]
    second = all_of(rxllm.stream(Fake("done"), "Hi", tools=[ask]), again(journal, 3))
    assert results(second) == results(first)
    assert (RAN, len(inner.requests)) == (["ask", "ask"], 1)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_wherever_it_stops_a_second_run_gives_the_same_and_finished_tools_run_once(data: st.DataObject) -> None:
    RAN.clear()
    calls = [ToolCall("c0", "send", {"x": 0}), ToolCall("c1", "send", {"x": 1})]
    scripts: list[Any] = [calls, [ToolCall("c2", "send", {"x": 2})], "done"]
    journal = MemoryJournal()
    first = results(all_of(rxllm.stream(Fake(*scripts), "Hi", tools=[send], max_concurrency=1), journal))
    RAN.clear()
    stopped = data.draw(st.integers(0, len(journal.entries)))
    known = journal.entries[:stopped]
    answered = sum(kind == "response" for kind, _, _ in known)
    second = again(journal, stopped)
    rest = Fake(*scripts[answered:]) if answered < len(scripts) else never_asked()
    assert results(all_of(rxllm.stream(rest, "Hi", tools=[send], max_concurrency=1), second)) == first
    finished = sum(kind == "finish" for kind, _, _ in known)
    assert len(RAN) == 3 - finished


def test_idempotent_must_be_true_or_false() -> None:
    with pytest.raises(TypeError, match="idempotent of the tool 'add' must be True or False"):
        rxllm.Tool("add", idempotent="yes")  # type: ignore[arg-type]
    assert rxllm.tool(name="lookup", idempotent=True)(add.handler).idempotent  # type: ignore[arg-type]
    assert send.idempotent
    assert not add.idempotent
    assert send.schema == tool(send.handler).schema  # type: ignore[arg-type]
