"""Structured answers of steps, chats and sessions: the validated value, or a result that says why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings

import rxllm
from rxllm import ChatResult, Engine, Fake, Response, StepResult, ToolCall, Usage, ValidationError, serializer, tool
from rxllm import operators as ops
from tests.examples import examples
from tests.laws import scripts
from tests.laws.scripts import fake as scripted

AT_ONCE = rxllm.RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0)


@dataclass
class City:
    name: str


@tool
def look() -> str:
    return "Lima"


@tool(approval=True)
def pay() -> str:
    return "paid"


LIMA = '{"name": "Lima"}'
CALL = ToolCall("c1", "look", {})
TOOLS: Any = [look, pay, tool(name="sign", manual=True)]


def chat(*turns: Any, **options: Any) -> ChatResult[Any]:
    return rxllm.chat(Fake(*turns), "Hi", **{"tools": TOOLS, "response_format": City, **options}).run()


def final(result: ChatResult[Any]) -> Response[Any]:
    assert result.final_response is not None
    return result.final_response


# What fits


def test_a_chats_final_answer_is_the_validated_value() -> None:
    result = chat(CALL, LIMA)
    assert final(result).parsed == City("Lima")
    assert (result.halted_reason, result.error) == ("completed", None)
    assert result.steps[-1].response == final(result)
    assert result.steps[0].response.parsed is None
    assert (result.parsed, result.steps[-1].parsed, result.steps[0].parsed) == (City("Lima"), City("Lima"), None)
    assert ChatResult(result.thread).parsed is None


def test_a_steps_answer_is_the_validated_value() -> None:
    result = rxllm.step(Fake(f"```json\n{LIMA}\n```"), "Hi", response_format=City).run()
    assert (result.response.parsed, result.done) == (City("Lima"), True)


def test_a_resumed_chats_answer_is_too() -> None:
    fake = Fake(ToolCall("c1", "pay"), LIMA)
    options: dict[str, Any] = {"tools": TOOLS, "response_format": City}
    halted = rxllm.chat(fake, "Hi", **options).run()
    assert (halted.halted_reason, final(halted).parsed) == ("approval", None)
    assert final(rxllm.resume(fake, halted, approvals={"c1": True}, **options).run()).parsed == City("Lima")


def test_the_engines_format_counts_and_the_calls_comes_before_it() -> None:
    engine = Engine(Fake(LIMA)).with_params(response_format=City)
    assert final(rxllm.chat(engine, "Hi").run()).parsed == City("Lima")
    assert final(rxllm.chat(engine, "Hi", response_format={"type": "json_object"}).run()).parsed == {"name": "Lima"}
    assert final(rxllm.chat(engine, "Hi", response_format="text").run()).parsed is None


@pytest.mark.parametrize(
    ("turns", "options", "reason"),
    [
        ([CALL], {"max_turns": 1}, "max_turns"),
        ([CALL], {"halt_when": lambda step: True}, "halt_when"),
        ([ToolCall("c1", "sign")], {}, "manual_tool_calls"),
        ([CALL], {"mode": "manual"}, "manual_tool_calls"),
        ([ToolCall("c1", "unknown")], {}, "error"),
        ([["Li", ("error", "timeout")]], {}, "error"),
    ],
)
def test_what_halts_before_its_answer_is_not_read(turns: Any, options: Any, reason: str) -> None:
    result = chat(*turns, **options)
    assert (result.halted_reason, final(result).parsed) == (reason, None)
    assert not isinstance(result.error, ValidationError)


def test_calls_of_a_step_are_not_read() -> None:
    result = rxllm.step(Fake(CALL), "Hi", tools=TOOLS, response_format=City).run()
    assert (result.response.parsed, result.response.error, len(result.tool_results)) == (None, None, 1)


def test_a_chat_that_was_left_is_not_read() -> None:
    events = rxllm.stream(Fake(CALL, LIMA), "Hi", tools=TOOLS).take(9)
    result = events.pipe(ops.to_chat_result(rxllm.Thread((rxllm.user("Hi"),)), parse=City)).run()
    assert (result.halted_reason, result.error, final(result).parsed) == ("cancelled", None, None)


# What does not


def test_a_mismatch_is_a_result_that_keeps_what_was_done_and_said() -> None:
    result = chat(CALL, ["It is Lima.", Usage(3, 2)])
    error = result.error
    assert isinstance(error, ValidationError)
    assert error.reason == "invalid_output"
    assert error.metadata == {"text": "It is Lima.", "finish_reason": "stop", "usage": Usage(3, 2)}
    assert (result.halted_reason, result.output_text, result.usage) == ("error", "It is Lima.", Usage(3, 2))
    assert (final(result).finish_reason, final(result).error, final(result).parsed) == ("error", error, None)
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant"]
    assert result.steps[-1].response == final(result)
    assert serializer.from_json(serializer.to_json(result)) == result


def test_it_is_loud_for_who_asks() -> None:
    with pytest.raises(ValidationError, match="the answer is not a City"):
        chat("No.").raise_for_error()
    fake = Fake("No.", LIMA)
    loud = rxllm.chat(fake, "Hi", response_format=City).map(lambda result: result.raise_for_error())
    assert final(rxllm.run(loud.retry(2))).parsed == City("Lima")


def test_a_steps_mismatch_is_its_responses_error() -> None:
    result = rxllm.step(Fake("No."), "Hi", response_format=City).run()
    assert (result.response.finish_reason, result.response.output_text, result.done) == ("error", "No.", True)
    assert isinstance(result.response.error, ValidationError)
    with pytest.raises(ValidationError):
        result.response.raise_for_error()


def test_a_value_of_a_class_is_plain_data_in_json_and_one_of_json_stays() -> None:
    result = chat(LIMA)
    assert serializer.from_json(serializer.to_json(result)).parsed == {"name": "Lima"}
    assert serializer.from_json(serializer.to_json(result), response_format=City) == result
    result = chat(LIMA, response_format={"type": "json_object"})
    assert serializer.from_json(serializer.to_json(result)) == result


def test_a_turn_is_the_fold_of_its_stream_read_by_the_same_format() -> None:
    for text in (LIMA, "No."):
        session = rxllm.Session(thread=rxllm.Thread((rxllm.user("Hi"),)))
        events = rxllm.session.stream_start(Fake(text), session, response_format=City)
        folded = events.pipe(ops.to_session(session, parse=City)).run()
        assert folded == rxllm.session.start(Fake(text), session, response_format=City).run()


def test_a_session_goes_on_after_an_answer_that_did_not_fit() -> None:
    fake = Fake("No.", LIMA)
    turn = rxllm.session.start(fake, "Hi", response_format=City).run()
    assert isinstance(turn.result, ChatResult)
    assert (turn.session.status, turn.result.halted_reason) == ("completed", "error")
    turn = rxllm.session.reply(fake, turn.session, "JSON, please.", response_format=City).run()
    assert isinstance(turn.result, ChatResult)
    assert final(turn.result).parsed == City("Lima")
    stepped = rxllm.session.step(Fake(LIMA), turn.session, response_format=City).run()
    assert isinstance(stepped.result, StepResult)
    assert stepped.result.response.parsed == City("Lima")


# Laws


def outcome(make: Callable[[], Any]) -> Any:
    try:
        return make().run()
    except rxllm.LLMError as error:
        return error


@settings(deadline=None, max_examples=examples(60))
@given(scripts.scripts, scripts.chat_options, scripts.presentations)
def test_a_chat_is_the_fold_of_its_stream_read_by_the_same_format(script: Any, options: Any, shown: Any) -> None:
    """Law: chat(response_format) = stream(response_format) |> to_chat_result(parse=response_format)."""
    given: dict[str, Any] = {
        "tools": scripts.TOOLS,
        "response_format": {"type": "json_object"},
        "retry": AT_ONCE,
        **options,
    }
    streamed = outcome(
        lambda: rxllm.stream(scripted(script), "Hi", **given, **shown).pipe(
            ops.to_chat_result(parse=given["response_format"])
        )
    )
    result = outcome(lambda: rxllm.chat(scripted(script), "Hi", **given))
    assert result == streamed
    if isinstance(result, ChatResult):
        assert (result.halted_reason == "error") == (result.error is not None)
        assert result.final_response == result.steps[-1].response


@settings(deadline=None, max_examples=examples(60))
@given(scripts.scripts, scripts.step_options)
def test_a_step_is_the_fold_of_its_stream_read_by_the_same_function(script: Any, options: Any) -> None:
    """Law: a `parse` reads a step's text exactly where it is the answer."""
    events = rxllm.stream_step(scripted(script), "Hi", tools=scripts.TOOLS, retry=AT_ONCE, **options)
    result = outcome(lambda: events.pipe(ops.to_step_result(parse=len)))
    if isinstance(result, StepResult):
        response = result.response
        ends = (
            response.finish_reason != "error" and not response.tool_calls and response.raw_finish_reason != "pause_turn"
        )
        assert response.parsed == (len(response.output_text) if ends else None)
