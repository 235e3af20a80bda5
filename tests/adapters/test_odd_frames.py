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
    Call,
    Engine,
    ErrorEvent,
    Event,
    LLMError,
    Message,
    MessageStarted,
    OpenAIChat,
    OpenAIImages,
    Request,
    StreamError,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ValidationError,
    tool,
)
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIResponses
from rxllm.collector import StreamCollector
from rxllm.events import MessageCompleted, RawChunk
from rxllm.serializer import from_json, to_json
from rxllm.testing import cut
from rxllm.testing.loopback import DONE, Loopback, Reply, chat, chat_chunk, chat_event, chat_finish
from rxllm.wire.blocks import Blocks
from rxllm.wire.frames import FrameDecoder
from rxllm.wire.sse import SSEDecoder
from tests.adapters.streams import ndjson, sse
from tests.wire.lawful import lawful


def decode(adapter: Any, *reads: bytes) -> list[Event]:
    decoder = adapter(api_key="k").decoder(Request())
    events = [event for read in reads for event in decoder.feed(read)] + decoder.close()
    lawful(events)
    return events


def calling(name: str, arguments: str = "{}") -> Reply:
    call = {"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments}}
    return Reply([chat_event({"tool_calls": [call]}), chat_finish("tool_calls"), DONE])


def text_of(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


def chat_frames(*deltas: Any) -> list[Any]:
    return [{"id": "r", "model": "m", "choices": [{"delta": delta}]} for delta in deltas]


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
    assert events[1:3] == [TextDelta("Hi"), TextCompleted("Hi")]
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "malformed_event"


# Whatever the code that reads a frame raises


class Fragile(FrameDecoder):
    """Whoever wrote this trusts the server: ``text`` is text, ``call`` the arguments of a call."""

    def __init__(self) -> None:
        super().__init__(SSEDecoder(), Blocks(), msgspec.json.Decoder(), provider="fragile", raw=False)

    def _read(self, kind: str, said: Any, frame: bytes, /) -> None:
        self._blocks.start()
        self._blocks.text(said.get("text"))
        if "call" in said:
            self._blocks.call(0, "c", "f", said["call"])
        if "fail" in said:
            raise RuntimeError(said["fail"])

    def _error_of(self, payload: Any) -> AdapterError:
        return AdapterError("unknown")


GOOD = sse({"text": "Hi"}, {"call": '{"a"'})
STARTED = MessageStarted(Message("assistant"))
SAID = [
    STARTED,
    *(TextDelta("Hi"), TextCompleted("Hi")),
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


@pytest.mark.parametrize("body", [b"a\nb\n\xff\n", [b"a\n", b"b\n", b"\xff\n"]], ids=["one read", "three reads"])
def test_a_foreign_decoder_that_raises_ends_the_stream_with_a_typed_error(body: Any) -> None:
    *events, last = answered(Foreign, Reply(body))
    assert events == [STARTED, TextDelta("a"), TextDelta("b"), TextCompleted("ab")]
    assert isinstance(last, ErrorEvent)
    assert last.error.reason == "malformed_event"
    assert isinstance(last.error.__cause__, UnicodeDecodeError)


def test_a_foreign_decoder_that_raises_at_the_end_does_so_too() -> None:
    events = answered(Foreign, Reply(b"a\n!\n"))
    assert events[-2:-1] == [ToolCallCompleted("c", "f", {}, "", {"error": "incomplete"})]
    assert isinstance(events[-1], ErrorEvent)


def test_an_error_reader_that_raises_leaves_the_status() -> None:
    with pytest.raises(AdapterError) as caught:
        answered(Foreign, Reply(b"oops", 429, {"Retry-After": "3"}))
    assert (caught.value.reason, caught.value.status, caught.value.retry_after) == ("rate_limited", 429, 3)
    assert isinstance(caught.value.__cause__, IndexError)


class FragileImages(OpenAIImages):
    def read(self, request: Any, answer: Any) -> Any:
        raise IndexError("no image")


def test_an_images_reader_that_raises_is_a_malformed_response() -> None:
    with Loopback(Reply.of_json({"data": []})) as server, pytest.raises(AdapterError) as caught:
        rxllm.generate_image(Engine(image_adapter=FragileImages(base_url=server.url)), "a cat", model="m").run()
    assert caught.value.reason == "malformed_response"


def test_an_image_at_what_is_not_a_url_is_a_typed_error() -> None:
    with Loopback(Reply.of_json({"data": [{"url": "http://[x"}]})) as server, pytest.raises(AdapterError) as caught:
        rxllm.generate_image(Engine(image_adapter=OpenAIImages(base_url=server.url)), "a cat", model="m").run()
    assert "not a URL" in caught.value.message


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


# What Python's json reads, and strict JSON does not


def test_nan_and_the_infinities_end_no_answer() -> None:
    frame = '{"choices": [{"delta": {"content": "Hi"}, "logprobs": {"content": [{"logprob": -Infinity, "x": NaN}]}}]}'
    events = decode(OpenAIChat, f"data: {frame}\n\n".encode() + chat_finish() + DONE)
    assert text_of(events) == "Hi"
    last = events[-1]
    assert isinstance(last, MessageCompleted)
    assert last.metadata["logprobs"][0]["logprob"] == float("-inf")
    assert from_json(to_json(last)) == last


def test_arguments_with_nan_are_read() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": Infinity}'}}
    events = decode(OpenAIChat, chat_event({"tool_calls": [call]}) + chat_finish("tool_calls") + DONE)
    (completed,) = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert completed.arguments == {"a": float("inf")}


HALVES = [
    (["a\ud83d", "\ude00b"], ["a", "\U0001f600b"], "a\U0001f600b"),
    (["\ud83d", "\ude00"], ["\U0001f600"], "\U0001f600"),
    (["a\ud83db"], ["a\ufffdb"], "a\ufffdb"),
    (["\ude00"], ["\ufffd"], "\ufffd"),
    (["a\ud83d"], ["a"], "a"),
    (['"\ud83d', '\ude00"'], ['"', '\U0001f600"'], '"\U0001f600"'),
    (["\\\ud83d", "\ude00\\"], ["\\", "\U0001f600\\"], "\\\U0001f600\\"),
]


@pytest.mark.parametrize(("texts", "deltas", "whole"), HALVES, ids=lambda value: ascii(value))
def test_halves_of_a_character_are_joined(texts: list[str], deltas: list[str], whole: str) -> None:
    events = decode(OpenAIChat, sse(*chat_frames(*({"content": text} for text in texts))) + chat_finish() + DONE)
    assert [event.delta for event in events if isinstance(event, TextDelta)] == deltas
    assert [event.text for event in events if isinstance(event, TextCompleted)] == [whole]
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
        assert from_json(to_json(event).encode()) == event
    assert state.to_response().output_text == whole


def test_halves_are_joined_on_every_wire() -> None:
    gemini = sse(*({"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("\ud83d", "\ude00")))
    ollama = ndjson(*({"message": {"content": text}} for text in ("\ud83d", "\ude00")))
    deltas = [{"type": "text_delta", "text": text} for text in ("\ud83d", "\ude00")]
    anthropic = sse(*({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas))
    responses = sse(*({"type": "response.output_text.delta", "delta": text} for text in ("\ud83d", "\ude00")))
    for adapter, body in [(Gemini, gemini), (Ollama, ollama), (Anthropic, anthropic), (OpenAIResponses, responses)]:
        assert text_of(decode(adapter, body)) == "\U0001f600"


def test_a_raw_chunk_of_such_a_frame_is_whole_too() -> None:
    decoder = OpenAIChat().decoder(Request(), raw=True)
    events = decoder.feed(sse({"choices": [], "x": "\ud83d!", "y": float("nan")}))
    (raw,) = [event for event in events if isinstance(event, RawChunk)]
    assert raw.data["x"] == "\ufffd!"
    assert from_json(to_json(raw).encode()) == raw


# Requests

UNENCODABLE = "caf\udce9"  # as os.listdir names a file that is not UTF-8


@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama])
def test_what_utf_8_cannot_say_is_sent_as_the_replacement_character(adapter: Any) -> None:
    thread = (
        rxllm.user(UNENCODABLE),
        Message("assistant", "", tool_calls=(rxllm.ToolCall("c", "ls", {"in": UNENCODABLE}),)),
        rxllm.tool_result("c", {"files": [UNENCODABLE]}),
    )
    body = adapter(api_key="k").build(Request(thread, model="m"), Call()).content.decode()
    assert body.count("caf\ufffd") == 3


@pytest.mark.parametrize("value", [10**5000, object(), {(1, 2): 3}], ids=["int", "object", "key"])
@pytest.mark.parametrize("adapter", [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama])
def test_what_json_cannot_say_at_all_is_an_invalid_request(adapter: Any, value: Any) -> None:
    request = Request((rxllm.user("Hi"),), model="m", options={"x": value})
    with pytest.raises(ValidationError) as caught:
        adapter(api_key="k").build(request, Call())
    assert caught.value.reason == "invalid_request"


def test_a_form_says_it_too() -> None:
    image = rxllm.Image.from_binary(b"x", "image/png")
    request = rxllm.ImageRequest("edit", prompt=UNENCODABLE, input_images=(image,), model="m")
    assert "caf\ufffd".encode() in OpenAIImages(api_key="k").build(request, Call()).read()


class Strict(OpenAIChat):
    def build(self, request: Request, call: Call) -> Any:
        return self.post("x", {"text": request.messages[-1].text.encode("ascii")}, call, headers={})


def test_a_foreign_adapter_that_cannot_build_its_request_is_a_typed_error() -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Strict(api_key="k"), UNENCODABLE, model="m").run()
    assert caught.value.reason == "invalid_request"
    assert isinstance(caught.value.__cause__, UnicodeEncodeError)


@pytest.mark.parametrize("result", [UNENCODABLE, [UNENCODABLE], {UNENCODABLE: 1}], ids=["text", "list", "object"])
def test_a_tool_may_return_what_utf_8_cannot_say(result: Any) -> None:
    first = calling("ls")
    with Loopback([first, Reply(chat("Hi"))]) as server:
        engine = Engine(
            OpenAIChat(base_url=server.url), model="m", tools=[tool(name="ls", handler=lambda given: result)]
        )
        answer = rxllm.chat(engine, "Hi").run()
        assert answer.halted_reason == "completed"
        assert "caf\ufffd" in server.requests[1].json["messages"][-1]["content"]
    assert from_json(to_json(answer).encode()) == answer


def test_a_tool_may_fail_with_what_utf_8_cannot_say() -> None:
    def fail(given: Any) -> None:
        raise FileNotFoundError(UNENCODABLE)

    first = calling("ls")
    with Loopback([first, Reply(chat("Hi"))]) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=[tool(name="ls", handler=fail)])
        assert rxllm.chat(engine, "Hi").run().halted_reason == "completed"


def test_arguments_that_do_not_parse_are_clipped_in_what_the_model_is_told() -> None:
    first = calling("ls", '{"a": "' + "x" * 100_000)
    with Loopback([first, Reply(chat("Hi"))]) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=[tool(name="ls", handler=lambda given: 1)])
        rxllm.chat(engine, "Hi").run()
        told = server.requests[1].json["messages"][-1]["content"]
    assert "not a JSON object" in told
    assert len(told) < 200
