from __future__ import annotations

from typing import Any

import pytest

from rxllm import Stream, Usage, ValidationError, serializer
from rxllm.chunks import (
    CompletionChunk,
    CompletionResponse,
    CompletionStream,
    CompletionToolCall,
    ToolCallDelta,
)


def test_a_chunk_of_text_has_nothing_else() -> None:
    chunk = CompletionChunk.text("Hi")
    assert (chunk.delta, chunk.tool_calls, chunk.is_final) == ("Hi", (), False)
    assert (chunk.usage, chunk.finish_reason) == (None, None)


def test_a_final_chunk_has_no_text() -> None:
    chunk = CompletionChunk.final_chunk(Usage(3, 4), "length")
    assert (chunk.delta, chunk.tool_calls, chunk.is_final) == ("", (), True)
    assert (chunk.usage, chunk.finish_reason) == (Usage(3, 4), "length")


@pytest.mark.parametrize("value", [3, None, {"a": 1}, b"Hi"])
def test_text_is_a_string(value: Any) -> None:
    with pytest.raises(ValidationError, match="text must be a string, not") as caught:
        CompletionChunk.text(value)
    assert caught.value.reason == "invalid_message"


@pytest.mark.parametrize(("usage", "reason", "field"), [("stop", None, "usage"), (None, Usage(1), "reason")])
def test_the_arguments_of_a_final_chunk_in_the_wrong_order_are_named(usage: Any, reason: Any, field: str) -> None:
    with pytest.raises(ValidationError, match="final_chunk takes the usage and then the reason") as caught:
        CompletionChunk.final_chunk(usage, reason)
    assert [path for path, _ in caught.value.errors] == [(field,)]


def test_a_delta_needs_only_its_index() -> None:
    delta = ToolCallDelta(1)
    assert (delta.index, delta.id, delta.name, delta.arguments_delta) == (1, None, None, "")


def test_an_index_is_counted_from_nought() -> None:
    with pytest.raises(ValueError, match="-1"):
        ToolCallDelta(-1)


def test_it_is_not_the_event_of_that_name() -> None:
    import rxllm

    assert ToolCallDelta is not rxllm.ToolCallDelta


def test_chunks_are_values() -> None:
    one, same = (CompletionChunk("a", (ToolCallDelta(0, "c1", "add", "{}"),)) for _ in range(2))
    assert one == same
    assert repr(one) == "CompletionChunk(delta='a', tool_calls=(ToolCallDelta(index=0, id='c1', name='add', " + (
        "arguments_delta='{}'),))"
    )
    with pytest.raises(AttributeError):
        one.delta = "b"  # type: ignore[misc]


def test_a_response_begins_with_the_defaults() -> None:
    response = CompletionResponse()
    assert (response.content, response.tool_calls, response.dropped) == (None, (), ())
    assert (response.finish_reason, response.model) == ("stop", "")
    assert response.usage == Usage(input_tokens=0, output_tokens=0, total_tokens=0)


def test_a_response_is_read_back_from_its_json() -> None:
    call = CompletionToolCall("c1", "add", "{")
    response = CompletionResponse("Hi", (call,), "length", Usage(1, 2), "m", (CompletionToolCall("", "f"),))
    assert serializer.from_json(serializer.to_json(response)) == response


def test_a_completion_stream_is_an_observable_of_chunks() -> None:
    source: CompletionStream = Stream.of(Stream(lambda observer, scheduler=None: observer.on_completed()))
    assert isinstance(source, CompletionStream.__origin__)  # type: ignore[attr-defined]
