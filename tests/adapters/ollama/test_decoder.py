"""Awkward answers of Ollama that were seen in the wild, and what is said of each; and that no cut changes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
)
from rxllm.testing import cut
from rxllm.values import AdapterError, Message, StreamError, ToolCall, Usage
from tests.adapters.ollama.support import HI, STOP, call, decode, line, said
from tests.wire.lawful import lawful

STARTED = MessageStarted(Message("assistant", metadata={"model": "m"}))
OWN = {"provider": "ollama"}


SAID = [STARTED, TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")]
SECOND = [TextDelta("Hi", "block_1"), TextCompleted("Hi", "block_1")]  # in the second block


def assert_says_hi(body: bytes) -> None:
    events, response = said(body)
    assert events == SAID
    assert (response.finish_reason, response.model) == ("stop", "m")


def test_01_blank_lines_and_crlf():
    assert_says_hi(b"\n" + line("Hi", end=b"\r\n\r\n") + b" \n" + STOP)


def test_02_a_last_line_without_its_end():
    assert_says_hi(HI + line("", done=True, done_reason="stop", end=b""))


def test_03_line_separators_inside_json():
    text = "a\u2028b\u2029c\u0085d"
    assert said(line(text) + STOP)[0] == [STARTED, TextDelta(text, "block_0"), TextCompleted(text, "block_0")]


def test_04_characters_cut_by_every_read():
    assert said(line("é€😀") + STOP)[1].output_text == "é€😀"


def test_05_calls_have_no_ids():
    calls = [call("f", {"x": 1}), call("f", {"x": 1})]
    response = said(line("", tool_calls=calls) + STOP)[1]
    raw = '{"x":1}'
    assert response.tool_calls == (ToolCall("call_0", "f", {"x": 1}, raw), ToolCall("call_1", "f", {"x": 1}, raw))
    assert (response.finish_reason, response.raw_finish_reason) == ("tool_calls", "stop")


def test_06_every_call_has_the_index_0():
    entries = [{"function": {"index": 0, "name": name, "arguments": {}}} for name in "fg"]
    body = b"".join(line("", tool_calls=[each]) for each in entries) + STOP
    assert [each.name for each in said(body)[1].tool_calls] == ["f", "g"]


def test_07_ids_of_newer_servers():
    body = line("", tool_calls=[call("f", {}, id="a"), call("f", {}, id="a")]) + STOP
    assert [each.id for each in said(body)[1].tool_calls] == ["a", "call_1"]


@pytest.mark.parametrize("arguments", [None, {}, "{}", ""])
def test_08_a_call_without_arguments(arguments: Any):
    (made,) = said(line("", tool_calls=[call("f", arguments)]) + STOP)[1].tool_calls
    assert (made.arguments, made.metadata) == ({}, {})


def test_09_arguments_as_text():
    (made,) = said(line("", tool_calls=[call("f", '{"x": 1}')]) + STOP)[1].tool_calls
    assert (made.arguments, made.raw_arguments) == ({"x": 1}, '{"x": 1}')


def test_10_thinking_then_text_in_one_line():
    events = said(line("", thinking="h") + line("Hi", thinking="m") + STOP)[0]
    thought = [
        ThinkingDelta("h", "block_0"),
        ThinkingDelta("m", "block_0"),
        ThinkingCompleted("hm", None, OWN, id="block_0"),
    ]
    assert events == [STARTED, *thought, *SECOND]


def test_11_an_error_in_the_stream():
    events, response = said(HI + b'{"error":"an error was encountered while running the model: unexpected EOF"}\n')
    assert events == SAID
    assert isinstance(response.error, AdapterError)
    assert (response.error.reason, response.error.provider) == ("provider_unavailable", "ollama")
    assert "unexpected EOF" in response.error.message


def test_12_an_error_whose_words_say_more():
    error = said(HI + b'{"error":"the input length exceeds the context length"}\n')[1].error
    assert isinstance(error, AdapterError)
    assert error.reason == "context_length_exceeded"


def test_13_a_stream_that_is_cut_off():
    for body in (HI, HI + STOP[:-20]):
        events, response = said(body)
        assert events == SAID
        assert (response.output_text, response.error) == ("Hi", truncated())


def truncated() -> StreamError:
    return StreamError("truncated", "the stream ended without a finish reason or an end marker")


def test_14_older_servers_give_no_reason():
    response = said(HI + line("", done=True))[1]
    assert (response.finish_reason, response.raw_finish_reason) == ("stop", None)


@pytest.mark.parametrize("raw", ["load", "unload", "novel"])
def test_15_reasons_that_are_no_end_of_an_answer(raw: str):
    response = said(line("", done=True, done_reason=raw))[1]
    assert (response.finish_reason, response.raw_finish_reason) == ("other", raw)


def test_16_a_prompt_that_was_cached_is_not_counted():
    response = said(HI + line("", done=True, done_reason="length", eval_count=3, eval_duration=5))[1]
    assert response.usage == Usage(output_tokens=3, extra={"eval_duration": 5})
    assert response.finish_reason == "length"


def test_17_content_on_the_last_line_counts():
    assert said(HI + line("!", done=True, done_reason="stop"))[1].output_text == "Hi!"


def test_18_a_whole_answer_on_one_line():
    response = said(line("Hi", done=True, done_reason="stop", prompt_eval_count=1, eval_count=2, end=b""))[1]
    assert (response.output_text, response.usage) == ("Hi", Usage(1, 2))


def test_19_lines_of_api_generate():
    lines = [
        {"model": "m", "response": "", "thinking": "hm", "done": False},
        {"model": "m", "response": "Hi", "done": False},
        {"model": "m", "response": "", "done": True, "done_reason": "stop", "context": [1, 2]},
    ]
    events, response = said(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    assert events == [
        STARTED,
        ThinkingDelta("hm", "block_0"),
        ThinkingCompleted("hm", None, OWN, id="block_0"),
        *SECOND,
    ]
    assert response.finish_reason == "stop"


@pytest.mark.parametrize("body", [b"<html>\n", b"{nonsense\n", b'{"message": "\xff"}\n'])
def test_20_a_line_that_is_not_json(body: bytes):
    response = said(HI + body)[1]
    assert isinstance(response.error, StreamError)
    assert (response.error.reason, response.output_text) == ("malformed_event", "Hi")


def test_21_a_line_of_nothing_known_is_shown():
    events = said(b'{"status":"pulling manifest"}\n[1]\n{"message": 5}\n' + HI + STOP)[0]
    raw = [event.data for event in events if isinstance(event, RawChunk)]
    assert raw == [{"status": "pulling manifest"}, [1], {"message": 5}]


def test_22_numbers_as_strings_are_forgiven():
    response = said(HI + b'{"done": "true", "done_reason": "stop", "eval_count": "3", "message": null}\n')[1]
    assert (response.usage, response.finish_reason) == (Usage(output_tokens=3), "stop")


def test_23_after_the_end_nothing_is_said():
    decoder = OllamaDecoder()
    assert isinstance(decoder.feed(HI + STOP)[-1], MessageCompleted)
    assert decoder.feed(HI) == decoder.close() == []


def test_24_nothing_at_all():
    assert said(b"")[1].error == truncated()


def test_25_a_line_without_end():
    decoder = OllamaDecoder()
    events = [event for _ in range(17) for event in decoder.feed(b"x" * 2**20)]
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].error.reason == "oversized_frame"
    assert decoder.feed(b"x") == decoder.close() == []


def test_raw_lines_come_before_their_events():
    decoder = OllamaDecoder(raw=True)
    events = decoder.feed(HI + STOP)
    assert [type(event) for event in events[:3]] == [MessageStarted, RawChunk, TextDelta]
    assert events[1].data["message"]["content"] == "Hi"


def test_ids_go_on_from_the_thread():
    asked = [Message("assistant", tool_calls=(ToolCall("call_0", "f"),))]
    decoder = OllamaDecoder(messages=asked)
    events = decoder.feed(line("", tool_calls=[call("f", {})]) + STOP)
    assert events[-1].message.tool_calls[0].id == "call_1"


BODY = line("", thinking="hé") + HI + line("", tool_calls=[call("f", {"a": "}\n"})], end=b"\r\n") + b"\n" + STOP


@given(st.lists(st.integers(0, len(BODY)), max_size=30), st.integers(0, len(BODY)))
def test_any_cut_of_any_prefix_gives_the_same_events(cuts: list[int], end: int):
    body = BODY[:end]
    whole = decode(body)
    lawful(whole)
    assert decode(*cut(body, *(place for place in cuts if place < len(body)))) == whole
    assert decode(*(bytes([each]) for each in body)) == whole
