"""Adapters that are async generators of chunks."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import reactivex

from rxllm import (
    AdapterError,
    Engine,
    ErrorEvent,
    Event,
    MessageCompleted,
    Request,
    StreamError,
    TextCompleted,
    TextDelta,
    Usage,
    chat,
    chunks,
    generate,
    stream_generate,
    tool,
)
from rxllm.chunks import (
    CompletionChunk,
    StreamChunk,
    ToolCallDelta,
    from_chunks,
    from_completion_chunks,
    meta,
    text,
    thinking,
    tool_call,
)
from rxllm.testing import assert_adapter
from rxllm.values import Call
from tests.wire.lawful import lawful


def says(*items: Any) -> Any:
    """An async generator function that yields these; an exception it raises."""

    async def adapter(request: Request, call: Call) -> AsyncIterator[StreamChunk]:
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item

    return adapter


def events(*items: Any) -> list[Event]:
    emitted = list(stream_generate(says(*items), "Hi", retry=False))
    lawful(emitted)
    return emitted


def test_a_generator_of_chunks_is_an_adapter() -> None:
    usage = meta({"usage": {"input_tokens": 3, "output_tokens": 2}, "response_id": "r", "model": "m"})
    response = generate(says(thinking("Hm"), text("Hel"), text("lo"), usage), "Hi").run()
    assert (response.output_text, response.finish_reason, response.id, response.model) == ("Hello", "stop", "r", "m")
    assert response.usage == Usage(input_tokens=3, output_tokens=2)
    assert Engine(says(text("Hi"))).adapter is not None


def test_a_generator_of_completion_chunks_is_one_too() -> None:
    call = CompletionChunk(tool_calls=(ToolCallDelta(0, "c1", "add", '{"a": 1}'),))
    adapter = says(
        CompletionChunk.text("Hel"), CompletionChunk.text("lo"), call, CompletionChunk.final_chunk(Usage(3, 2), None)
    )
    response = generate(adapter, "Hi").run()
    assert (response.output_text, response.finish_reason, response.usage) == ("Hello", "tool_calls", Usage(3, 2))
    assert [(call.id, call.arguments) for call in response.tool_calls] == [("c1", {"a": 1})]


def test_completion_chunks_without_the_final_one_are_cut_off() -> None:
    assert events(CompletionChunk.text("Hi"))[-1].error.reason == "truncated"  # type: ignore[union-attr]


@pytest.mark.parametrize("other", [text("Ho"), TextDelta("Ho"), CompletionChunk(3), ValueError("broken")])  # type: ignore[arg-type]
def test_what_does_not_belong_among_completion_chunks(other: Any) -> None:
    emitted = events(CompletionChunk.text("Hi"), other)
    assert emitted[-2] == TextCompleted("Hi", "block_0")
    assert isinstance(emitted[-1], ErrorEvent)
    assert emitted[-1].error.reason == ("adapter_error" if isinstance(other, ValueError) else "malformed_event")


def test_an_adapter_of_wrong_chunks_ends() -> None:
    class Adapter:
        def stream(self, request: Request, call: Call) -> Any:
            wrong = CompletionChunk(3)  # type: ignore[arg-type]
            return reactivex.of(wrong, CompletionChunk.final_chunk(None, "stop")).pipe(from_completion_chunks())

    response = generate(Adapter(), "Hi", retry=False).run()
    assert response.error is not None
    assert response.error.reason == "malformed_event"


def test_a_failure_after_a_chunk_is_an_event() -> None:
    emitted = events(text("Hi"), ValueError("broken"))
    assert emitted[-2] == TextCompleted("Hi", "block_0")
    assert isinstance(emitted[-1], ErrorEvent)
    assert (emitted[-1].error.reason, str(emitted[-1].error)) == (
        "adapter_error",
        "the adapter failed: ValueError: broken",
    )


@pytest.mark.parametrize("error", [AdapterError("rate_limited"), ValueError("broken")])
def test_a_failure_before_the_first_chunk_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        events(error)
    assert raised.value is error


def test_an_error_in_the_stream_closes_the_generator() -> None:
    closed: list[str] = []

    async def adapter(request: Request, call: Call) -> AsyncIterator[StreamChunk]:
        try:
            yield text("Hi")
            yield meta({"error": "overloaded"})
            yield text("never")
        finally:
            closed.append("closed")

    emitted = list(stream_generate(adapter, "Hi", retry=False))
    assert emitted[-1] == ErrorEvent(StreamError("adapter_error", "overloaded"))
    assert closed == ["closed"]


def test_an_event_among_chunks_is_refused_by_name() -> None:
    emitted = events(text("Hi"), TextDelta("Ho"))
    assert isinstance(emitted[-1], ErrorEvent)
    assert emitted[-1].error.reason == "malformed_event"


def test_a_chunk_among_events_is_refused_by_name() -> None:
    emitted = events(TextDelta("Hi"), text("Ho"))
    assert isinstance(emitted[-1], ErrorEvent)
    assert "which is not an event" in str(emitted[-1].error)


def test_ids_are_unique_over_the_steps_of_a_chat() -> None:
    @tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    async def adapter(request: Request, call: Call) -> AsyncIterator[StreamChunk]:
        answers = [message for message in request.messages if message.role == "tool"]
        yield text("Done.") if len(answers) == 2 else tool_call("add", {"a": len(answers)})

    result = chat(adapter, "Hi", tools=[add]).run()
    assert [call.id for step in result.steps for call in step.response.tool_calls] == ["call_0", "call_1"]
    assert result.output_text == "Done."


def test_an_adapter_object_uses_the_operator() -> None:
    class Adapter:
        def stream(self, request: Request, call: Call) -> Any:
            return reactivex.of(text("Hi"), tool_call("add")).pipe(from_chunks(request.messages))

    assert_adapter(Adapter())
    response = generate(Adapter(), "Hi").run()
    assert (response.output_text, response.finish_reason) == ("Hi", "tool_calls")


def test_the_example_conforms() -> None:
    path = Path(__file__).parents[2] / "examples" / "custom_adapter.py"
    spec = importlib.util.spec_from_file_location("custom_adapter", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert_adapter(example.adder)
    assert_adapter(example.adder, "How much are 2 and 3?", tools=[example.add])
    assert len(path.read_text().splitlines()) < 40


def test_nothing_at_all_is_an_empty_message() -> None:
    assert isinstance(events()[-1], MessageCompleted)


def test_chunks_are_at_hand_from_the_facade() -> None:
    import rxllm

    assert rxllm.chunks is chunks


def test_chunks_may_be_plain_mappings() -> None:
    items = [{"type": "content", "text": "Hi"}, {"type": "meta", "metadata": {"finish_reason": "length"}}]
    assert events(*items) == events(text("Hi"), meta({"finish_reason": "length"}))
