"""An answer that was refused, filtered or cut off says so, whether it is typed or ends a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import rxllm
from rxllm import Fake, Response, ValidationError, chat, generate, step, stream_generate
from rxllm import operators as ops
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.events import Event
from tests.adapters.streams import sse


@dataclass
class A:
    n: int


def wire(make: Callable[..., Any], data: bytes) -> Any:
    """An adapter that answers each request with `data`, as the wire's decoder reads it."""

    async def answer(request: Any, call: Any) -> AsyncIterator[Event]:
        decoder = make(api_key="k").decoder(request)
        for event in [*decoder.feed(data), *decoder.close()]:
            yield event

    return answer


def chat_frame(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def anthropic(stop: dict[str, Any], *frames: dict[str, Any]) -> bytes:
    message = {"id": "m", "model": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}
    start = {"type": "message_start", "message": message}
    end = {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}}
    return sse(start, *frames, end, {"type": "message_stop"}, named=True)


STOP_DETAILS = {"category": "cyber", "explanation": "why"}
FEEDBACK = {"blockReason": "SAFETY", "blockReasonMessage": "why"}
RESPONSE = {"id": "r", "status": "completed", "model": "m"}
REFUSAL = {"type": "message", "content": [{"type": "refusal", "refusal": "I can't."}]}
CALL = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"number": 13'}}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}

REFUSED = {
    "OpenAI": wire(OpenAIChat, sse(chat_frame({"refusal": "I can't."}), chat_frame({}, "stop"))),
    "OpenAI filter": wire(OpenAIChat, sse(chat_frame({"content": '{"n'}), chat_frame({}, "content_filter"))),
    "Responses": wire(
        OpenAIResponses, sse({"type": "response.completed", "response": {**RESPONSE, "output": [REFUSAL]}}, named=True)
    ),
    "Gemini prompt": wire(Gemini, sse({"promptFeedback": FEEDBACK})),
    "Gemini answer": wire(Gemini, sse({"candidates": [{"finishReason": "SAFETY", "finishMessage": "why"}]})),
    "Anthropic": wire(Anthropic, anthropic({"stop_reason": "refusal", "stop_details": STOP_DETAILS})),
}
LIMITED = {
    "OpenAI": wire(OpenAIChat, sse(chat_frame({"content": '{"n": 1'}), chat_frame({}, "length"))),
    "OpenAI without text": wire(OpenAIChat, sse(chat_frame({"reasoning_content": "Hm"}), chat_frame({}, "length"))),
    "Gemini": wire(Gemini, sse({"candidates": [{"finishReason": "MAX_TOKENS"}]})),
    "Anthropic": wire(Anthropic, anthropic({"stop_reason": "max_tokens"})),
    "Ollama": wire(Ollama, b'{"message": {"content": "{"}, "done": true, "done_reason": "length"}\n'),
}
FORMATS: list[Any] = [
    A,
    list[int],
    int | None,
    {"type": "json_object"},
    rxllm.json_schema("a", {"type": "object", "properties": {}}),
]


def failure_of(engine: Any, response_format: Any = A) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        generate(engine, "Hi", response_format=response_format).run()
    assert caught.value.reason == "invalid_output"
    return caught.value


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_typed_answer_says_that_it_was_refused(name: str) -> None:
    error = failure_of(REFUSED[name])
    assert error.message.startswith("the model refused to answer, or a filter stopped its answer")
    assert "JSON" not in error.message
    assert "EOF" not in error.message
    assert error.metadata["finish_reason"] == "content_filter"


@pytest.mark.parametrize("response_format", FORMATS, ids=str)
def test_a_refusal_is_said_for_every_kind_of_format(response_format: Any) -> None:
    error = failure_of(REFUSED["OpenAI"], response_format)
    assert error.message == (
        "the model refused to answer, or a filter stopped its answer: I can't.; see the error's metadata"
    )
    assert error.metadata["text"] == "I can't."


def test_the_provider_s_reasons_are_in_the_error_s_metadata() -> None:
    gemini, claude = failure_of(REFUSED["Gemini prompt"]), failure_of(REFUSED["Anthropic"])
    assert (gemini.metadata["prompt_feedback"], gemini.metadata["raw_finish_reason"]) == (FEEDBACK, "SAFETY")
    assert (claude.metadata["stop_details"], claude.metadata["raw_finish_reason"]) == (STOP_DETAILS, "refusal")
    assert "answer: SAFETY; see" in gemini.message
    assert "answer: refusal; see" in claude.message


@pytest.mark.parametrize("name", LIMITED)
def test_a_typed_answer_that_the_limit_cut_says_so(name: str) -> None:
    error = failure_of(LIMITED[name])
    assert error.message.startswith("the answer is cut off at its token limit; pass a larger max_tokens (")
    assert error.metadata["finish_reason"] == "length"


def test_a_parsing_function_that_fails_on_a_refusal_gets_the_same_message() -> None:
    with pytest.raises(ValidationError, match="the model refused to answer"):
        stream_generate(REFUSED["OpenAI"], "Hi").pipe(ops.to_response(int)).run()

    def read(text: str) -> int:
        return {"yes": 1}[text]

    with pytest.raises(ValidationError, match="the model refused to answer"):
        stream_generate(REFUSED["OpenAI"], "Hi").pipe(ops.to_response(read)).run()


def test_an_answer_that_fits_counts_although_it_was_cut_or_filtered() -> None:
    for reason in ("length", "content_filter"):
        assert generate(Fake(['{"n": 1}', ("finish", reason)]), "Hi", response_format=A).run().parsed == A(1)


@pytest.mark.parametrize("name", REFUSED)
def test_the_results_of_steps_and_chats_have_the_same_error(name: str) -> None:
    message = failure_of(REFUSED[name]).message
    result = chat(REFUSED[name], "Hi", response_format=A).run()
    assert (result.parsed, result.halted_reason) == (None, "error")
    assert result.error is not None
    assert result.error.message == message
    error = step(REFUSED[name], "Hi", response_format=A).run().response.error
    assert error is not None
    assert error.message == message


OPERATORS = {
    "parsed": ops.parsed(A),
    "partials": ops.partials(A),
    "items": ops.items(A),
    "text_at": ops.text_at("n"),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_read_an_answer_end_with_that_error_too(operator: str, name: str) -> None:
    with pytest.raises(ValidationError, match="the model refused to answer"):
        list(stream_generate(REFUSED[name], "Hi").pipe(OPERATORS[operator]))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", LIMITED)
def test_operators_that_read_an_answer_say_that_the_limit_cut_it(operator: str, name: str) -> None:
    with pytest.raises(ValidationError, match="cut off at its token limit"):
        list(stream_generate(LIMITED[name], "Hi").pipe(OPERATORS[operator]))


def test_a_chat_of_several_messages_reads_only_the_end_of_the_last() -> None:
    events = rxllm.stream(
        Fake([rxllm.ToolCall("c1", "f", {})], ["[1]"]), "Hi", tools=[rxllm.tool(name="f")(lambda: "done")]
    )
    assert list(events.pipe(ops.items(int))) == [1]


# Without a format: what ended the last answer

CUT_CALLS = {
    "OpenAI": wire(OpenAIChat, sse(chat_frame({"tool_calls": [CALL]}), chat_frame({}, "length"))),
    "Anthropic": wire(
        Anthropic,
        anthropic(
            {"stop_reason": "max_tokens"},
            {"type": "content_block_start", "index": 0, "content_block": TOOL_USE},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
        ),
    ),
}


@pytest.mark.parametrize("name", CUT_CALLS)
def test_a_chat_whose_last_tool_call_the_limit_cut_shows_it(name: str) -> None:
    result = chat(CUT_CALLS[name], "Hi", tools=[rxllm.tool(name="f")(lambda number: number)]).run()
    assert (result.halted_reason, result.finish_reason) == ("completed", "length")
    assert repr(result).startswith("ChatResult('', completed (length), 1 steps, ")
    assert "*completed (length), 1 steps, " in result._repr_markdown_()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", REFUSED)
def test_a_chat_whose_answer_was_refused_shows_it(name: str) -> None:
    result = chat(REFUSED[name], "Hi").run()
    assert (result.halted_reason, result.finish_reason) == ("completed", "content_filter")
    assert "completed (content_filter), 1 steps" in repr(result)


def test_a_chat_that_ended_as_usual_looks_as_usual() -> None:
    result = chat(Fake("Hello"), "Hi").run()
    assert (result.finish_reason, repr(result)) == ("stop", "ChatResult('Hello', completed, 1 steps, 0 tokens)")
    assert rxllm.ChatResult(rxllm.Thread()).finish_reason is None
    assert Response().finish_reason is None
