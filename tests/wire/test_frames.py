"""What no provider should send ends the stream with a typed error, on every wire that shares the shell."""

import pytest

from rxllm import Anthropic, ErrorEvent, Gemini, OpenAIChat, OpenAIResponses, Request, StreamError
from rxllm.events import MessageStarted, RawChunk
from rxllm.serializer import from_json, to_json

ADAPTERS = [OpenAIChat, OpenAIResponses, Anthropic, Gemini]

UNREADABLE = {
    "invalid UTF-8 in a field that nobody reads": b'{"nobody_reads_this": "\xff"}',
    "nested deeper than any parser goes": b"[" * 100_000 + b"]" * 100_000,
    "nested deeper than Python 3.13 recurses, whose parser goes further": b"[" * 2000 + b"]" * 2000,
    "nested one level too deeply": b"[" * 101 + b"]" * 101,
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


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_a_frame_of_a_hundred_levels_is_read_and_its_events_can_be_written(adapter: type[OpenAIChat]) -> None:
    decoder = adapter().decoder(Request())
    events = decoder.feed(b'data: {"[[\\"": ' + b"[" * 99 + b"]" * 99 + b"}\n\n")
    events += adapter().decoder(Request(), raw=True).feed(b"data: " + b"[" * 100 + b"]" * 100 + b"\n\n")
    assert [type(event).__name__ for event in events if isinstance(event, ErrorEvent)] == []
    assert [event for event in events if isinstance(event, RawChunk)]
    assert [from_json(to_json(event)) for event in events] == events


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_without_its_blank_line_it_is_left_out_like_every_unfinished_event(
    adapter: type[OpenAIChat], frame: bytes
) -> None:
    decoder = adapter().decoder(Request())
    events = decoder.feed(b"data: " + frame) + decoder.close()
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error == StreamError("truncated", events[-1].error.message)
