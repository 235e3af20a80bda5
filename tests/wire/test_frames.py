"""What no provider should send ends the stream with a typed error, on every wire that shares the shell."""

import pytest

from rxllm import Anthropic, ErrorEvent, Gemini, OpenAIChat, OpenAIResponses, Request, StreamError
from rxllm.events import MessageStarted

ADAPTERS = [OpenAIChat, OpenAIResponses, Anthropic, Gemini]

UNREADABLE = {
    "invalid UTF-8 in a field that nobody reads": b'{"nobody_reads_this": "\xff"}',
    "nested deeper than any parser goes": b"[" * 100_000 + b"]" * 100_000,
    "cut in its middle": b'{"id": "x", "choi',
    "no JSON at all": b"<html>busy</html>",
}


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_an_unreadable_frame_is_a_malformed_event(adapter: type[OpenAIChat], frame: bytes) -> None:
    decoder = adapter().decoder(Request())
    events = decoder.feed(b"data: " + frame + b"\n\n") + decoder.close()
    assert isinstance(events[0], MessageStarted)
    assert isinstance(events[-1], ErrorEvent)
    assert isinstance(events[-1].error, StreamError)
    assert events[-1].error.reason == "malformed_event"


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_without_its_blank_line_it_is_left_out_like_every_unfinished_event(
    adapter: type[OpenAIChat], frame: bytes
) -> None:
    decoder = adapter().decoder(Request())
    events = decoder.feed(b"data: " + frame) + decoder.close()
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error == StreamError("truncated", events[-1].error.message)
