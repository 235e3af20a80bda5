from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, EngineError, Fake, StreamError, ToolCall, ToolError, Usage, ask_user, halt, tool
from rxllm import operators as ops
from rxllm.collector import AWAITING_USER
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    StepCompleted,
    TextDelta,
    ToolApprovalRequested,
)
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Message
from tests.waiting import turns


@tool
def double(x: int) -> int:
    return 2 * x


@tool
def fail() -> None:
    raise ValueError("no")


@tool
def stop() -> Any:
    return halt("found", 42)


@tool
def ask() -> Any:
    return ask_user("Which one?", choices=[1, 2])


@tool(approval=True)
def pay() -> str:
    return "paid"


sign = tool(name="sign", manual=True)
TOOLS = [double, fail, stop, ask, pay, sign]


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def chat(*turns: Any, **options: Any) -> ChatResult:
    """The result, which must be the fold of the stream too."""
    result = rxllm.chat(Fake(*turns), "Hi", **{"tools": TOOLS, **options}).run()
    assert stream(*turns, **options).pipe(ops.to_chat_result()).run() == result
    return result


def stream(*turns: Any, **options: Any) -> Stream[Event]:
    return rxllm.stream(Fake(*turns), "Hi", **{"tools": TOOLS, **options})


# Turns


def test_a_chat_goes_on_until_nothing_is_left_to_answer() -> None:
    result = chat(call("double", x=21), call("double", "c2", x=4), "42 and 8")
    assert (result.halted_reason, result.output_text, len(result.steps)) == ("completed", "42 and 8", 3)
    assert (result.metadata, result.error, result.pending_tool_calls) == ({}, None, ())
    assert [message.role for message in result.thread] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


def test_each_step_asks_with_the_thread_of_the_one_before() -> None:
    fake = Fake(call("double", x=21), "42")
    result = rxllm.chat(fake, "Hi", tools=TOOLS).run()
    assert fake.requests[1].messages == result.steps[0].thread.messages


def test_every_step_has_the_same_options_and_request_id() -> None:
    fake = Fake(call("double", x=21), "42")
    rxllm.chat(fake, "Hi", tools=TOOLS, temperature=0.5).run()
    assert [request.temperature for request in fake.requests] == [0.5, 0.5]
    assert fake.requests[0].tools == fake.requests[1].tools


def test_steps_are_closed_one_by_one_and_the_chat_is_last() -> None:
    kinds = [type(event) for event in stream(call("double", x=21), "42")]
    assert (kinds.count(MessageStarted), kinds.count(StepCompleted), kinds.count(ChatCompleted)) == (2, 2, 1)
    assert kinds[-2:] == [StepCompleted, ChatCompleted]


def test_on_event_sees_the_adapters_events_of_all_steps() -> None:
    seen: list[Event] = []
    chat(call("double", x=21), "42", on_event=seen.append)
    assert {type(event) for event in seen} & {StepCompleted, ChatCompleted} == set()
    assert [type(event) for event in seen].count(MessageCompleted) == 4  # two steps, two subscriptions


def test_the_next_step_is_not_asked_for_where_nobody_listens() -> None:
    fake = Fake(call("double", x=21), "42")

    async def main() -> None:
        await rxllm.stream(fake, "Hi", tools=TOOLS).pipe(ops.only(StepCompleted)).take(1)

    asyncio.run(main())
    assert len(fake.requests) == 1


# max_turns


@pytest.mark.parametrize("turns", [1, 3])
def test_max_turns_bounds_the_steps(turns: int) -> None:
    fake = Fake(lambda request: call("double", f"c{len(request.messages)}", x=1))
    result = rxllm.chat(fake, "Hi", tools=TOOLS, max_turns=turns).run()
    assert (result.halted_reason, len(result.steps), result.metadata) == ("max_turns", turns, {"max_turns": turns})
    assert len(fake.requests) == turns


@pytest.mark.parametrize(("option", "param", "variable", "turns"), [
    (2, 3, "4", 2),
    (None, 3, "4", 3),
    (None, None, "4", 4),
    (None, None, None, 8),
])  # fmt: skip
def test_max_turns_is_the_calls_the_engines_the_environments_or_eight(
    monkeypatch: pytest.MonkeyPatch, option: int | None, param: int | None, variable: str | None, turns: int
) -> None:
    monkeypatch.delenv("RXLLM_MAX_TURNS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RXLLM_MAX_TURNS", variable)
    fake = Fake(lambda request: call("double", f"c{len(request.messages)}", x=1))
    engine = rxllm.Engine(fake, tools=(double,), params={} if param is None else {"max_turns": param})
    options: dict[str, Any] = {} if option is None else {"max_turns": option}
    assert len(rxllm.chat(engine, "Hi", **options).run().steps) == turns


@pytest.mark.parametrize("variable", ["0", "many", "-1"])
def test_a_senseless_environment_raises_at_the_call(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("RXLLM_MAX_TURNS", variable)
    with pytest.raises(rxllm.ValidationError, match="RXLLM_MAX_TURNS"):
        rxllm.chat(Fake("Hi"), "Hi")


def test_the_last_turn_may_complete() -> None:
    assert chat(call("double", x=1), "2", max_turns=2).halted_reason == "completed"


# halt_when


def test_halt_when_ends_the_chat_before_the_next_step() -> None:
    result = chat(
        call("double", x=1), call("double", "c2", x=2), "4", halt_when=lambda step: "4" in step.thread[-1].text
    )
    assert (result.halted_reason, result.metadata, len(result.steps)) == ("halt_when", {"halt_when_step_index": 1}, 2)


def test_halt_when_is_not_asked_of_a_chat_that_ends_anyway() -> None:
    asked: list[Any] = []
    assert chat("Hello", halt_when=asked.append).halted_reason == "completed"
    assert asked == []


def test_an_exception_of_halt_when_is_the_streams_error() -> None:
    def refuse(step: Any) -> bool:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        rxllm.chat(Fake(call("double", x=1), "2"), "Hi", tools=TOOLS, halt_when=refuse).run()


# Halts


def test_a_question_to_the_user_is_pending_and_in_the_thread() -> None:
    result = chat(call("ask"))
    assert (result.halted_reason, result.pending_question, result.pending_tool_call_id) == (
        "ask_user",
        "Which one?",
        "c1",
    )
    assert result.metadata == {
        "pending_question": "Which one?",
        "pending_tool_call_id": "c1",
        "ask_user_opts": {"choices": [1, 2]},
    }
    *_, placeholder, question = result.thread
    assert placeholder == Message("tool", AWAITING_USER, tool_call_id="c1")
    assert (question.role, question.content) == ("assistant", "Which one?")
    assert result.steps[-1].thread.last == placeholder


def test_the_answer_to_a_question_is_one_more_message() -> None:
    fake = Fake(call("ask"), "Thanks")
    asked = rxllm.chat(fake, "Hi", tools=TOOLS).run()
    assert rxllm.chat(fake, asked.thread.add_user("The first"), tools=TOOLS).run().output_text == "Thanks"


def test_a_tools_own_halt() -> None:
    result = chat([call("stop"), call("double", "c2", x=1)])
    assert (result.halted_reason, result.metadata) == ("found", {"halt_tool_call_id": "c1", "halt_result": 42})
    assert [message.tool_call_id for message in result.thread if message.role == "tool"] == ["c1", "c2"]


def test_a_tool_error_under_halt() -> None:
    result = chat(call("fail"), on_tool_error="halt")
    assert (result.halted_reason, result.metadata) == ("tool_error", {"halt_tool_call_id": "c1"})


def test_a_policy_that_raises() -> None:
    def policy(call: ToolCall, error: ToolError) -> Any:
        raise RuntimeError("gone")

    result = chat(call("fail"), on_tool_error=policy)
    assert result.metadata == {
        "halt_tool_call_id": "c1",
        "on_tool_error_exception": {"type": "RuntimeError", "message": "gone"},
    }


def test_under_continue_the_model_hears_of_it_and_the_chat_goes_on() -> None:
    result = chat(call("fail"), "Sorry")
    assert (result.halted_reason, result.steps[0].thread[-1].content) == ("completed", '{"error":"ValueError: no"}')


def test_manual_tools_halt_the_chat() -> None:
    result = chat([call("sign"), call("double", "c2", x=1)])
    assert (result.halted_reason, [each.id for each in result.pending_tool_calls]) == ("manual_tool_calls", ["c1"])
    assert result.metadata == {"manual_turn_index": 0, "manual_tool_calls": result.pending_tool_calls}


def test_manual_mode_halts_the_chat_with_all_calls_pending() -> None:
    result = chat([call("sign"), call("double", "c2", x=1)], mode="manual")
    assert (result.halted_reason, [each.id for each in result.pending_tool_calls]) == (
        "manual_tool_calls",
        ["c1", "c2"],
    )
    assert result.metadata == {"manual_turn_index": 0}


def test_an_answered_manual_call_goes_on() -> None:
    fake = Fake(call("sign"), "Signed")
    halted = rxllm.chat(fake, "Hi", tools=TOOLS).run()
    answered = halted.thread + rxllm.tool_result("c1", "ok")
    assert rxllm.chat(fake, answered, tools=TOOLS).run().output_text == "Signed"


def test_an_unanswered_manual_call_is_refused() -> None:
    halted = chat(call("sign"))
    with pytest.raises(EngineError) as caught:
        rxllm.chat(Fake("Hi"), halted.thread, tools=TOOLS).run()
    assert caught.value.reason == "missing_tool_results"


def test_a_tools_halt_keeps_the_pending_manual_calls() -> None:
    result = chat([call("sign"), call("stop", "c2")])
    assert (result.halted_reason, [each.id for each in result.pending_tool_calls]) == ("found", ["c1"])


def test_a_call_that_needs_a_yes_halts_the_chat() -> None:
    result = chat([call("pay"), call("double", "c2", x=1)])
    assert (result.halted_reason, [each.id for each in result.pending_tool_calls]) == ("approval", ["c1"])
    assert result.metadata == {"approval_tool_calls": result.pending_tool_calls}
    assert ToolApprovalRequested in map(type, stream(call("pay")))


def test_an_approver_lets_the_chat_go_on() -> None:
    result = chat(call("pay"), "Thanks", approve=lambda call: True)
    assert (result.halted_reason, result.steps[0].thread[-1].content) == ("completed", "paid")


# Finish reasons


@pytest.mark.parametrize("reason", ["length", "content_filter", "other", "stop"])
def test_any_end_without_open_calls_completes(reason: str) -> None:
    result = chat(["Hel", ("finish", reason)], "never asked")
    assert (result.halted_reason, len(result.steps), result.metadata) == ("completed", 1, {})


def test_no_finish_reason_completes_too() -> None:
    turn = [MessageStarted(Message("assistant")), TextDelta("Hi"), MessageCompleted(Message("assistant"), None)]
    assert chat(turn, "never asked").halted_reason == "completed"


def test_a_finish_for_calls_without_calls_completes() -> None:
    assert chat(["Hi", ("finish", "tool_calls")], "never asked").halted_reason == "completed"


def test_a_provider_that_pauses_is_asked_again() -> None:
    paused = [
        MessageStarted(Message("assistant")),
        TextDelta("Let me"),
        MessageCompleted(Message("assistant"), "other", "pause_turn"),
    ]
    result = chat(paused, "Done")
    assert (result.halted_reason, len(result.steps), result.output_text) == ("completed", 2, "Done")
    assert chat(paused, "Done", max_turns=1).halted_reason == "max_turns"


def test_calls_of_a_response_that_was_cut_off_do_not_run() -> None:
    result = chat([call("double", x=1), ("finish", "length")])
    assert (result.halted_reason, result.thread) == ("completed", rxllm.Thread((rxllm.user("Hi"),)))


# Errors


def test_a_first_step_that_fails_before_its_first_event_is_raised() -> None:
    failure = AdapterError("authentication_failed")
    with pytest.raises(AdapterError) as caught:
        rxllm.chat(Fake(failure), "Hi").run()
    assert caught.value is failure


def test_a_later_one_ends_the_chat_with_what_there_is() -> None:
    failure = AdapterError("invalid_request")
    turns = ([Usage(3, 1), call("double", x=1)], failure)
    *_, step, error, last = list(stream(*turns))
    assert isinstance(step, StepCompleted)
    assert error == ErrorEvent(failure)
    assert isinstance(last, ChatCompleted)
    result = chat(*turns)
    assert result == last.result
    assert (result.halted_reason, result.error, result.metadata) == ("error", failure, {})
    assert (len(result.steps), result.thread, result.usage) == (1, result.steps[0].thread, Usage(3, 1))
    assert result.final_response == result.steps[0].response


@pytest.mark.parametrize("before", [(), (call("double", x=1),)])
def test_a_step_that_fails_on_its_way_is_a_result(before: tuple[Any, ...]) -> None:
    failing = ["Hal", Usage(2, 1), call("double", "c9", x=1), ("error", "provider_unavailable")]
    result = chat(*before, failing)
    assert (result.halted_reason, len(result.steps)) == ("error", len(before) + 1)
    assert isinstance(result.error, AdapterError)
    assert result.final_response is not None
    assert (result.final_response.finish_reason, result.final_response.output_text) == ("error", "Hal")
    assert result.usage == Usage(2, 1)
    with pytest.raises(AdapterError):
        result.raise_for_error()


def test_usage_is_summed_over_the_steps_and_survives_an_error() -> None:
    result = chat([Usage(3, 1), call("double", x=1)], [Usage(5, 2), ("error", "unknown")])
    assert result.usage == Usage(8, 3)
    assert [step.response.usage for step in result.steps] == [Usage(3, 1), Usage(5, 2)]


def test_an_unknown_tool_ends_the_chat() -> None:
    events = list(stream([call("nothing"), call("double", "c2", x=1)], "never asked"))
    errors = [event for event in events if isinstance(event, ErrorEvent)]
    result = chat([call("nothing"), call("double", "c2", x=1)], "never asked")
    assert (result.halted_reason, len(result.steps)) == ("error", 1)
    assert [event.error for event in errors] == [result.error]
    assert isinstance(result.error, EngineError)
    assert result.error.reason == "unknown_tool"


def test_empty_messages_are_a_typed_error() -> None:
    with pytest.raises(rxllm.ValidationError):
        rxllm.chat(Fake("Hi"), []).run()


def test_a_script_that_is_used_up_ends_the_chat() -> None:
    result = chat(call("double", x=1), call("double", "c2", x=1))
    assert isinstance(result.error, AdapterError)
    assert result.error.reason == "no_scripted_response"


@pytest.mark.parametrize("failure", [StreamError("truncated"), ValueError("no")])
@pytest.mark.parametrize("turn", [0, 1])
def test_a_subscriber_that_raises_gets_it_once_in_every_step(failure: Exception, turn: int) -> None:
    errors: list[Exception] = []
    after: list[Event] = []

    async def main() -> None:
        started = 0
        ended = asyncio.Event()

        def on_next(event: Event) -> None:
            nonlocal started
            if errors:
                after.append(event)
            if isinstance(event, MessageStarted):
                started += 1
            if isinstance(event, TextDelta) and started == turn + 1:
                raise failure

        def on_error(error: Exception) -> None:
            errors.append(error)
            ended.set()

        stream(["Let me", call("double", x=1)], "2").subscribe(on_next, on_error)
        await ended.wait()
        await turns()

    asyncio.run(main())
    assert (errors, after) == ([failure], [])
