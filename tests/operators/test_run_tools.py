"""Which calls run, what they say, and what the step is then. How they run is in `test_run_tools_execution`."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest
from reactivex import from_iterable, of, throw

from rxllm import Engine, Fake, ToolContext, ValidationError, ask_user, chat, halt, stream_generate, tool, tool_result
from rxllm import operators as ops
from rxllm.collector import AWAITING_USER
from rxllm.events import (
    AskUserRequested,
    ErrorEvent,
    Event,
    MessageCompleted,
    RawChunk,
    StepCompleted,
    TextDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolResultEncoded,
)
from rxllm.runtime import Stream
from rxllm.values import EngineError, Message, StepResult, Thread, Tool, ToolCall, ToolError, user
from tests.operators.tools import THREAD, calling, contents, events_of, response, result, told
from tests.waiting import PATIENCE


@tool
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@tool
def fail() -> None:
    raise ValueError("first line\nsecond line, with internals")


@tool
def stop() -> Any:
    return halt("found", {"answer": 42})


@tool
def ask() -> Any:
    return ask_user("Which one?", choices=["a", "b"])


CALL = ToolCall("c1", "double", {"x": 21}, '{"x":21}')


# What runs


def test_a_response_without_calls_is_a_step_at_once() -> None:
    events = events_of(Stream.of(from_iterable([TextDelta("Hi"), *response(reason="stop")[1:]])), [double])
    assert [type(event) for event in events] == [TextDelta, MessageCompleted, StepCompleted]
    step = events[-1].result  # type: ignore[union-attr]
    assert (step.done, step.metadata, step.tool_results) == (True, {}, ())
    assert step.thread == THREAD + Message("assistant", "Hi")


def test_a_call_is_started_completed_and_told() -> None:
    assert told(calling(CALL), [double]) == [
        ToolExecutionStarted("c1", "double", {"x": 21}),
        ToolExecutionCompleted("c1", "double", 42),
        ToolResultEncoded("c1", "42"),
    ]


def test_the_steps_thread_is_the_question_the_answer_and_the_results() -> None:
    step = result(calling(CALL), [double])
    assert step.thread == THREAD + Message("assistant", "", tool_calls=(CALL,)) + tool_result("c1", "42")
    assert (step.done, step.metadata, step.response.finish_reason) == (False, {}, "tool_calls")


def test_a_step_needs_the_thread_that_the_model_was_asked_with() -> None:
    with pytest.raises(ValidationError, match=r"thread is missing: write run_tools\(tools, thread=thread\)"):
        ops.run_tools([double])


def test_the_thread_may_be_messages_or_text() -> None:
    step = calling(CALL).pipe(ops.run_tools([double], thread="Double 21!"), ops.to_step_result()).run()
    assert step.thread[0] == user("Double 21!")


def test_one_request_id_is_the_models_and_the_tools() -> None:
    ids: list[str | None] = []

    async def adapter(request: Any, call: Any) -> Any:
        ids.append(call.request_id)
        yield ToolCallStarted("c1", "look")
        yield ToolCallCompleted("c1", "look", {}, "{}")

    look = tool(name="look", handler=lambda arguments, context: ids.append(context.request_id))
    stream_generate(adapter, THREAD, tools=[look]).pipe(ops.run_tools([look], thread=THREAD)).run()
    assert ids[0] == ids[1] is not None


def test_tools_know_the_engine_and_the_ids_that_are_passed() -> None:
    known: list[ToolContext] = []
    look = tool(name="look", handler=lambda arguments, context: known.append(context))
    engine = Engine(Fake(ToolCall("c1", "look", {}, "{}"), "Done."), tools=[look])
    thread = Thread((user("Look!"),), {"mine": 1})
    ids: Any = {"request_id": "r1", "session_id": "s1"}
    answer = stream_generate(engine, thread, **ids)
    step = answer.pipe(ops.run_tools([look], thread=thread, engine=engine, **ids), ops.to_step_result()).run()
    assert step.thread[:1] == thread
    assert [(context.request_id, context.session_id, context.engine) for context in known] == [("r1", "s1", engine)]


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_a_response_that_was_cut_off_runs_nothing_and_leaves_its_calls_out_of_the_thread(reason: str) -> None:
    step = result(calling(CALL, reason=reason), [double])
    assert (step.tool_results, step.thread, step.done) == ((), THREAD, True)


def test_a_failed_response_runs_nothing() -> None:
    events = [*response(CALL)[:-1], ErrorEvent(EngineError("invalid_engine"))]
    step = result(Stream.of(from_iterable(events)), [double])
    assert (step.tool_results, step.response.finish_reason) == ((), "error")


def test_the_providers_own_calls_are_not_run() -> None:
    search = ToolCall("s1", "search", {}, "{}", {"server": True})
    step = result(calling(search, reason="stop"), [double])
    assert (step.tool_results, step.done) == ((), True)
    assert step.thread[-1].tool_calls == (search,)


def test_an_unknown_tool_runs_none_of_them() -> None:
    ran: list[int] = []
    noted = tool(name="double", handler=lambda arguments: ran.append(1))
    *_, error, last = events_of(calling(CALL, "nothing", "neither"), [noted])
    assert isinstance(error, ErrorEvent)
    assert isinstance(error.error, EngineError)
    assert (error.error.reason, error.error.metadata) == ("unknown_tool", {"tool_name": "nothing"})
    assert "'nothing', 'neither'" in error.error.message
    assert "'double'" in error.error.message
    assert isinstance(last, StepCompleted)
    assert (last.response.finish_reason, last.response.error, last.result.done) == ("error", error.error, True)
    assert (last.thread, ran) == (THREAD, [])


def test_a_raised_error_of_the_source_passes_and_runs_nothing() -> None:
    failure = EngineError("missing_key")
    with pytest.raises(EngineError) as caught:
        Stream.of(throw(failure)).pipe(ops.run_tools([double], thread=THREAD)).run()
    assert caught.value is failure


def test_a_raw_usage_with_unknown_names_is_the_streams_error() -> None:
    with pytest.raises(TypeError):
        Stream.of(of(RawChunk("usage", {"nonsense": 1}))).pipe(ops.run_tools([double], thread=THREAD)).run()


# The order of results and halts


def test_results_are_in_the_order_of_the_calls_however_they_finish() -> None:
    second_is_done = threading.Event()
    slow = tool(name="slow", handler=lambda arguments: second_is_done.wait(PATIENCE) and "slow")
    fast = tool(name="fast", handler=lambda arguments: "fast")
    events: list[Event] = []

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, ToolResultEncoded):
            second_is_done.set()

    calling("slow", "fast").pipe(ops.run_tools([slow, fast], thread=THREAD), ops.tap(note)).run()
    encoded = [event.id for event in events if isinstance(event, ToolResultEncoded)]
    assert encoded == ["fast", "slow"]
    assert isinstance(events[-1], StepCompleted)
    assert [message.tool_call_id for message in events[-1].result.tool_results] == ["slow", "fast"]


def test_a_halt_ends_the_step_with_its_reason_and_result() -> None:
    events = told(calling("stop"), [stop])
    assert events[1:] == [
        ToolExecutionCompleted("stop", "stop", {"answer": 42}),
        ToolHalt("stop", "found", {"answer": 42}, '{"answer":42}'),
    ]
    step = result(calling("stop"), [stop])
    assert step.metadata == {"halted_reason": "found", "halt_tool_call_id": "stop", "halt_result": {"answer": 42}}
    assert (step.done, contents(step)) == (True, {"stop": '{"answer":42}'})


def test_a_question_to_the_user_ends_the_step() -> None:
    assert told(calling("ask"), [ask])[-1] == AskUserRequested("ask", "ask", "Which one?", {"choices": ["a", "b"]})
    step = result(calling("ask"), [ask])
    assert step.metadata == {
        "halted_reason": "ask_user",
        "pending_tool_call_id": "ask",
        "pending_question": "Which one?",
        "ask_user_opts": {"choices": ["a", "b"]},
    }
    assert contents(step) == {"ask": AWAITING_USER}


def test_siblings_finish_before_a_halt_is_said() -> None:
    events = told(calling("stop", CALL), [stop, double])
    assert isinstance(events[-1], ToolHalt)
    assert ToolResultEncoded("c1", "42") in events


def test_the_earliest_call_wins_of_several_halts_and_every_result_is_kept() -> None:
    step = result(calling("ask", CALL, "stop"), [stop, double, ask])
    assert step.metadata["halted_reason"] == "ask_user"
    assert list(contents(step)) == ["ask", "c1", "stop"]
    assert result(calling("stop", "ask"), [stop, ask]).metadata["halted_reason"] == "found"


@pytest.mark.parametrize(
    "reason",
    [
        "ask_user",
        "max_turns",
        "halt_when",
        "tool_error",
        "cancelled",
        "completed",
        "error",
        "manual_tool_calls",
        "approval",
    ],
)
def test_a_tool_cannot_halt_with_what_the_chat_itself_halts_with(reason: str) -> None:
    greedy = tool(name="greedy", handler=lambda arguments: halt(reason))
    (_, completed, encoded) = told(calling("greedy"), [greedy])
    assert isinstance(completed, ToolExecutionCompleted)
    assert isinstance(completed.error, ToolError)
    assert (completed.error.reason, completed.error.metadata) == ("invalid_return", {"reserved_halt_reason": reason})
    assert isinstance(encoded, ToolResultEncoded)


# Failures


def test_the_model_is_told_one_line_of_an_exception() -> None:
    (_, completed, encoded) = told(calling("fail"), [fail])
    assert isinstance(completed, ToolExecutionCompleted)
    assert isinstance(completed.error, ToolError)
    assert (completed.error.reason, completed.error.tool_name, completed.error.tool_call_id) == (
        "handler_raised",
        "fail",
        "fail",
    )
    assert isinstance(completed.error.__cause__, ValueError)
    assert encoded == ToolResultEncoded("fail", '{"error":"ValueError: first line"}')


def test_an_exception_without_text_is_told_by_its_name() -> None:
    def refuse(arguments: Any) -> None:
        raise KeyError

    assert contents(result(calling("f"), [tool(name="f", handler=refuse)])) == {"f": '{"error":"KeyError"}'}


def test_continue_goes_on_after_a_failure() -> None:
    step = result(calling("fail", CALL), [fail, double], on_tool_error="continue")
    assert (step.done, step.metadata) == (False, {})
    assert contents(step)["c1"] == "42"


def test_halt_ends_the_step_once_the_siblings_have_finished() -> None:
    events = told(calling("fail", CALL), [fail, double], on_tool_error="halt")
    assert events[-1] == ToolHalt("fail", "tool_error", content='{"error":"ValueError: first line"}')
    step = result(calling("fail", CALL), [fail, double], on_tool_error="halt")
    assert step.metadata == {"halted_reason": "tool_error", "halt_tool_call_id": "fail"}
    assert (step.done, contents(step)["c1"]) == (True, "42")


def test_a_policy_gives_the_result_instead() -> None:
    asked: list[tuple[ToolCall, ToolError]] = []

    def policy(call: ToolCall, error: ToolError) -> Any:
        asked.append((call, error))
        return {"instead": 1}

    assert contents(result(calling("fail"), [fail], on_tool_error=policy)) == {"fail": '{"instead":1}'}
    ((call, error),) = asked
    assert (call.id, error.reason) == ("fail", "handler_raised")


@pytest.mark.parametrize("word", ["continue", "halt"])
def test_a_policy_can_return_the_options_own_words(word: str) -> None:
    # One at a time: two that end on threads of their own have no order.
    said, decided = ({"on_tool_error": policy, "max_concurrency": 1} for policy in (word, lambda call, error: word))
    assert told(calling("fail", CALL), [fail, double], **decided) == told(calling("fail", CALL), [fail, double], **said)
    assert result(calling("fail", CALL), [fail, double], **decided) == result(
        calling("fail", CALL), [fail, double], **said
    )


def test_a_policy_that_raises_the_error_it_was_given_halts_as_the_word_does() -> None:
    def policy(call: ToolCall, error: ToolError) -> Any:
        raise error

    step = result(calling("fail"), [fail], on_tool_error=policy)
    assert step == result(calling("fail"), [fail], on_tool_error="halt")
    assert step.metadata == {"halted_reason": "tool_error", "halt_tool_call_id": "fail"}


def test_a_policy_can_halt() -> None:
    step = result(calling("fail"), [fail], on_tool_error=lambda call, error: halt("gave_up", call.id))
    assert step.metadata == {"halted_reason": "gave_up", "halt_tool_call_id": "fail", "halt_result": "fail"}


def test_a_policy_can_ask_the_user() -> None:
    step = result(calling("fail"), [fail], on_tool_error=lambda call, error: ask_user("What now?"))
    assert (step.metadata["halted_reason"], step.metadata["pending_question"]) == ("ask_user", "What now?")


def test_a_policy_that_raises_halts_and_says_why() -> None:
    asked: list[str] = []

    def policy(call: ToolCall, error: ToolError) -> Any:
        asked.append(call.id)
        raise RuntimeError("the policy's own")

    step = result(calling("fail"), [fail], on_tool_error=policy)
    assert step.metadata == {
        "halted_reason": "tool_error",
        "halt_tool_call_id": "fail",
        "on_tool_error_exception": {"type": "RuntimeError", "message": "the policy's own"},
    }
    assert asked == ["fail"]


def test_a_policys_replacement_that_cannot_be_told_halts() -> None:
    step = result(calling("fail"), [fail], on_tool_error=lambda call, error: object())
    assert (step.metadata["halted_reason"], step.metadata["on_tool_error_exception"]["type"]) == (
        "tool_error",
        "ToolError",
    )


def test_a_policy_cannot_halt_with_a_reserved_reason() -> None:
    step = result(calling("fail"), [fail], on_tool_error=lambda call, error: halt("completed"))
    assert step.metadata["halted_reason"] == "tool_error"


def test_arguments_that_do_not_parse_run_nothing() -> None:
    broken = ToolCall("c1", "double", {}, '{"x": 2', {"error": "invalid_json"})
    (started, completed, encoded) = told(calling(broken), [double])
    assert isinstance(started, ToolExecutionStarted)
    assert isinstance(completed, ToolExecutionCompleted)
    assert isinstance(completed.error, ToolError)
    assert completed.error.reason == "invalid_arguments"
    assert isinstance(encoded, ToolResultEncoded)
    assert "not a JSON object" in json.loads(encoded.content)["error"]


def test_arguments_of_the_wrong_type_are_told_to_the_model() -> None:
    step = result(calling(ToolCall("c1", "double", {"x": "two"}, "{}")), [double])
    assert "int" in json.loads(contents(step)["c1"])["error"]


def test_a_tool_without_a_handler_is_a_failure() -> None:
    (_, completed, _) = told(calling("bare"), [Tool("bare")])
    assert isinstance(completed, ToolExecutionCompleted)
    assert isinstance(completed.error, ToolError)
    assert completed.error.reason == "not_found"


ODD = tool(name="odd", handler=lambda arguments: object())


def test_a_result_that_cannot_be_encoded_is_decided_by_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ToolError] = []

    def replacing(call: ToolCall, error: ToolError) -> Any:
        seen.append(error)
        return {"sorry": call.name}

    with caplog.at_level(logging.WARNING, "rxllm"):
        step = result(calling("odd", CALL), [ODD, double])
    assert contents(step) == {"odd": '{"error":"the result of the tool cannot be encoded"}', "c1": "42"}
    (record,) = caplog.records
    assert "the result of the tool 'odd' cannot be encoded for the model" in record.getMessage()
    assert contents(result(calling("odd"), [ODD], on_tool_error=replacing)) == {"odd": '{"sorry":"odd"}'}
    assert [(error.reason, error.tool_name) for error in seen] == [("encoding_failed", "odd")]
    halted = result(calling("odd", CALL), [ODD, double], on_tool_error="halt")
    assert (halted.metadata["halted_reason"], contents(halted)["c1"]) == ("tool_error", "42")


def test_a_chat_goes_on_after_a_result_that_cannot_be_encoded() -> None:
    fake = Fake(ToolCall("c1", "odd", {}), "Sorry.")
    chatted = chat(fake, "Go", tools=[ODD]).run()
    assert (chatted.halted_reason, chatted.output_text, len(chatted.steps)) == ("completed", "Sorry.", 2)
    kept = chat(Fake(ToolCall("c1", "odd", {})), "Go", tools=[ODD], on_tool_error="halt").run()
    assert (kept.halted_reason, [message.role for message in kept.thread]) == (
        "tool_error",
        ["user", "assistant", "tool"],
    )


# Who encodes, who executes


@pytest.mark.parametrize(
    ("value", "content"), [("text", "text"), (None, "null"), ({"a": [1, True]}, '{"a":[1,true]}'), (1.5, "1.5")]
)
def test_text_is_told_as_it_is_and_the_rest_as_json(value: Any, content: str) -> None:
    assert contents(result(calling("f"), [tool(name="f", handler=lambda arguments: value)])) == {"f": content}


def test_an_encoder_decides_what_the_model_is_told() -> None:
    step = result(calling(CALL, "fail"), [double, fail], encoder=lambda value: f"<{value}>")
    assert contents(step) == {"c1": "<42>", "fail": "<{'error': 'ValueError: first line'}>"}


def test_an_encoder_that_fails_is_decided_by_the_policy_and_leaves_errors_to_json() -> None:
    def refuse(value: Any) -> str:
        raise TypeError("no")

    reasons: list[str] = []

    def noting(call: ToolCall, error: ToolError) -> str:
        reasons.append(error.message)
        return "continue"

    for encoder in (refuse, lambda value: value):
        step = result(calling(CALL), [double], encoder=encoder, on_tool_error=noting)
        assert contents(step) == {"c1": '{"error":"the result of the tool cannot be encoded"}'}
    assert "TypeError: no" in reasons[0]
    assert "tool_result_encoder must return text, not 42" in reasons[1]
    assert contents(result(calling("fail"), [fail], encoder=refuse)) == {"fail": '{"error":"ValueError: first line"}'}


def test_an_executor_runs_the_tools_instead() -> None:
    def execute(each: Tool, arguments: Any, context: ToolContext) -> Any:
        return f"{each.name} {dict(arguments)} {context.tool_call.id} {context.context['who']}"

    step = result(calling(CALL), [double], executor=execute, context={"who": "me"})
    assert contents(step) == {"c1": "double {'x': 21} c1 me"}


def test_a_tool_is_given_what_it_may_know() -> None:
    seen: list[ToolContext] = []

    @tool
    def look(context: ToolContext) -> str:
        seen.append(context)
        return "seen"

    result(calling("look"), [look], context={"who": "me"})
    (context,) = seen
    assert (context.tool_call.id, context.context, context.engine) == ("look", {"who": "me"}, None)


# What is left to the caller


def test_in_manual_mode_nothing_runs() -> None:
    events = told(calling(CALL), [double], mode="manual")
    assert events == []
    step = result(calling(CALL), [double], mode="manual")
    assert (step.metadata, step.done, step.tool_results) == ({"mode": "manual"}, False, ())
    assert step.thread[-1].tool_calls == (CALL,)


def test_manual_tools_are_left_and_the_others_run() -> None:
    sign = tool(name="sign", manual=True)
    step = result(calling("sign", CALL), [sign, double])
    assert contents(step) == {"c1": "42"}
    assert [call.id for call in step.metadata["manual_tool_calls"]] == ["sign"]
    assert (step.done, "mode" in step.metadata) == (True, False)


def test_manual_tools_alone_run_nothing() -> None:
    sign = tool(name="sign", manual=True)
    step = result(calling("sign"), [sign])
    assert (step.tool_results, [call.id for call in step.metadata["manual_tool_calls"]]) == ((), ["sign"])


def test_a_halt_keeps_the_manual_calls() -> None:
    sign = tool(name="sign", manual=True)
    step = result(calling("sign", "stop"), [sign, stop])
    assert step.metadata["halted_reason"] == "found"
    assert [call.id for call in step.metadata["manual_tool_calls"]] == ["sign"]


def test_without_an_approver_a_tool_that_needs_one_waits() -> None:
    pay = tool(name="pay", handler=lambda arguments: "paid", approval=True)
    events = told(calling("pay", CALL), [pay, double])
    assert events[0] == ToolApprovalRequested("pay", "pay", {})
    step = result(calling("pay", CALL), [pay, double])
    assert contents(step) == {"c1": "42"}
    assert [call.id for call in step.metadata["approval_tool_calls"]] == ["pay"]
    assert step.done


# Options


async def later(call: ToolCall, error: ToolError) -> str:
    return "halt"


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sometimes"},
        {"on_tool_error": "ignore"},
        {"on_tool_error": later},
        {"tool_timeout": 0},
        {"tool_timeout": -1.0},
        {"max_concurrency": 0},
        {"tools": [double, double]},
    ],
)
def test_options_that_make_no_sense_raise_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ops.run_tools(**options)
    assert caught.value.reason == "invalid_option"
    assert caught.value.errors[0][0] == (next(iter(options)),)


def test_one_operator_serves_many_threads() -> None:
    step = ops.run_tools([double], thread=Thread((user("Other"),)))
    assert calling(CALL).pipe(step, ops.to_step_result()).run() == calling(CALL).pipe(step, ops.to_step_result()).run()


def test_a_step_is_done_where_nothing_is_left_to_send() -> None:
    step = calling(reason=None).pipe(ops.run_tools(thread=THREAD), ops.to_step_result()).run()
    assert isinstance(step, StepResult)
    assert step.tool_results == ()
