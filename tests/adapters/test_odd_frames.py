"""One odd frame: what came before it stands, the error is typed, and tools that have run are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    ErrorEvent,
    Event,
    LLMError,
    Message,
    MessageStarted,
    OpenAIChat,
    Request,
    StreamError,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    tool,
)
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIResponses
from rxllm.events import MessageCompleted
from rxllm.images import OpenAIImages
from rxllm.testing import cut
from rxllm.testing.loopback import Loopback, Reply, chat_chunk
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder
from rxllm.wire.framing import SSEDecoder
from tests.adapters.odd import calling, chat_frames, decode, text_of
from tests.adapters.streams import ndjson, sse

# The frames that once escaped

ODD_DELTAS = [
    {"content": [{"type": "thinking", "thinking": None}]},
    {"content": [{"type": "thinking", "thinking": [7, {"text": 7}]}]},
    {"annotations": [{"type": "url_citation", "url_citation": {"url": ["u"], "start_index": [0]}}]},
    {"annotations": [{"url": "u", "end_index": {}}]},
    {"reasoning_details": [{"type": "reasoning.text", "text": 7}]},
    {"reasoning_details": [{"type": "reasoning.text", "signature": 7, "data": 7}]},
    {"audio": {"data": "\u0663"}},
    {"images": [{"image_url": {"url": "data:image/png;base64,\u0663"}}]},
]


@pytest.mark.parametrize("delta", ODD_DELTAS, ids=json.dumps)
def test_an_odd_field_of_a_delta_ends_nothing(delta: Any) -> None:
    events = decode(OpenAIChat, sse(*chat_frames({"content": "Hi"}, delta, {"content": " you"}), done=True))
    assert text_of(events) == "Hi you"
    assert isinstance(events[-1], MessageCompleted)


def test_a_list_for_a_name_is_an_odd_name() -> None:
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": ["f"], "input": "x"}
    done = {"type": "response.completed", "response": {"status": "completed"}}
    events = decode(OpenAIResponses, sse({"type": "response.output_item.done", "item": item}, done))
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == ["custom_tool"]


def test_invalid_utf_8_in_a_line_that_is_read_again_is_a_malformed_event() -> None:
    last = b'{"model": "m", "done": true, "done_reason": "stop", "x": "\xff"}\n'
    events = decode(Ollama, ndjson({"model": "m", "message": {"content": "Hi"}}) + last)
    assert events[1:3] == [TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")]
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "malformed_event"


# Whatever the code that reads a frame raises


class Fragile(FrameDecoder):
    """Whoever wrote this trusts the server: ``text`` is text, ``call`` the arguments of a call."""

    def __init__(self) -> None:
        super().__init__(SSEDecoder(), Blocks(), msgspec.json.Decoder(), provider="fragile", raw=False)

    def read(self, kind: str, said: Any, frame: bytes, /) -> None:
        self.blocks.start()
        self.blocks.text(said.get("text"))
        if "call" in said:
            self.blocks.call(0, "c", "f", said["call"])
        if "fail" in said:
            raise RuntimeError(said["fail"])

    def error_of(self, payload: Any) -> AdapterError:
        return AdapterError("unknown")


GOOD = sse({"text": "Hi"}, {"call": '{"a"'})
STARTED = MessageStarted(Message("assistant"))
SAID = [
    STARTED,
    *(TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")),
    *(ToolCallStarted("c", "f"), ToolCallDelta("c", '{"a"')),
    ToolCallCompleted("c", "f", {}, '{"a"', {"error": "incomplete"}),
]


@pytest.mark.parametrize(
    "odd", [b"data: []\n\n", b"data: 7\n\n", sse({"text": 7}), sse({"call": 7, "fail": "x"}), sse({"fail": "x"})]
)
@given(places=st.lists(st.integers(0, 200), max_size=5))
def test_an_exception_is_an_error_after_all_that_came_before_however_it_is_cut(odd: bytes, places: list[int]) -> None:
    decoder, body = Fragile(), GOOD + odd + sse({"text": "late"})
    events = [event for read in cut(body, *(place % len(body) for place in places)) for event in decoder.feed(read)]
    assert isinstance(events[-1], ErrorEvent)
    assert isinstance(events[-1].error, StreamError)
    assert events[-1].error.reason == "malformed_event"
    assert [event for event in events[:-1] if event != ToolCallDelta("c", "7")][:5] == SAID[:5]
    assert isinstance(events[-2], ToolCallCompleted)
    assert decoder.close() == []


# A decoder that is not one of rxllm's own shell


class Words:
    """One word a line, which must be ASCII, and a call where a line begins with ``!``."""

    begun = False

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = [] if self.begun else [STARTED]
        self.begun = True
        for word in data.decode("ascii").split():
            events += [ToolCallStarted("c", "f")] if word == "!" else [TextDelta(word)]
        return events

    def close(self) -> list[Event]:
        raise KeyError("end")


class Foreign(OpenAIChat):
    def decoder(self, request: Request, *, raw: bool = False) -> Any:
        return Words()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:  # type: ignore[override]
        raise IndexError(body)


def answered(adapter: Any, reply: Reply) -> list[Event]:
    with Loopback(reply) as server:
        return list(rxllm.stream_generate(adapter(base_url=server.url, api_key="k"), "Hi", model="m", retry=False))


@pytest.mark.sockets
@pytest.mark.parametrize("body", [b"a\nb\n\xff\n", [b"a\n", b"b\n", b"\xff\n"]], ids=["one read", "three reads"])
def test_a_foreign_decoder_that_raises_ends_the_stream_with_a_typed_error(body: Any) -> None:
    *events, last = answered(Foreign, Reply(body))
    assert events == [STARTED, TextDelta("a", "block_0"), TextDelta("b", "block_0"), TextCompleted("ab", "block_0")]
    assert isinstance(last, ErrorEvent)
    assert last.error.reason == "malformed_event"
    assert isinstance(last.error.__cause__, UnicodeDecodeError)


@pytest.mark.sockets
def test_a_foreign_decoder_that_raises_at_the_end_does_so_too() -> None:
    events = answered(Foreign, Reply(b"a\n!\n"))
    assert events[-2:-1] == [ToolCallCompleted("c", "f", {}, "", {"error": "incomplete"})]
    assert isinstance(events[-1], ErrorEvent)


@pytest.mark.sockets
def test_an_error_reader_that_raises_leaves_the_status() -> None:
    with pytest.raises(AdapterError) as caught:
        answered(Foreign, Reply(b"oops", 429, {"Retry-After": "3"}))
    assert (caught.value.reason, caught.value.status, caught.value.retry_after) == ("rate_limited", 429, 3)
    assert isinstance(caught.value.__cause__, IndexError)


class FragileImages(OpenAIImages):
    def read(self, request: Any, answer: Any) -> Any:
        raise IndexError("no image")


@pytest.mark.sockets
def test_an_images_reader_that_raises_is_a_malformed_response() -> None:
    with Loopback(Reply.of_json({"data": []})) as server, pytest.raises(AdapterError) as caught:
        rxllm.generate_image(Engine(image_adapter=FragileImages(base_url=server.url)), "a cat", model="m").run()
    assert caught.value.reason == "malformed_response"


@pytest.mark.sockets
def test_an_image_at_what_is_not_a_url_is_a_typed_error() -> None:
    with Loopback(Reply.of_json({"data": [{"url": "http://[x"}]})) as server, pytest.raises(AdapterError) as caught:
        rxllm.generate_image(Engine(image_adapter=OpenAIImages(base_url=server.url)), "a cat", model="m").run()
    assert "not a valid URL" in caught.value.message


@pytest.mark.sockets
def test_a_chat_keeps_the_tools_that_have_run() -> None:
    first = calling("add", '{"a": 1}')
    last = [chat_chunk("It"), b'data: {"number": %b}\n\n' % (b"1" * 5000)]
    with Loopback([first, Reply(last)]) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=[tool(name="add", handler=lambda given: 2)])
        result = rxllm.chat(engine, "Hi", retry=False).run()
    assert result.halted_reason == "error"
    assert [message.content for step in result.steps for message in step.tool_results] == ["2"]


# Errors


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b'{"error": {"message": "x", "details": [{"retryDelay": "1.2.3s"}]}}'),
        ({}, b"[" * 100_000 + b"]" * 100_000),
        ({}, b'{"error": {"metadata": {"raw": "' + b"[" * 100_000 + b'"}}}'),
        ({"retry-after": "Mon, 99 Zzz 999999 99:99:99"}, b""),
        ({"retry-after": "1" * 20}, b""),
        ({"retry-after": "nan"}, b""),
    ],
    ids=["retryDelay of nonsense", "deep JSON", "deep JSON in JSON", "no date", "20 digits", "nan"],
)
@pytest.mark.parametrize("adapter", [OpenAIChat, Anthropic, Gemini, Ollama])
def test_an_odd_refusal_is_a_typed_error_with_its_status(adapter: Any, headers: dict[str, str], body: bytes) -> None:
    error = adapter().error(429, headers, body)
    assert (error.reason, error.status) == ("rate_limited", 429)
    policy = rxllm.RetryPolicy(max_retry_after=1e9)
    assert 0 <= policy.delay(error, 1) < 1e9


# The ends of a stream


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, Anthropic])
def test_an_end_marker_before_any_frame_is_an_error(adapter: Any) -> None:
    events = decode(adapter, b": ping\n\ndata: [DONE]\n\n")
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "truncated"


@pytest.mark.parametrize("after", [b"", b"data: [DONE]\n\n"], ids=["at the end", "before [DONE]"])
@pytest.mark.parametrize("before", [b"", b"\n"], ids=["an event", "its last line unfinished"])
@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, Anthropic, Gemini])
def test_an_error_field_is_the_error_of_the_stream(adapter: Any, before: bytes, after: bytes) -> None:
    line = b'error: {"code":503,"message":"the slot is gone","type":"unavailable_error"}'
    (error,) = [each for each in decode(adapter, before + line + b"\n\n" + after) if isinstance(each, ErrorEvent)]
    assert "the slot is gone" in str(error.error)
    assert isinstance(error.error, AdapterError)
    assert error.error.reason == "provider_unavailable"


def test_an_error_field_after_some_text_comes_after_it() -> None:
    body = chat_chunk("Hi") + b"error: it broke"
    for events in (decode(OpenAIChat, body), decode(OpenAIChat, *cut(body, 5, 90, len(body) - 4))):
        assert text_of(events) == "Hi"
        assert isinstance(events[-1], ErrorEvent)
        assert events[-1].error.message == "it broke"
