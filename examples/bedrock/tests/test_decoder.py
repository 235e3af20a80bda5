"""Answers: what becomes of each event, and laws that hold for any bytes."""

from __future__ import annotations

import json
import tracemalloc
from binascii import crc32
from collections.abc import Iterator
from struct import pack
from typing import Any

import pytest
import rxllm
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import from_iterable
from rxllm import AdapterError, Event, Message, RawChunk, SourceAdded, StreamError, ToolCall, Usage
from rxllm import operators as ops
from rxllm.events import ErrorEvent, MessageCompleted
from rxllm.testing import chunkings, cut
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import ProviderPart, Request, Response, ThinkingPart
from wire import BEGIN, SIGNATURE, call_frames, delta, end, failure, frame, message, recordings, start, stop

from rxllm_bedrock import Bedrock

MODEL = "amazon.nova-lite-v1:0"


def decode(*reads: bytes, raw: bool = False) -> list[Event]:
    decoder = Bedrock().decoder(Request(), raw=raw)
    return [*(event for read in reads for event in decoder.feed(read)), *decoder.close()]


def expect_lawful(events: list[Event]) -> None:
    from_iterable(events).pipe(ops.verify()).run()


def answer(*frames: bytes) -> Response[Any]:
    with Loopback(Reply(frames)) as server:
        return rxllm.generate(Bedrock(base_url=server.url), "Hi", model=MODEL, retry=False).run()


COUNTS = {"inputTokens": 3, "outputTokens": 5, "totalTokens": 14, "cacheReadInputTokens": 2, "cacheWriteInputTokens": 4}
CITATION = {"title": "T", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}
WHOLE = [
    BEGIN,
    delta(0, reasoningContent={"text": "H"}),
    delta(0, reasoningContent={"text": "m."}),
    delta(0, reasoningContent={"signature": SIGNATURE}),
    stop(0),
    delta(1, reasoningContent={"redactedContent": "c2VjcmV0"}),
    stop(1),
    delta(2, text="Ünd "),
    delta(2, text="so."),
    delta(2, citation=CITATION),
    stop(2),
    start(3, toolUse={"toolUseId": "s1", "name": "nova_grounding", "type": "server_tool_use"}),
    delta(3, toolUse={"input": '{"q":'}),
    delta(3, toolUse={"input": " 1}"}),
    stop(3),
    start(4, toolResult={"toolUseId": "s1", "type": "nova_grounding_result", "status": "success"}),
    delta(4, toolResult=[{"text": "found"}]),
    stop(4),
    *call_frames(5, ToolCall("c1", "look", {"place": "Oslo"})),
    *call_frames(6, ToolCall("c2", "look", {})),
    *end("tool_use", COUNTS, trace={"guardrail": {"actionReason": "none"}}, serviceTier={"type": "default"}),
]


def test_an_answer_in_all_its_parts() -> None:
    response = answer(*WHOLE)
    parts = [part for part in response.message.parts if isinstance(part, ThinkingPart | ProviderPart)]
    assert parts == [
        ThinkingPart("Hm.", SIGNATURE, {"provider": "bedrock"}),
        ThinkingPart("", None, {"provider": "bedrock", "redactedContent": "c2VjcmV0"}),
        ProviderPart(
            "bedrock",
            {"toolUse": {"toolUseId": "s1", "name": "nova_grounding", "type": "server_tool_use", "input": {"q": 1}}},
        ),
        ProviderPart(
            "bedrock",
            {
                "toolResult": {
                    "toolUseId": "s1",
                    "type": "nova_grounding_result",
                    "status": "success",
                    "content": [{"text": "found"}],
                }
            },
        ),
    ]
    assert response.output_text == "Ünd so."
    assert [(call.id, call.arguments) for call in response.tool_calls] == [("c1", {"place": "Oslo"}), ("c2", {})]
    assert response.usage == Usage(9, 5, 2, 4, total_tokens=14)
    assert response.metadata["trace"] == {"guardrail": {"actionReason": "none"}}
    assert [event.source for event in decode(*WHOLE) if isinstance(event, SourceAdded)] == [CITATION]


def test_what_bedrock_sent_goes_back_to_it() -> None:
    thread = (rxllm.user("Hi"), answer(*WHOLE).message)
    assert [block for turn in body(*thread)["messages"][1:] for block in turn["content"]] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": SIGNATURE}}},
        {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
        {"text": "Ünd so."},
        {"toolUse": {"toolUseId": "s1", "name": "nova_grounding", "type": "server_tool_use", "input": {"q": 1}}},
        {
            "toolResult": {
                "toolUseId": "s1",
                "type": "nova_grounding_result",
                "status": "success",
                "content": [{"text": "found"}],
            }
        },
        {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"place": "Oslo"}}},
        {"toolUse": {"toolUseId": "c2", "name": "look", "input": {}}},
    ]


def body(*messages: Message) -> Any:
    built = Bedrock(api_key="k", region="us-east-1").build(Request(messages, MODEL), rxllm.values.Call())
    return json.loads(built.content)


@pytest.mark.parametrize(
    ("stop_reason", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("something_new", "other"),
    ],
)
def test_finish_reasons(stop_reason: str, reason: str) -> None:
    response = answer(BEGIN, delta(0, text="Hi"), *end(stop_reason))
    assert (response.finish_reason, response.raw_finish_reason, response.error) == (reason, stop_reason, None)


def test_a_malformed_output_is_an_error() -> None:
    error = answer(BEGIN, delta(0, text="Hi"), *end("malformed_tool_use")).error
    assert isinstance(error, AdapterError)
    assert error.reason == "malformed_response"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("throttlingException", "rate_limited"),
        ("serviceUnavailableException", "provider_unavailable"),
        ("internalServerException", "provider_unavailable"),
        ("modelStreamErrorException", "provider_unavailable"),
        ("modelTimeoutException", "timeout"),
        ("validationException", "invalid_request"),
        ("someNewException", "unknown"),
    ],
)
def test_an_exception_inside_the_stream(name: str, reason: str) -> None:
    response = answer(BEGIN, delta(0, text="Hi"), failure(name, message="Oh no.", originalStatusCode=500))
    assert response.output_text == "Hi"
    assert isinstance(response.error, AdapterError)
    assert (response.error.reason, response.error.code) == (reason, name)
    assert (response.error.message, response.error.metadata["originalStatusCode"]) == ("Oh no.", 500)


def test_an_error_frame_without_a_payload() -> None:
    headers = {":message-type": "error", ":error-code": "InternalServer", ":error-message": "Oh no."}
    error = answer(BEGIN, message(b"", headers)).error
    assert isinstance(error, AdapterError)
    assert (error.reason, error.code, error.message) == ("provider_unavailable", "InternalServer", "Oh no.")


def test_unknown_events_are_raw_chunks() -> None:
    unknown = [frame("newEvent", {"a": 1}), start(0, image={"format": "png"}), delta(0, image={"error": {}})]
    events = decode(BEGIN, *unknown, *end())
    assert [event.kind for event in events if isinstance(event, RawChunk)] == [
        "newEvent",
        "contentBlockStart",
        "contentBlockDelta",
    ]
    assert len([event for event in decode(*WHOLE, raw=True) if isinstance(event, RawChunk)]) == len(WHOLE)


# Errors before the stream


@pytest.mark.parametrize(
    ("status", "name", "message", "reason"),
    [
        (400, "ValidationException", "The provided model identifier is invalid.", "invalid_request"),
        (400, "ValidationException", "Input is too long for requested model.", "context_length_exceeded"),
        (400, "ServiceQuotaExceededException", "Too many.", "rate_limited"),
        (403, "AccessDeniedException", "You don't have access to the model.", "authentication_failed"),
        (403, "", "Signature expired: 20251117T063822Z is now earlier than ...", "authentication_failed"),
        (404, "ResourceNotFoundException", "This model version has reached the end of its life.", "invalid_request"),
        (408, "ModelTimeoutException", "Slow.", "timeout"),
        (424, "ModelErrorException", "Oh no.", "provider_unavailable"),
        (429, "ThrottlingException", "Model is getting throttled. Try your request again.", "rate_limited"),
        (429, "ModelNotReadyException", "Wait.", "provider_unavailable"),
        (500, "InternalServerException", "Oh no.", "provider_unavailable"),
    ],
)
def test_a_refusal(status: int, name: str, message: str, reason: str) -> None:
    headers = {"x-amzn-ErrorType": f"{name}:http://internal/", "x-amzn-RequestId": "r1", "Retry-After": "7"}
    error = Bedrock().error(status, headers, f'{{"message": "{message}"}}'.encode())
    assert (error.reason, error.status, error.message) == (reason, status, message)
    assert (error.code, error.request_id, error.retry_after) == (name or None, "r1", 7.0)


# Laws for any bytes

DATA = b"".join(WHOLE)


def test_reads_do_not_matter() -> None:
    data = b"".join([*WHOLE[:3], *WHOLE[-2:]])
    for reads in chunkings(data):
        assert decode(*reads) == decode(data)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, len(DATA))))
def test_any_reads_give_the_same_events(places: list[int]) -> None:
    assert decode(*cut(DATA, *places)) == decode(DATA)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_flipped_bit_is_an_error_after_the_frames_before_it(place: int, bits: int) -> None:
    sent = DATA[:place] + bytes([DATA[place] ^ bits]) + DATA[place + 1 :]
    events = decode(sent)
    expect_lawful(events)
    assert isinstance(events[-1], ErrorEvent)
    assert isinstance(events[-1].error, StreamError)
    assert events[-1].error.reason in ("malformed_event", "truncated")
    assert decode(*cut(sent, place)) == events


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=64), st.integers(0, len(WHOLE)))
def test_any_bytes_between_frames_raise_nothing(junk: bytes, place: int) -> None:
    expect_lawful(decode(*WHOLE[:place], junk, *WHOLE[place:]))


@pytest.mark.parametrize("place", range(len(WHOLE)))
def test_a_frame_with_the_wrong_json_raises_nothing(place: int) -> None:
    """Unlike the test kit's malformed frames, these have correct checksums."""
    buffer = EventStreamBuffer()
    buffer.add_data(WHOLE[place])
    sound = next(buffer)
    kind, payload = sound.headers[":event-type"], json.loads(sound.payload)
    for variant in [b"", b"{", b"[1]", b"null", *variants(payload)]:
        expect_lawful(decode(*WHOLE[:place], frame(kind, variant), *WHOLE[place + 1 :]))


def variants(value: Any) -> Iterator[Any]:
    """Yield copies of `value` in which one value is replaced or left out."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield {key: other for key, other in value.items() if key != name}
            yield from ({**value, name: wrong} for wrong in (None, 7, "x", [1], {"x": 1}, *variants(entry)))


@pytest.mark.parametrize("length", [0, 11, 15, 16, 100, 1 << 20, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("head", [0, 4, 1 << 17, (1 << 32) - 1])
def test_a_length_that_lies_takes_no_memory(length: int, head: int) -> None:
    prelude = pack("!II", length, head)
    lie = BEGIN + prelude + pack("!I", crc32(prelude))
    tracemalloc.start()
    try:
        events = decode(lie, *(bytes(1000) for _ in range(100)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    expect_lawful(events)
    assert isinstance(events[-1], ErrorEvent)
    assert peak < 1 << 20


# Recorded streams


def test_recorded_streams() -> None:
    streams = recordings()
    assert len(streams) >= 40
    for features, data in streams:
        events = decode(data)
        expect_lawful(events)
        for reads in chunkings(data, cuts=50):
            assert decode(*reads) == events
        if "bedrock-converse-stream" in features:
            assert isinstance(events[-1], MessageCompleted)
            message = events[-1].message
            assert bool(message.tool_calls) == ("tool_calls" in features)
            assert ("thinking" in features) == any(isinstance(part, ThinkingPart) for part in message.parts)
            assert bool(message.text) == ("text" in features.split())
        elif "error:modelStreamErrorException" in features:
            assert isinstance(events[-1], ErrorEvent)
            assert events[-1].error.reason == "provider_unavailable"
