from __future__ import annotations

from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Engine, Fake, Session, StepResult, Thread, ToolCall, ToolContext, Usage, session, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, Event, MessageCompleted, StepCompleted, TextDelta, ToolExecutionStarted


@tool
def double(x: int) -> int:
    return 2 * x


CALL = ToolCall("c1", "double", {"x": 21})
TOOLS: dict[str, Any] = {"tools": [double]}


def test_a_step_is_the_fold_of_its_stream() -> None:
    streamed = rxllm.stream_step(Fake(["Hm", CALL]), "Hi", **TOOLS).pipe(ops.to_step_result())
    assert rxllm.step(Fake(["Hm", CALL]), "Hi", **TOOLS).run() == streamed.run()


def test_adapter_events_then_tool_events_then_the_step() -> None:
    events = list(rxllm.stream_step(Fake(CALL), "Hi", **TOOLS))
    kinds = [type(event) for event in events]
    assert kinds.index(MessageCompleted) < kinds.index(ToolExecutionStarted)
    assert kinds.count(StepCompleted) == 1
    assert isinstance(events[-1], StepCompleted)


def test_a_step_asks_the_model_once() -> None:
    fake = Fake(CALL, "42")
    step = rxllm.step(fake, "Hi", **TOOLS).run()
    assert (len(fake.requests), step.done, step.thread[-1].content) == (1, False, "42")


def test_its_thread_can_be_asked_on() -> None:
    fake = Fake(CALL, "42")
    first = rxllm.step(fake, "Hi", **TOOLS).run()
    second = rxllm.step(fake, first.thread, **TOOLS).run()
    assert (second.done, second.thread[-1].content) == (True, "42")
    assert fake.requests[1].messages == first.thread.messages


def test_a_thread_keeps_its_metadata() -> None:
    thread = rxllm.Thread((rxllm.user("Hi"),), {"title": "greeting"})
    assert rxllm.step(Fake("Hello"), thread).run().thread.metadata == {"title": "greeting"}


def test_on_event_sees_no_tool_events() -> None:
    seen: list[Event] = []
    rxllm.step(Fake(CALL), "Hi", on_event=seen.append, **TOOLS).run()
    assert isinstance(seen[-1], MessageCompleted)


def test_a_failure_before_the_first_event_is_raised() -> None:
    with pytest.raises(AdapterError):
        rxllm.step(Fake(AdapterError("invalid_request")), "Hi").run()


def test_a_failure_on_the_way_is_a_result() -> None:
    step = rxllm.step(Fake(["Hal", CALL, Usage(2, 1), ("error", "timeout")]), "Hi", **TOOLS).run()
    assert (step.response.finish_reason, step.done, step.tool_results) == ("error", True, ())
    assert step.response.usage == Usage(2, 1)


def test_presentation_options_change_no_step() -> None:
    shown: dict[str, Any] = {"emit_text_deltas": False, "emit_tool_deltas": False, "emit_thinking": False}
    turn = ["Hm", ("thinking", "hm"), CALL]
    assert rxllm.step(Fake(turn), "Hi", **TOOLS, **shown).run() == rxllm.step(Fake(turn), "Hi", **TOOLS).run()
    assert TextDelta not in map(type, rxllm.stream_step(Fake(turn), "Hi", **TOOLS, **shown))


def test_tools_know_the_call_they_belong_to() -> None:
    seen: list[ToolContext] = []

    @tool
    def look(context: ToolContext) -> None:
        seen.append(context)

    engine = Engine(Fake(ToolCall("c1", "look")), tools=(look,)).with_context(a=1, b=1)
    rxllm.step(engine, "Hi", context={"b": 2}, session_id="s1", request_id="r1").run()
    (context,) = seen
    assert (context.context, context.session_id, context.request_id) == ({"a": 1, "b": 2}, "s1", "r1")
    assert context.engine is engine


def test_the_calls_executor_and_encoder_win_over_the_engines() -> None:
    engine = Engine(
        Fake(CALL),
        tools=(double,),
        tool_executor=lambda each, arguments, context: "engine's",
        tool_result_encoder=lambda value: f"<{value}>",
    )
    assert rxllm.step(engine, "Hi").run().thread[-1].content == "<engine's>"
    step = rxllm.step(
        engine,
        "Hi",
        tool_executor=lambda each, arguments, context: "call's",
        tool_result_encoder=lambda value: f"[{value}]",
    )
    assert step.run().thread[-1].content == "[call's]"


def test_an_unknown_tool_is_an_error_and_a_step() -> None:
    *_, error, last = list(rxllm.stream_step(Fake(CALL), "Hi"))
    assert isinstance(error, ErrorEvent)
    assert isinstance(last, StepCompleted)
    assert last.response.error == error.error
    assert rxllm.step(Fake(CALL), "Hi").run() == last.result


def test_a_loop_of_ones_own_ends_where_a_call_waits_for_an_approval() -> None:
    """`StepResult.done` and the pending calls agree: nothing is sent that has an unanswered call."""
    pay = tool(name="pay", handler=lambda arguments: "paid", approval=True)
    fake, thread, steps = Fake(ToolCall("c1", "pay"), "Done."), Thread().add_user("Pay!"), list[StepResult]()
    while not steps or not steps[-1].done:
        steps.append(rxllm.step(fake, thread, tools=[pay]).run())
        thread = steps[-1].thread
    assert (len(steps), len(fake.requests)) == (1, 1)
    result = rxllm.resume(fake, steps[-1], approvals={"c1": True}, tools=[pay]).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Done.")


def test_a_session_whose_step_waits_is_not_completed() -> None:
    pay = tool(name="pay", handler=lambda arguments: "paid", approval=True)
    begun = Session(thread=Thread().add_user("Pay!"))
    turn = session.step(Fake(ToolCall("c1", "pay")), begun, tools=[pay]).run()
    assert turn.session.status != "completed"
