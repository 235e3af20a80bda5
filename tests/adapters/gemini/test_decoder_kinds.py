"""The kinds of finish reasons, sources and errors of Gemini, one by one."""

from __future__ import annotations

from typing import get_args

import pytest

from rxllm.adapters.gemini.decoder import FINISH_REASONS, GeminiDecoder, sources_of
from rxllm.adapters.gemini.frames import Candidate
from rxllm.events import MessageStarted, RawChunk, TextDelta
from rxllm.values import AdapterError, FinishReason
from tests.adapters.gemini.support import HI, STOP, data, said, sse


@pytest.mark.judges
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


def test_raw_chunks_come_before_their_events():
    decoder = GeminiDecoder(raw=True)
    events = decoder.feed(sse(HI)) + decoder.feed(sse(STOP)) + decoder.close()
    assert [type(event) for event in events[:3]] == [MessageStarted, RawChunk, TextDelta]
    assert events[1].data == HI


def test_an_error_event_of_odd_json():
    error = said(sse(HI) + b'event: error\ndata: "out of order"\n\n')[1].error
    assert error == AdapterError("unknown", "out of order", provider="google")


def test_the_token_with_which_an_answer_goes_on_is_kept() -> None:
    frame = data([{"text": "Hi"}], "CONTINUATION")
    frame["candidates"][0]["continuationToken"] = "TOK"
    response = said(sse(frame))[1]
    assert (response.output_text, response.metadata["continuation_token"]) == ("Hi", "TOK")
