"""Gemini's usage counters, and the framing of its chunks."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.gemini.frames import to_usage
from rxllm.events import ErrorEvent
from rxllm.values import Usage
from tests.adapters.gemini.support import data, said, sse


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


def test_numbers_as_strings_are_forgiven():
    odd = data([{"text": "a"}], "STOP", candidate={"index": "0"})
    assert said(sse(odd))[1].output_text == "a"


@pytest.mark.parametrize("body", [b"data: ", b'[{"a": "'])
def test_a_frame_without_end(body: bytes):
    decoder = GeminiDecoder()
    events = decoder.feed(body)
    for _ in range(17):
        events += decoder.feed(b"x" * 2**20)
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "oversized_frame"
    assert decoder.feed(b"x") == decoder.close() == []
