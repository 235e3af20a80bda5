"""Names that people bring along from other libraries: they work, or the error says what to write."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import rxllm
from rxllm import Fake, ToolCall, Usage

response = rxllm.generate(Fake([("thinking", "Two and two"), "4", Usage(3, 1)]), "What is 2 + 2?").run()
result = rxllm.chat(Fake("4"), "What is 2 + 2?").run()
step = rxllm.step(Fake("4"), "What is 2 + 2?").run()
turn = rxllm.session.start(Fake("4"), "What is 2 + 2?").run()


def test_the_thinking_of_a_response() -> None:
    assert response.thinking == "Two and two"
    assert response.output_text == "4"
    assert rxllm.Response().thinking == ""


def test_usages_have_a_sum() -> None:
    responses = list(rxllm.generate_many(Fake(["a", Usage(1, 2)], ["b", Usage(3, 4)]), ["A", "B"], concurrency=1))
    assert sum(each.usage for each in responses) == Usage(4, 6)
    assert sum((each.usage for each in responses), Usage()).total == 10
    with pytest.raises(TypeError):
        1 + Usage()  # type: ignore[operator]


def test_a_step_has_its_text_as_a_chat_has() -> None:
    assert (step.output_text, result.output_text) == ("4", "4")


@pytest.mark.parametrize(
    ("value", "name", "remedy"),
    [
        (response, "text", "; write output_text"),
        (response, "content", "; write output_text, or message.parts to get images and thinking too"),
        (response, "choices", "; write output_text"),
        (response, "reasoning_content", "; write thinking"),
        (response, "stop_reason", "; write finish_reason"),
        (response, "cost", "; write usage.total_cost"),
        (response, "output_txt", " (did you mean 'output_text'?)"),
        (response, "wholly_different", ""),
        (result, "text", "; write output_text"),
        (result, "response", "; write final_response"),
        (result, "messages", "; write thread.messages"),
        (result, "thinking", "; write final_response.thinking"),
        (result, "interruptions", "; write pending_tool_calls"),
        (result, "question", "; write pending_question"),
        (step, "text", "; write output_text"),
        (result.thread.messages[-1], "output_text", "; write text"),
        (result.thread, "append", "; write thread = thread + message, which returns a new thread"),
        (response, "delta", "; write output_text, or rxllm.stream_generate(...) to receive the text as it arrives"),
        (ToolCall("c0", "add"), "function", "; write name and arguments"),
        (response.usage, "prompt_tokens", "; write input_tokens"),
        (response.usage, "completion_tokens", "; write output_tokens"),
        (response.usage, "total_token", " (did you mean 'total_tokens'?)"),
        (turn, "thread", "; write session.thread"),
        (turn, "parsed", "; write result.parsed"),
        (turn.session, "session_id", "; write id"),
        (rxllm.tool_result("c0", "5"), "result", "; write text"),
        (ToolCall("c0", "add"), "argument", " (did you mean 'arguments'?)"),
    ],
)
def test_a_name_that_is_not_there_is_answered(value: Any, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(value, name)
    assert str(caught.value) == f"{type(value).__name__!r} object has no attribute {name!r}{remedy}"


@pytest.mark.parametrize("value", [response, result, step, turn, response.usage, ToolCall("c0", "add")])
def test_nothing_else_is_answered(value: Any) -> None:
    assert not hasattr(value, "_repr_latex_")
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == copy.deepcopy(value) == value


@pytest.mark.parametrize("value", [response, result, step, response.usage, ToolCall("c0", "add")])
def test_completion_lists_what_users_use(value: Any) -> None:
    public = {name for name in dir(value) if not name.startswith("_")}
    assert not public & {"compared", "encoders", "sequence_fields"}
