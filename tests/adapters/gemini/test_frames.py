"""What Gemini's counters and finish reasons mean, kind by kind."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from rxllm.adapters.gemini.decoder import FINISH_REASONS, GeminiDecoder, sources_of
from rxllm.adapters.gemini.frames import Candidate, to_usage
from rxllm.adapters.gemini.parts import PartialArguments
from rxllm.events import ErrorEvent, MessageStarted, RawChunk, TextDelta, ToolCallStarted
from rxllm.values import AdapterError, FinishReason, ProviderPart, ThinkingPart, Usage
from tests.adapters.gemini.test_decoder import HI, STOP, data, said, sse


def test_the_counters():
    counted = {
        "promptTokenCount": 10,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 3,
        "toolUsePromptTokenCount": 7,
        "totalTokenCount": 25,
        "cachedContentTokenCount": 4,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 6}, {"modality": "IMAGE", "tokenCount": 4}],
        "toolUsePromptTokensDetails": [{"modality": 1}],
        "serviceTier": "standard",
        "novel": {"a": {"b": 1}, "c": None},
    }
    extra = {
        "toolUsePromptTokenCount": 7,
        "promptTokensDetails.TEXT": 6,
        "promptTokensDetails.IMAGE": 4,
        "toolUsePromptTokensDetails.1": 0,
        "serviceTier": "standard",
        "novel.a.b": 1,
    }
    expected = Usage(17, 8, 4, reasoning_tokens=3, total_tokens=25, extra=extra)
    assert to_usage(counted) == expected


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ({}, Usage()),
        ({"promptTokenCount": 1}, Usage(1)),
        ({"thoughtsTokenCount": 2}, Usage(output_tokens=2, reasoning_tokens=2)),
        ({"responseTokenCount": 2}, Usage(output_tokens=2)),
        ({"promptTokenCount": "many"}, Usage()),
    ],
)
def test_counters_that_are_missing(counted: dict[str, Any], expected: Usage):
    assert to_usage(counted) == expected


def test_every_finish_reason_of_the_sdk_has_a_meaning():
    types = pytest.importorskip("google.genai.types")
    assert {each.value for each in types.FinishReason} <= set(FINISH_REASONS)
    assert set(FINISH_REASONS.values()) <= set(get_args(FinishReason))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("TOO_MANY_TOOL_CALLS", "error"),
        ("MISSING_THOUGHT_SIGNATURE", "error"),
        ("10", "error"),
        ("OTHER", "other"),
        ("NOVEL", "other"),
        ("stop", "stop"),
    ],
)
def test_finish_reasons(raw: str, reason: str):
    response = said(sse(HI, data(None, raw)))[1]
    assert response.finish_reason == reason
    if reason != "error":
        assert (response.raw_finish_reason, response.error) == (raw, None)
        return
    assert isinstance(response.error, AdapterError)
    assert (response.error.code, response.error.provider, response.output_text) == (raw, "google", "Hi")
    assert response.error.reason == ("invalid_request" if "SIGNATURE" in raw else "malformed_response")


def test_all_kinds_of_sources():
    candidate = Candidate(
        grounding_metadata={
            "groundingChunks": [
                {"web": {"uri": "u1", "title": "t", "domain": "d"}},
                {"maps": {"uri": "u2", "placeId": "p"}},
                {"retrievedContext": {"uri": "u3", "text": "x"}},
                {"image": {"sourceUri": "u4", "imageUri": "i"}},
                "odd",
            ],
            "groundingSupports": None,
        },
        citation_metadata={"citationSources": [{"startIndex": 1, "endIndex": 2, "uri": "u5", "license": "MIT"}]},
        url_context_metadata={"urlMetadata": [{"retrievedUrl": "u6", "urlRetrievalStatus": "OK"}]},
    )
    assert list(sources_of(candidate)) == [
        {"type": "web", "url": "u1", "title": "t", "domain": "d"},
        {"type": "maps", "url": "u2", "placeId": "p"},
        {"type": "retrievedContext", "url": "u3", "text": "x"},
        {"type": "image", "url": "u4", "imageUri": "i"},
        {"type": "citation", "url": "u5", "startIndex": 1, "endIndex": 2, "license": "MIT"},
        {"type": "url_context", "url": "u6", "urlRetrievalStatus": "OK"},
    ]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            [{"jsonPath": "$.a", "boolValue": True}, {"jsonPath": "$['b.c']", "numberValue": 1.5}],
            {"a": True, "b.c": 1.5},
        ),
        ([{"jsonPath": "$.a[0]", "stringValue": "x"}, {"jsonPath": "$.a[1]", "stringValue": "y"}], {"a": ["x", "y"]}),
        ([{"jsonPath": "$.a[999999999]", "numberValue": 1}], {"a": [1]}),
        ([{"jsonPath": "$.a[0][1].b", "numberValue": 1}], {"a": [[{"b": 1}]]}),
        ([{"jsonPath": "$.a", "numberValue": 1}, {"jsonPath": "$.a.b", "numberValue": 2}], {"a": 1}),
        ([{"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a", "stringValue": "y"}], {"a": "y"}),
        ([{"jsonPath": "$.a", "stringValue": "x", "willContinue": True}], {"a": "x"}),
        ([{"jsonPath": "$", "numberValue": 1}, {}], {}),
    ],
)
def test_partial_arguments(pieces: list[dict[str, Any]], expected: dict[str, Any]):
    partial = PartialArguments()
    partial.feed(pieces)
    assert partial.finish() == expected


def test_raw_chunks_come_before_their_events():
    decoder = GeminiDecoder(raw=True)
    events = decoder.feed(sse(HI)) + decoder.feed(sse(STOP)) + decoder.close()
    assert [type(event) for event in events[:3]] == [MessageStarted, RawChunk, TextDelta]
    assert events[1].data == HI


def test_text_beside_a_call_in_one_part_is_not_lost():
    response = said(sse(data([{"text": "", "functionCall": {"name": "f"}}, {"text": "a"}], "STOP")))[1]
    assert [call.name for call in response.tool_calls] == ["f"]
    assert response.output_text == "a"


def test_tools_of_the_server():
    asked = {"toolType": "GOOGLE_SEARCH_WEB", "id": "s1", "args": {"queries": ["q"]}}
    found = {"toolType": "GOOGLE_SEARCH_WEB", "id": "s1", "response": {"a": 1}}
    events, response = said(
        sse(data([{"toolCall": asked}, {"toolResponse": found, "thoughtSignature": "czE="}]), HI, STOP)
    )
    assert events[1] == ToolCallStarted("s1", "google_search_web", {"server": True})
    (call,) = response.message.tool_calls
    assert (call.arguments, response.tool_calls) == ({"queries": ["q"]}, ())
    assert [part.data for part in response.message.parts if isinstance(part, ProviderPart)] == [
        {"toolCall": asked},
        {"toolResponse": found, "thoughtSignature": "czE="},
    ]


def test_files():
    parts = [
        {"fileData": {"mimeType": "video/mp4", "fileUri": "u"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAE="}, "thought": True},
        {"inlineData": {"data": "A"}},
    ]
    assert [event.file for event in said(sse(data(parts, "STOP")))[0][1:]] == [
        {"mime_type": "video/mp4", "url": "u"},
        {"mime_type": "image/png", "data": b"\0\1", "thought": True},
        {"mime_type": "application/octet-stream", "data": b""},
    ]


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ({"thoughtSignature": "czE="}, ProviderPart("google", {"text": "", "thoughtSignature": "czE="})),
        ({"thoughtSignature": "czE=", "thought": True}, ThinkingPart("", "czE=", {"provider": "google"})),
    ],
)
def test_a_signature_by_itself(part: dict[str, Any], kept: Any):
    assert said(sse(data([part], "STOP")))[1].message.parts == (kept,)


def test_numbers_as_strings_are_forgiven():
    odd = data([{"text": "a"}], "STOP", candidate={"index": "0"})
    assert said(sse(odd))[1].output_text == "a"


def test_an_error_event_of_odd_json():
    error = said(sse(HI) + b'event: error\ndata: "out of order"\n\n')[1].error
    assert error == AdapterError("unknown", "out of order", provider="google")


@pytest.mark.parametrize("body", [b"data: ", b'[{"a": "'])
def test_a_frame_without_end(body: bytes):
    decoder = GeminiDecoder()
    events = decoder.feed(body)
    for _ in range(17):
        events += decoder.feed(b"x" * 2**20)
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "oversized_frame"
    assert decoder.feed(b"x") == decoder.close() == []
