"""What the servers make of a chunk, kind by kind."""

from typing import Any

import msgspec
import pytest

from rxllm.adapters._usage_and_metadata import to_usage
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_chat.frames import USAGE
from rxllm.collector import StreamCollector
from rxllm.events import FileAdded, RawChunk, SourceAdded, ThinkingCompleted, ToolCallCompleted, UsageUpdated
from rxllm.values import AdapterError, Message, Response, StreamError, ThinkingPart, ToolCall, Usage
from tests.wire.lawful import lawful

DONE = b"data: [DONE]\n\n"


def frame(data: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)


def chunk(delta: Any = None, finish: Any = None, **rest: Any) -> bytes:
    return frame({"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **rest})


def decode(body: bytes, **options: Any):
    decoder = ChatDecoder(**options)
    events = decoder.feed(body) + decoder.close()
    lawful(events)
    return events


def fold(body: bytes, **options: Any) -> Response[Any]:
    state = StreamCollector()
    for event in decode(body, **options):
        state = state.apply_event(event)
    return state.to_response()


def of(kind: type, body: bytes, **options: Any) -> list[Any]:
    return [event for event in decode(body, **options) if isinstance(event, kind)]


STOP = chunk({}, "stop") + DONE


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_content": "", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_content": None, "reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "thinking", "thinking": "hm"}]},
    ],
)
def test_thinking_is_said_once(delta: Any):
    assert of(ThinkingCompleted, chunk(delta) + STOP) == [ThinkingCompleted("hm", id="block_0")]


def test_what_is_opaque_in_thinking_is_kept():
    signed = {"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}
    secret = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    parts = fold(chunk({"reasoning": "hm", "reasoning_details": [signed, secret]}) + STOP).message.parts
    opaque = {"type": "reasoning.text", "signature": "s", "index": 0}
    assert parts == (
        ThinkingPart("hm", "s", {"reasoning_details": [opaque]}),
        ThinkingPart("", None, {"reasoning_details": [secret]}),
    )


def test_content_as_parts():
    body = chunk({"content": [{"type": "text", "text": "a"}, {"type": "odd"}]}) + STOP
    assert fold(body).output_text == "a"
    assert of(RawChunk, body) == [RawChunk("content", {"type": "odd"})]


def test_null_content_and_null_choices():
    assert (
        fold(
            chunk({"content": None}) + frame({"id": "r", "choices": None}) + chunk({"content": "a"}) + STOP
        ).output_text
        == "a"
    )


def test_of_several_choices_choice_0_is_read():
    other = {"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}
    for frames, n in ((frame({"choices": [other]}), 2), (frame({"choices": [other, other | {"index": 2}]}), 1)):
        response = fold(chunk({"content": "a"}) + frames + STOP, n=n)
        assert (response.output_text, response.finish_reason) == ("a", "stop")


def test_content_and_usage_after_the_finish_reason_count():
    response = fold(chunk({}, "stop") + chunk({"content": "a"}) + chunk({}, usage={"prompt_tokens": 1}) + DONE)
    assert (response.output_text, response.usage) == ("a", Usage(input_tokens=1))


def test_a_finish_reason_is_enough_at_the_end():
    assert fold(chunk({"content": "a"}, "stop")).finish_reason == "stop"


def test_done_is_enough_at_the_end():
    response = fold(chunk({"content": "a"}) + DONE)
    assert (response.finish_reason, response.error) == (None, None)


def test_a_refusal_is_text():
    response = fold(chunk({"refusal": "I cannot."}) + STOP)
    assert (response.output_text, response.finish_reason) == ("I cannot.", "content_filter")
    assert response.raw_finish_reason == "stop"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "content_filter"),
        ("novel", "other"),
    ],
)
def test_finish_reasons(raw: str, reason: str):
    response = fold(chunk({"content": "a"}, raw) + DONE)
    assert (response.finish_reason, response.raw_finish_reason) == (reason, raw)


@pytest.mark.parametrize(
    ("choice", "reason", "code"),
    [
        ({"finish_reason": "error"}, "unknown", "error"),
        ({"finish_reason": "network_error"}, "network_error", "network_error"),
        (
            {"finish_reason": "insufficient_system_resource"},
            "provider_unavailable",
            "insufficient_system_resource",
        ),
        (
            {"finish_reason": "error", "native_finish_reason": "MALFORMED_FUNCTION_CALL"},
            "unknown",
            "MALFORMED_FUNCTION_CALL",
        ),
    ],
)
def test_a_finish_reason_that_is_a_failure_is_an_error(choice: Any, reason: str, code: str):
    counted = frame({"choices": [], "usage": {"prompt_tokens": 3}})
    response = fold(chunk({"content": "a"}) + frame({"choices": [{"delta": {}, **choice}]}) + counted + DONE)
    assert (response.output_text, response.finish_reason, response.usage) == ("a", "error", Usage(3))
    assert response.error == AdapterError(reason, f"the answer ended with {code}", provider="openai", code=code)


def test_the_legacy_function_call():
    body = chunk({"function_call": {"name": "f", "arguments": '{"x"'}}) + chunk({"function_call": {"arguments": ":1}"}})
    response = fold(body + chunk({}, "function_call") + DONE)
    assert response.tool_calls == (ToolCall("call_0", "f", {"x": 1}, '{"x":1}'),)
    assert response.finish_reason == "tool_calls"


def test_synthesised_ids_go_on_from_the_thread():
    asked = [Message("assistant", tool_calls=(ToolCall("call_0", "f"),))]
    body = chunk({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}) + STOP
    assert [event.id for event in of(ToolCallCompleted, body, messages=asked)] == ["call_1"]


def test_legacy_completions():
    assert fold(frame({"choices": [{"text": "a", "index": 0, "finish_reason": "stop"}]})).output_text == "a"


WHOLE = {
    "id": "r",
    "choices": [
        {
            "message": {
                "content": "a",
                "tool_calls": [
                    {"id": "x", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "y", "function": {"name": "f", "arguments": "{}"}},
                ],
            }
        }
    ],
    "usage": {"prompt_tokens": 1},
}


def test_an_answer_that_was_not_streamed():
    response = fold(msgspec.json.format(msgspec.json.encode(WHOLE)))
    assert (response.output_text, response.finish_reason, response.error) == ("a", "tool_calls", None)
    assert [call.id for call in response.tool_calls] == ["x", "y"]
    assert response.usage.input_tokens == 1


def test_an_error_with_status_200():
    error = fold(b'{"error": {"message": "no", "code": "context_length_exceeded"}}').error
    assert error == AdapterError("context_length_exceeded", "no", provider="openai", code="context_length_exceeded")


@pytest.mark.parametrize("data", [{"object": "error", "message": "no", "code": 500}, {"error": "no", "code": 500}])
def test_errors_in_other_shapes(data: Any):
    error = fold(chunk({"content": "a"}) + frame(data)).error
    assert isinstance(error, AdapterError)
    assert (error.reason, error.message, error.status) == ("provider_unavailable", "no", 500)


def test_an_error_event_that_is_plain_text():
    error = fold(b"event: error\ndata: out of order\n\n").error
    assert error == AdapterError("unknown", "out of order", provider="openai")


@pytest.mark.parametrize("body", [b"data: {nonsense\n\n", b'data: {"id": "\xff"}\n\n', b"data: <html>\n\n"])
def test_a_frame_that_is_not_json(body: bytes):
    response = fold(chunk({"content": "a"}) + body)
    assert isinstance(response.error, StreamError)
    assert (response.error.reason, response.output_text) == ("malformed_event", "a")


def test_a_frame_of_nothing_known_is_shown():
    assert of(RawChunk, frame({"novel": 1}) + STOP) == [RawChunk("chunk", {"novel": 1})]
    assert of(RawChunk, b"event: ping\n" + frame([1]) + STOP) == [RawChunk("ping", [1])]
    assert "choices is not a list: 5" in str(fold(frame({"choices": 5}) + STOP).error)


def test_numbers_as_strings_are_forgiven():
    assert fold(frame({"choices": [{"index": "0", "delta": {"content": "a"}}]}) + STOP).output_text == "a"


def test_raw_frames_come_before_their_events():
    events = decode(chunk({"content": "a"}) + STOP, raw=True)
    names = [type(event).__name__ for event in events]
    assert names == ["MessageStarted", "RawChunk", "TextDelta", "RawChunk", "TextCompleted", "MessageCompleted"]
    assert events[1].data["choices"][0]["delta"] == {"content": "a"}


def test_a_raw_frame_is_never_taken_for_usage():
    assert of(RawChunk, b"event: usage\n" + frame({"novel": 1}) + STOP) == [RawChunk("chunk", {"novel": 1})]


def test_sources_are_added_once():
    results = [{"url": "u1", "title": "t"}]
    perplexity = frame({"choices": [], "citations": ["u1", "u2"], "search_results": results})
    cited = {"type": "url_citation", "url_citation": {"url": "u3", "start_index": 0, "end_index": 1}}
    body = perplexity * 2 + chunk({"content": "a", "annotations": [cited]}) + STOP
    assert [event.source for event in of(SourceAdded, body)] == [
        {"url": "u1", "title": "t"},
        {"url": "u2"},
        {"type": "url_citation", "url": "u3", "start_index": 0, "end_index": 1},
    ]


def test_images_and_sound():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAE="}}
    body = chunk({"images": [image]}) + chunk({"audio": {"id": "x", "data": "AAE=", "transcript": "a"}})
    body += chunk({"audio": {"data": "Ag==", "transcript": "b"}}) + STOP
    assert of(FileAdded, body) == [
        FileAdded({"mime_type": "image/png", "data": b"\0\1"}),
        FileAdded({"mime_type": "audio/pcm", "id": "x", "data": b"\0\1\2", "transcript": "ab"}),
    ]


def test_usage_on_every_chunk_is_said_when_it_changes():
    one, two = {"prompt_tokens": 1}, {"prompt_tokens": 1, "completion_tokens": 2}
    body = chunk({}, usage=one) + chunk({}, usage=one) + chunk({}, usage=two) + STOP
    assert of(UsageUpdated, body) == [UsageUpdated(Usage(1)), UsageUpdated(Usage(1, 2))]


def test_groqs_usage():
    assert fold(chunk({}, "stop", x_groq={"usage": {"prompt_tokens": 3}})).usage == Usage(3)


def test_the_counters():
    counted = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3, "image_tokens": None},
        "cost": 0.5,
        "queue_time": 0.1,
    }
    extra = {"prompt_tokens_details.audio_tokens": 0, "queue_time": 0.1}
    assert to_usage(counted, USAGE) == Usage(10, 5, 4, 2, 3, 15, total_cost=0.5, extra=extra)
    assert to_usage({"prompt_cache_hit_tokens": 1, "cost": {"total_cost": 2}}, USAGE) == Usage(
        cached_input_tokens=1, total_cost=2
    )
