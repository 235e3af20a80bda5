"""Tools that fail or halt while the model still writes their arguments: the response ends at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Engine, StreamCollector, ToolContext, ask_user, halt, serializer, tool
from rxllm import operators as ops
from rxllm.collector import VETOED, with_partial_step
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolHalt,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.testing import Cassette, World, simulate
from rxllm.values import Message, StepResult, Tool, ToolCall, ToolError
from tests.operators.journal import KeepingJournal
from tests.operators.support import NO, WRITTEN, Dictation, kinds, refusing, result, stepped
from tests.operators.tools import contents
from tests.waiting import PATIENCE


def called(name: str, id: str = "") -> list[Event]:
    return [ToolCallStarted(id or name, name), ToolCallCompleted(id or name, name, {}, "")]


def look(returns: Any = "seen", **flags: Any) -> Tool:
    return tool(name="look", handler=lambda arguments: returns, **{"eager": True, **flags})


# The response


def test_a_refusal_ends_the_response_and_the_model_reads_it() -> None:
    model = Dictation(TextDelta("I will "), TextDelta("save it."))
    events = stepped(model.write, refusing(NO))
    assert model.written < 20
    assert model.is_closed
    step = result(events)
    assert contents(step) == {"c1": '{"error":"not there"}'}
    assert step.response.output_text == "I will save it."
    assert (step.response.finish_reason, step.response.raw_finish_reason, step.done) == ("tool_calls", VETOED, False)
    assert kinds(events)[-5:] == [
        ToolCallCompleted,
        ToolExecutionCompleted,
        MessageCompleted,
        ToolResultEncoded,
        StepCompleted,
    ]


def test_the_call_is_incomplete_and_keeps_the_arguments_that_the_tool_had() -> None:
    events = stepped(Dictation().write, refusing(NO, after=3))
    (completed,) = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert completed.metadata == {"error": "incomplete", "vetoed": True}
    assert completed.arguments == {"path": "a"}
    assert completed.raw_arguments.startswith('{"path": "a", "text": "xxx')
    (call,) = result(events).thread[-2].tool_calls
    assert (call.arguments, call.raw_arguments) == ({"path": "a"}, None)


def test_the_chat_continues() -> None:
    chat = rxllm.chat(Dictation().write, "Hi", tools=[refusing(NO)]).run()
    assert (chat.output_text, chat.halted_reason, len(chat.steps)) == ("Well then.", "completed", 2)


@pytest.mark.parametrize("error", [ValueError("no\nmore"), NO, ToolError("invalid_arguments", "no")])
def test_every_error_ends_the_response(error: Exception) -> None:
    model = Dictation()
    stepped(model.write, refusing(error, after=2))
    assert model.written < 20


def test_a_tool_that_takes_too_long_ends_the_response() -> None:
    @tool(eager=True, timeout=5.0)
    async def save(path: str, text: rxllm.Stream[str]) -> None:
        await asyncio.Event().wait()

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        yield ToolCallStarted("c1", "save")
        yield ToolCallDelta("c1", '{"path": "a", "text": "x')
        await asyncio.Event().wait()

    async def taking_too_long(world: World) -> None:
        events = await rxllm.stream_step(model, "Hi", tools=[save]).pipe(ops.verify()).to_list()
        assert "did not finish" in contents(result(events))["c1"]
        assert time.monotonic() == pytest.approx(5.0)

    simulate(taking_too_long, faults=())


def test_a_plain_argument_of_the_wrong_type_ends_the_response() -> None:
    @tool(eager=True)
    async def save(path: int, text: rxllm.Stream[str]) -> None:
        raise AssertionError("it never runs")

    model = Dictation()
    assert "path" in contents(result(stepped(model.write, save)))["c1"]
    assert model.written < 20


def test_a_halt_ends_the_response_and_the_chat() -> None:
    model = Dictation()
    events = list(
        rxllm.stream(model.write, "Hi", tools=[refusing(halt("enough", 7))], timeout=PATIENCE).pipe(ops.verify())
    )
    assert isinstance(events[-1], ChatCompleted)
    chat = events[-1].result
    assert (chat.halted_reason, len(chat.steps), chat.metadata["halt_result"]) == ("enough", 1, 7)
    assert model.written < 20
    assert ToolHalt in kinds(events)


def test_a_question_ends_the_response_and_is_answered_as_ever() -> None:
    model = Dictation()
    chat = rxllm.chat(model.write, "Hi", tools=[refusing(ask_user("Overwrite it?"))]).run()
    assert (chat.halted_reason, chat.pending_question) == ("ask_user", "Overwrite it?")
    assert model.written < 20
    assert rxllm.chat(model.write, chat.thread.add_user("Yes"), tools=[refusing("ok")]).run().thread.messages


@pytest.mark.parametrize(
    ("policy", "told", "reason"),
    [
        ("continue", '{"error":"not there"}', None),
        ("halt", '{"error":"not there"}', "tool_error"),
        (lambda call, error: "continue", '{"error":"not there"}', None),
        (lambda call, error: "halt", '{"error":"not there"}', "tool_error"),
        (lambda call, error: {"saved": call.arguments["path"]}, '{"saved":"a"}', None),
        (lambda call, error: halt("done", "over"), "over", "done"),
        (lambda call, error: 1 / 0, '{"error":"not there"}', "tool_error"),
    ],
)
def test_the_policy_decides(policy: Any, told: str, reason: str | None) -> None:
    model = Dictation()
    step = result(stepped(model.write, refusing(NO), on_tool_error=policy))
    assert contents(step) == {"c1": told}
    assert step.metadata.get("halted_reason") == reason
    assert step.done is (reason is not None)
    assert model.written < 20


def test_a_call_that_is_complete_is_no_longer_vetoed() -> None:
    """The tool fails in the moment in which the call is complete: the first of both counts."""

    @tool(eager=True)
    async def save(path: str, text: rxllm.Stream[str]) -> None:
        async for _ in text:
            pass
        raise NO

    step = result(stepped(Dictation().write, save))
    assert step.response.raw_finish_reason != VETOED
    assert step.response.tool_calls[0].arguments == {"path": "a", "text": "x" * WRITTEN}
    assert contents(step) == {"c1": '{"error":"not there"}'}


@pytest.mark.parametrize("turns", range(8))
def test_a_veto_at_the_end_of_the_response_gives_one_result(turns: int) -> None:
    """However the two meet, there is one call with one result."""

    @tool(eager=True)
    async def save(path: str, text: rxllm.Stream[str]) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise NO

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        yield ToolCallStarted("c1", "save")
        yield ToolCallDelta("c1", '{"path": "a", "text": "x')
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        yield ToolCallDelta("c1", '"}')
        yield ToolCallCompleted("c1", "save", {"path": "a", "text": "x"}, '{"path": "a", "text": "x"}')

    step = result(stepped(model, save))
    assert contents(step) == {"c1": '{"error":"not there"}'}
    assert [call.id for call in step.thread[-2].tool_calls] == ["c1"]


def test_a_call_that_the_response_leaves_open_is_dropped() -> None:
    """The adapter breaks the rule that every call is completed. Its other calls run."""

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        yield ToolCallStarted("c1", "save")
        yield ToolCallDelta("c1", '{"path": "a", "text": "x')
        for event in called("look"):
            yield event
        await asyncio.sleep(0)

    @tool(eager=True)
    async def save(path: str, text: rxllm.Stream[str]) -> None:
        async for _ in text:
            pass
        raise NO

    step = rxllm.step(model, "Hi", tools=[save, look()], timeout=PATIENCE).run()
    assert contents(step) == {"look": "seen"}


def test_presentation_options_change_no_result() -> None:
    def step(**options: Any) -> StepResult:
        return rxllm.step(Dictation(TextDelta("So.")).write, "Hi", tools=[refusing(NO)], **options).run()

    assert step(emit_tool_deltas=False, emit_text_deltas=False).thread == step().thread


def test_events_fold_to_the_step_and_survive_json() -> None:
    events = stepped(Dictation(TextDelta("So. "), *called("look")).write, refusing(NO), look())
    assert serializer.from_json(serializer.to_json(events)) == events
    state = StreamCollector(rxllm.Thread((rxllm.user("Hi"),)))
    for event in events[:-1]:
        state = state.apply_event(event)
        again = StreamCollector(rxllm.Thread((rxllm.user("Hi"),)))
        for other in state.to_events():
            again = again.apply_event(other)
        assert again == state
    assert state.to_step_result() == result(events)


# Other calls of the response


def test_complete_calls_keep_their_results() -> None:
    slow = asyncio.Event()

    async def work(arguments: Any) -> str:
        await slow.wait()
        return "worked"

    def see(event: Event) -> None:
        if isinstance(event, MessageCompleted):
            slow.set()  # it runs on after the veto

    tools = [look(), look_at("late", eager=False), tool(name="work", handler=work, eager=True), refusing(NO)]
    model = Dictation(*called("look"), *called("late"), *called("work"))
    events = rxllm.stream_step(model.write, "Hi", tools=tools, timeout=PATIENCE).pipe(ops.tap(see), ops.verify())
    step = events.pipe(ops.to_step_result()).run()
    assert contents(step) == {"look": "seen", "late": "late", "work": "worked", "c1": '{"error":"not there"}'}
    assert [message.tool_call_id for message in step.tool_results] == ["look", "late", "work", "c1"]


def look_at(name: str, **flags: Any) -> Tool:
    return tool(name=name, handler=lambda arguments: name, **flags)


def test_of_two_halts_the_earliest_call_wins() -> None:
    model = Dictation(*called("look"))
    events = stepped(model.write, look(halt("first")), refusing(halt("second")))
    assert result(events).metadata["halted_reason"] == "first"
    assert model.written < 20


@pytest.mark.parametrize("most", [None, 1])
def test_a_call_that_is_being_written_beside_it_is_dropped(most: int | None) -> None:
    """Its tool is stopped, and the thread has neither the call nor a result, so the model may call it again."""
    begun: list[str] = []
    ended: list[bool] = []

    @tool(eager=True)
    async def other(text: rxllm.Stream[str], context: ToolContext) -> None:
        begun.append("other")
        try:
            async for _ in text:
                pass
        finally:
            ended.append(context.cancelled.is_set())

    beside = (ToolCallStarted("o1", "other"), ToolCallDelta("o1", '{"text": "half'), ToolCallDelta("o1", " of it"))
    model = Dictation(after=beside)
    events = stepped(model.write, other, refusing(NO, after=2), max_concurrency=most)
    step = result(events)
    assert contents(step) == {"c1": '{"error":"not there"}'}
    assert [call.id for call in step.thread[-2].tool_calls] == [call.id for call in step.response.tool_calls] == ["c1"]
    ends = {e.id: getattr(e.error, "reason", None) for e in events if isinstance(e, ToolExecutionCompleted)}
    if most == 1:  # it has never started
        assert (ends, begun) == ({"c1": "handler_raised"}, [])
    else:
        assert (ends, ended) == ({"c1": "handler_raised", "o1": "cancelled"}, [True])
    assert model.written < 20


def test_a_tool_that_still_reads_a_complete_call_reads_to_its_end() -> None:
    read: list[str] = []
    vetoed = asyncio.Event()

    @tool(eager=True)
    async def other(text: rxllm.Stream[str]) -> str:
        async for piece in text:
            read.append(piece)
            await vetoed.wait()
        return "".join(read)

    raw = '{"text": "abc"}'
    whole = [
        ToolCallStarted("o1", "other"),
        *(ToolCallDelta("o1", piece) for piece in ('{"text": "a', "b", 'c"}')),
        ToolCallCompleted("o1", "other", json.loads(raw), raw),
    ]

    def see(event: Event) -> None:
        if isinstance(event, MessageCompleted):
            vetoed.set()

    events = rxllm.stream_step(Dictation(*whole).write, "Hi", tools=[other, refusing(NO)], timeout=PATIENCE).pipe(
        ops.tap(see)
    )
    assert contents(events.pipe(ops.to_step_result()).run()) == {"o1": "abc", "c1": '{"error":"not there"}'}


# What surrounds it


def test_an_unknown_tool_still_ends_the_step() -> None:
    events = stepped(Dictation(*called("who")).write, refusing(NO))
    assert [event.error.reason for event in events if isinstance(event, ErrorEvent)] == ["unknown_tool"]
    assert result(events).tool_results == ()


def test_a_failure_after_a_restart_is_the_new_responses() -> None:
    """The first response's tool is stopped before it fails."""

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        yield MessageStarted(Message("assistant"))
        yield ToolCallStarted("c1", "save")
        yield ToolCallDelta("c1", '{"path": "a", "text": "x')
        yield StepRestarted("again", 1)
        yield MessageStarted(Message("assistant"))
        yield TextDelta("No tool.")

    events = stepped(model, refusing(NO))
    assert result(events).response.output_text == "No tool."
    assert result(events).tool_results == ()


def test_a_dictation_that_is_raced_ends_at_its_veto() -> None:
    models = [Dictation(), Dictation()]
    raced = Engine(models[0].write, operators=[ops.race(rxllm.stream_generate(models[1].write, "Hi"))])
    assert contents(result(stepped(raced, refusing(NO)))) == {"c1": '{"error":"not there"}'}  # type: ignore[arg-type]
    assert all(model.written < 20 for model in models)


def test_a_budget_counts_what_has_arrived() -> None:
    budget = rxllm.Budget(tokens=10_000)
    rxllm.chat(
        Engine(Dictation().write, operators=[ops.budget(budget)]), "Hi", tools=[refusing(NO)], max_tokens=100
    ).run()
    assert 0 < budget.spent.tokens < 200


def test_the_usage_has_no_cost() -> None:
    model = Dictation(UsageUpdated(rxllm.Usage(input_tokens=10)))
    priced = Engine(model.write, operators=[ops.cost(price=lambda usage: replace(usage, total_cost=1.0))])
    usage = rxllm.step(priced, "Hi", tools=[refusing(NO)]).run().usage
    assert (usage.input_tokens, usage.total_cost) == (10, None)


def test_a_cassette_asks_the_model_again(tmp_path: Path) -> None:
    models = [Dictation(), Dictation()]
    for model in models:
        rxllm.chat(Cassette(tmp_path / "tape.jsonl", model.write), "Hi", tools=[refusing(NO)]).run()
    assert all(model.is_closed for model in models)


def test_an_agents_tool_vetoes_in_its_own_response() -> None:
    inner = Dictation()
    agent = Engine(inner.write, tools=[refusing(NO)]).as_tool(name="agent")
    outer = rxllm.Fake([ToolCall("a1", "agent", {"prompt": "Go"})], "Done.")
    events = list(rxllm.stream(outer, "Hi", tools=[agent], timeout=PATIENCE).pipe(ops.verify()))
    assert isinstance(events[-1], ChatCompleted)
    assert contents(events[-1].result.steps[0]) == {"a1": "Well then."}
    assert any(isinstance(event, Nested) and isinstance(event.event, ToolResultEncoded) for event in events)
    assert inner.written < 20


def test_a_journaled_stream_has_whole_arguments_so_the_refusal_is_an_ordinary_error() -> None:
    model = rxllm.Fake([ToolCall("c1", "save", {"path": "a", "text": "bc"})], "Done.")
    chat = rxllm.stream(model, "Hi", tools=[refusing(NO)]).pipe(ops.journaled(KeepingJournal()), ops.to_chat_result())
    step = chat.run().steps[0]
    assert step.response.raw_finish_reason != VETOED
    assert contents(step) == {"c1": '{"error":"not there"}'}


def test_disposing_during_the_veto_ends_everything() -> None:
    model = Dictation()
    seen: list[Event] = []

    async def main() -> None:
        async for event in rxllm.stream(model.write, "Hi", tools=[refusing(NO)]):
            seen.append(event)
            if isinstance(event, ToolCallCompleted):
                break

    asyncio.run(main())
    assert kinds(seen)[-1] is ToolCallCompleted
    assert model.is_closed


def test_a_cancelled_chat_keeps_the_vetoed_call_in_a_form_that_providers_accept() -> None:
    state = StreamCollector(rxllm.Thread((rxllm.user("Hi"),)))
    for event in stepped(Dictation().write, refusing(NO))[:-1]:
        state = state.apply_event(event)
    partial = with_partial_step(state, state.to_chat_result())
    (call,) = partial.thread[-2].tool_calls
    assert (call.arguments, call.raw_arguments, partial.thread[-1].role) == ({"path": "a"}, None, "tool")
