"""Text and numbers that strict JSON or UTF-8 cannot say, in what is read and in what is sent."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import rxllm
from rxllm import (
    Engine,
    Message,
    OpenAIChat,
    Request,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ValidationError,
    tool,
)
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIResponses
from rxllm.collector import StreamCollector
from rxllm.events import MessageCompleted, RawChunk
from rxllm.images import OpenAIImages
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import DONE, Loopback, Reply, chat, chat_event, chat_finish
from rxllm.values import Call
from tests.adapters.odd import calling, chat_frames, decode, text_of
from tests.adapters.streams import ndjson, sse

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
    image = rxllm.values.Image.from_binary(b"x", "image/png")
    request = rxllm.values.ImageRequest("edit", prompt=UNENCODABLE, input_images=(image,), model="m")
    assert "caf\ufffd".encode() in OpenAIImages(api_key="k").build(request, Call()).read()


class Strict(OpenAIChat):
    def build(self, request: Request, call: Call) -> Any:
        return self.post("x", {"text": request.messages[-1].text.encode("ascii")}, call, headers={})


def test_a_foreign_adapter_that_cannot_build_its_request_is_a_typed_error() -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Strict(api_key="k"), UNENCODABLE, model="m").run()
    assert caught.value.reason == "invalid_request"
    assert isinstance(caught.value.__cause__, UnicodeEncodeError)


@pytest.mark.sockets
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


@pytest.mark.sockets
def test_a_tool_may_fail_with_what_utf_8_cannot_say(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rxllm")  # pytest cannot pass on what it would capture

    def fail(given: Any) -> None:
        raise FileNotFoundError(UNENCODABLE)

    first = calling("ls")
    with Loopback([first, Reply(chat("Hi"))]) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=[tool(name="ls", handler=fail)])
        assert rxllm.chat(engine, "Hi").run().halted_reason == "completed"


@pytest.mark.sockets
def test_arguments_that_do_not_parse_are_clipped_in_what_the_model_is_told() -> None:
    first = calling("ls", '{"a": "' + "x" * 100_000)
    with Loopback([first, Reply(chat("Hi"))]) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=[tool(name="ls", handler=lambda given: 1)])
        rxllm.chat(engine, "Hi").run()
        told = server.requests[1].json["messages"][-1]["content"]
    assert "not a JSON object" in told
    assert len(told) < 200


def test_options_that_the_decoder_cannot_read_are_an_invalid_request() -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(OpenAIResponses(api_key="k"), "Hi", model="m", options={"tools": 7}).run()
    assert caught.value.reason == "invalid_request"
