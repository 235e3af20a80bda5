"""Two passes: tools first, then the structured answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, ChatResult, Engine, Fake, ToolCall, Usage, ValidationError, halt, json_schema, tool
from rxllm import operators as ops
from rxllm.events import ChatCompleted, ErrorEvent, StepCompleted
from rxllm.pipelines import resume

FORMAT = json_schema("city", {"type": "object", "properties": {"name": {"type": "string"}}})
NUDGE = "Now provide your final structured response."
ANSWER = '{"name": "Lima"}'


@tool
def double(x: int) -> int:
    return 2 * x


@tool
def stop() -> Any:
    return halt("found", 42)


@tool(approval=True)
def pay() -> str:
    return "paid"


TOOLS = [double, stop, pay, tool(name="sign", manual=True)]
OPTIONS: dict[str, Any] = {"tools": TOOLS, "response_format": FORMAT, "structured_finalize": True}


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def chat(fake: Fake, **options: Any) -> ChatResult:
    return rxllm.chat(fake, "Hi", **{**OPTIONS, **options}).run()


def test_the_second_pass_adds_the_format_and_keeps_the_tools_which_it_forbids() -> None:
    fake = Fake(call("double", x=21), "It is Lima.", ANSWER)
    result = chat(fake, tool_choice="auto")
    assert [request.response_format for request in fake.requests] == [None, None, FORMAT]
    assert [request.tools for request in fake.requests] == [fake.requests[0].tools] * 3
    assert [request.tool_choice for request in fake.requests] == ["auto", "auto", "none"]
    assert (result.halted_reason, result.output_text, len(result.steps)) == ("completed", ANSWER, 3)
    assert result.metadata == {"structured_finalize": {"pass_1_halted": "completed"}}


def test_the_format_may_be_a_class() -> None:
    @dataclass
    class City:
        name: str

    fake = Fake("It is Lima.", ANSWER)
    answer = chat(fake, response_format=City).final_response
    assert answer is not None
    assert answer.parsed == City("Lima")
    first, last = (request.response_format for request in fake.requests)
    assert first is None
    assert isinstance(last, dict)
    assert last["schema"]["properties"] == {"name": {"type": "string"}}


def test_the_user_asks_for_it_in_between() -> None:
    fake = Fake("It is Lima.", ANSWER)
    result = chat(fake)
    assert [message.text for message in fake.requests[1].messages] == ["Hi", "It is Lima.", NUDGE]
    assert [message.text for message in result.thread] == ["Hi", "It is Lima.", NUDGE, ANSWER]


@pytest.mark.parametrize(("nudge", "said"), [("JSON, please.", ["JSON, please."]), ("", [])])
def test_in_other_words_or_not_at_all(nudge: str, said: list[str]) -> None:
    fake = Fake("It is Lima.", ANSWER)
    chat(fake, structured_finalize_nudge=nudge)
    assert [message.text for message in fake.requests[1].messages] == ["Hi", "It is Lima.", *said]


def test_an_engine_may_ask_for_it() -> None:
    fake = Fake("It is Lima.", ANSWER)
    params = {"response_format": FORMAT, "structured_finalize": True, "structured_finalize_nudge": "Now!"}
    result = rxllm.chat(Engine(fake, tools=tuple(TOOLS), params={**params, "tools": TOOLS}), "Hi").run()
    assert [(request.response_format, len(request.tools)) for request in fake.requests] == [(None, 4), (FORMAT, 4)]
    assert result.thread[-2].text == "Now!"


def test_the_second_pass_follows_max_turns_and_is_no_turn_of_them() -> None:
    fake = Fake(lambda request: ANSWER if request.response_format else call("double", f"d{len(request.messages)}", x=1))
    result = chat(fake, max_turns=2)
    assert (len(fake.requests), len(result.steps), result.halted_reason) == (3, 3, "completed")
    assert result.metadata == {"structured_finalize": {"pass_1_halted": "max_turns"}}


@pytest.mark.parametrize("name", ["double", "stop", "pay", "sign"])
def test_a_forbidden_call_does_not_run_and_the_model_is_asked_once_more(name: str) -> None:
    fake = Fake("It is Lima.", call(name, x=1), ANSWER)
    result = chat(fake)
    assert (result.output_text, result.halted_reason, len(fake.requests)) == (ANSWER, "completed", 3)
    assert [request.tool_choice for request in fake.requests] == [None, "none", "none"]
    assert "no more tools can be called" in result.steps[1].tool_results[0].text
    assert [message.role for message in result.thread][-5:] == ["user", "assistant", "tool", "user", "assistant"]


def test_it_is_not_asked_a_third_time() -> None:
    fake = Fake("It is Lima.", call("double", x=1), call("double", "c2", x=1), "never asked")
    result = chat(fake)
    assert (len(fake.requests), result.halted_reason) == (3, "max_turns")
    assert result.pending_tool_calls == ()
    assert result.thread.last is not None
    assert result.thread.last.tool_call_id == "c2"


def test_without_tools_no_choice_is_sent() -> None:
    fake = Fake("It is Lima.", ANSWER)
    chat(fake, tools=[])
    assert [request.tool_choice for request in fake.requests] == [None, None]


def test_it_follows_halt_when() -> None:
    result = chat(Fake(call("double", x=1), ANSWER), halt_when=lambda step: True)
    assert (result.output_text, result.metadata) == (ANSWER, {"structured_finalize": {"pass_1_halted": "halt_when"}})


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (call("stop"), "found"),
        (call("sign"), "manual_tool_calls"),
        (call("pay"), "approval"),
        (["Hal", ("error", "provider_unavailable")], "error"),
    ],
)
def test_no_other_end_is_followed(turn: Any, reason: str) -> None:
    fake = Fake(turn, "never asked")
    result = chat(fake)
    assert (result.halted_reason, len(fake.requests)) == (reason, 1)
    assert result.metadata["structured_finalize"] == {"pass_1_halted": reason}


def test_streamed_it_is_the_same_with_one_end() -> None:
    turns = (call("double", x=21), "It is Lima.", ANSWER)
    events = list(rxllm.stream(Fake(*turns), "Hi", **OPTIONS))
    kinds = [type(event) for event in events]
    assert (kinds.count(StepCompleted), kinds.count(ChatCompleted), kinds[-1]) == (3, 1, ChatCompleted)
    streamed = rxllm.stream(Fake(*turns), "Hi", **OPTIONS).pipe(ops.to_chat_result(parse=FORMAT))
    assert streamed.run() == chat(Fake(*turns))


def test_a_second_pass_that_cannot_begin_is_an_error_that_keeps_the_first() -> None:
    failure = AdapterError("invalid_request")
    turns = ([Usage(3, 1), "It is Lima."], failure)
    events = list(rxllm.stream(Fake(*turns), "Hi", **OPTIONS))
    assert events[-2] == ErrorEvent(failure)
    result = chat(Fake(*turns))
    assert result == events[-1].result
    assert (result.halted_reason, result.error, result.output_text) == ("error", failure, "It is Lima.")
    assert [message.text for message in result.thread] == ["Hi", "It is Lima."]
    assert result.metadata == {"structured_finalize": {"pass_1_halted": "completed"}}


def test_a_structured_answer_that_does_not_fit_keeps_both_passes() -> None:
    result = chat(Fake(call("double", x=21), "It is Lima.", "Lima."))
    assert (result.halted_reason, len(result.steps), result.output_text) == ("error", 3, "Lima.")
    assert isinstance(result.error, ValidationError)
    assert [message.text for message in result.thread][-3:] == ["It is Lima.", NUDGE, "Lima."]


def test_the_usage_of_both_is_summed() -> None:
    assert chat(Fake([Usage(3, 1), "It is Lima."], [Usage(5, 2), ANSWER])).usage == Usage(8, 3)


def test_a_halted_chat_that_is_resumed_is_finalized_too() -> None:
    fake = Fake(call("pay"), "Paid.", ANSWER)
    result = resume(fake, chat(fake), approvals={"c1": True}, **OPTIONS).run()
    assert (result.output_text, [r.response_format for r in fake.requests]) == (ANSWER, [None, None, FORMAT])


def test_without_it_there_is_one_pass() -> None:
    fake = Fake(ANSWER)
    result = chat(fake, structured_finalize=False)
    assert (result.metadata, [request.response_format for request in fake.requests]) == ({}, [FORMAT])


@pytest.mark.parametrize("function", [rxllm.generate, rxllm.step, rxllm.chat])
@pytest.mark.parametrize("response_format", [{}, {"response_format": "text"}])
def test_there_must_be_a_schema_to_finalize_to(function: Any, response_format: Any) -> None:
    fake = Fake("x")
    with pytest.raises(ValidationError) as caught:
        function(fake, "Hi", structured_finalize=True, **response_format).run()
    assert caught.value.errors == ((("structured_finalize",), "requires_json_schema"),)
    assert fake.requests == []


def test_the_option_is_a_field_of_the_request() -> None:
    fake = Fake(ANSWER)
    rxllm.generate(fake, "Hi", structured_finalize=True, response_format=FORMAT).run()
    assert fake.requests[0].structured_finalize


@pytest.mark.parametrize("option", [{"structured_finalize": 1}, {"structured_finalize_nudge": 1}])
def test_wrong_types_raise_at_the_call(option: Any) -> None:
    with pytest.raises(ValidationError):
        rxllm.chat(Fake("x"), "Hi", **option)
