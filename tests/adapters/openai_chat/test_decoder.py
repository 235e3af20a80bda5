"""Sixteen awkward streams that were seen in the wild, and what is said of each; and that no cut changes it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from rxllm.testing import cut
from rxllm.values import AdapterError, Message, StreamError, ToolCall
from tests.adapters.openai_chat.support import DONE, HI, STOP, call, calls, chunk, decode, said
from tests.wire.lawful import lawful

STARTED = MessageStarted(Message("assistant", metadata={"id": "r1", "model": "m"}))


SAID = [STARTED, TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")]
SECOND = [TextDelta("Hi", "block_1"), TextCompleted("Hi", "block_1")]  # in the second block
TWO_CALLS = (ToolCall("a", "f", {"x": 1}, '{"x":1}'), ToolCall("b", "f", {"x": 2}, '{"x":2}'))
TWO_CALLS_DELTAS = [
    STARTED,
    ToolCallStarted("a", "f"),
    ToolCallDelta("a", '{"x":1}'),
    ToolCallCompleted("a", "f", {"x": 1}, '{"x":1}'),
    ToolCallStarted("b", "f"),
    ToolCallDelta("b", '{"x":2}'),
    ToolCallCompleted("b", "f", {"x": 2}, '{"x":2}'),
]


def assert_says_hi(body: bytes) -> None:
    events, response = said(body)
    assert events == SAID
    assert response.finish_reason == "stop"


def test_01_comment_keep_alive():
    assert_says_hi(b": keep-alive\n\n" + HI + b": OPENROUTER PROCESSING\n\n" + STOP + DONE)


def test_02_an_id_then_a_ping_and_a_blank_line():
    assert_says_hi(b"id: 1\n" + HI + b"id: 2\n: ping\n\n" + STOP + DONE)


def test_03_empty_data_heartbeat():
    assert_says_hi(b"data:\n\n" + HI + b"data: \n\n" + STOP + DONE)


def test_04_line_separators_inside_json():
    text = "a\u2028b\u2029c\u0085d"
    events, response = said(chunk({"content": text}) + STOP + DONE)
    assert events == [STARTED, TextDelta(text, "block_0"), TextCompleted(text, "block_0")]
    assert response.output_text == text


def test_05_utf8_split_at_every_byte():
    body = chunk({"content": "é€😀"}) + STOP + DONE
    whole = decode(body)
    assert whole[1] == TextDelta("é€😀", "block_0")
    for i in range(len(body)):
        assert decode(body[:i], body[i:]) == whole


def test_06_crlf():
    assert_says_hi((HI + STOP + DONE).replace(b"\n", b"\r\n"))


def test_07_empty_choices_first():
    first = b'data: {"id":"","model":"","choices":[],"prompt_filter_results":[]}\n\n'
    events, response = said(first + HI + STOP + DONE)
    assert events == [MessageStarted(Message("assistant")), TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")]
    assert (response.id, response.model, response.finish_reason) == ("r1", "m", "stop")


def test_08_an_end_without_finish_reason_or_done():
    events, response = said(HI)
    assert events == SAID
    assert response.output_text == "Hi"
    assert isinstance(response.error, StreamError)
    assert response.error.reason == "truncated"


def test_09_an_error_in_the_stream():
    error = {"message": "overloaded", "type": "server_error", "code": 502}
    events, response = said(HI + b"data: %b\n\n" % msgspec.json.encode({"error": error}) + DONE)
    assert events == SAID
    expected = AdapterError(
        "provider_unavailable",
        "overloaded",
        provider="openai",
        status=502,
        code="502",
        metadata={"type": "server_error"},
    )
    assert response.error == expected
    assert response.finish_reason == "error"


def test_10_an_error_event():
    error = b'event: error\ndata: {"message": "slow down", "type": "rate_limit_error"}\n\n'
    events, response = said(HI + error)
    assert events == SAID
    assert isinstance(response.error, AdapterError)
    assert (response.error.reason, response.error.message) == ("rate_limited", "slow down")


def test_11_two_calls_with_one_index():
    body = calls(call(0, "a", "f", '{"x":1}')) + calls(call(0, "b", "f", '{"x":2}')) + STOP + DONE
    events, response = said(body)
    assert events == TWO_CALLS_DELTAS
    assert response.tool_calls == TWO_CALLS


def test_12_name_and_arguments_as_two_entries_of_one_chunk():
    entries = [
        call(0, "a", "f", None),
        call(0, None, None, '{"x":1}'),
        call(1, "b", "f", ""),
        call(1, None, "", '{"x":2}'),
    ]
    events, response = said(calls(*entries) + chunk({}, "tool_calls") + DONE)
    assert events == TWO_CALLS_DELTAS
    assert response.tool_calls == TWO_CALLS


def test_13_empty_ids_on_later_deltas():
    body = calls(call(0, "a", "f", '{"x"')) + calls(call(0, "", "", ":1}")) + chunk({}, "tool_calls") + DONE
    assert said(body)[1].tool_calls == TWO_CALLS[:1]


def test_14_stop_with_tool_calls():
    response = said(calls(call(0, "a", "f", '{"x":1}')) + STOP + DONE)[1]
    assert (response.finish_reason, response.raw_finish_reason) == ("tool_calls", "stop")


@pytest.mark.parametrize(("number", "field"), [("15", "reasoning_content"), ("16", "reasoning")])
def test_15_16_thinking(number: str, field: str):
    events, response = said(chunk({field: "hm", "content": ""}) + HI + STOP + DONE)
    assert events == [STARTED, ThinkingDelta("hm", "block_0"), ThinkingCompleted("hm", id="block_0"), *SECOND]
    assert response.output_text == "Hi"


BODY = (
    b"\xef\xbb\xbf: hello\r\n\r\n"
    + chunk({"role": "assistant", "content": ""})
    + chunk({"reasoning": "hé", "reasoning_details": [{"type": "reasoning.text", "text": "hé", "signature": "s"}]})
    + HI.replace(b"\n", b"\r")
    + b"data:\n\n"
    + calls(call(0, "a", "f", '{"x"'), call(1, None, "g", "{}"))
    + calls(call(0, None, None, ":1}"))
    + chunk({}, "tool_calls")
    + chunk(usage={"prompt_tokens": 1, "completion_tokens": 2})
    + b"data: [DONE]"
)


@given(st.lists(st.integers(0, len(BODY)), max_size=30), st.integers(0, len(BODY)))
def test_any_cut_of_any_prefix_gives_the_same_events(cuts: list[int], end: int):
    body = BODY[:end]
    whole = decode(body)
    lawful(whole)
    assert decode(*cut(body, *(place for place in cuts if place < len(body)))) == whole
    assert decode(*(bytes([each]) for each in body)) == whole


def test_after_the_end_nothing_is_said():
    decoder = ChatDecoder()
    assert isinstance(decoder.feed(HI + STOP + DONE)[-1], MessageCompleted)
    assert decoder.feed(HI) == decoder.close() == []


def test_nothing_at_all_is_a_truncated_stream():
    started, failed = decode()
    assert started == MessageStarted(Message("assistant"))
    assert isinstance(failed, ErrorEvent)
    assert failed.error.reason == "truncated"


def test_an_empty_delta_of_xai_is_a_token_of_hidden_thinking() -> None:
    begin, empty = chunk({"role": "assistant"}), chunk({})
    body = begin + empty * 3 + HI + empty + STOP + DONE
    hidden = [ThinkingDelta("", "block_0", 1)] * 3 + [ThinkingCompleted("", id="block_0")]
    shown = [STARTED, TextDelta("Hi", "block_1"), TextCompleted("Hi", "block_1")]
    events, response = said(body, ChatDecoder(provider="xai"))
    assert events == [STARTED, *hidden, *shown[1:]]
    assert [part.text for part in response.message.parts] == ["Hi"]
    others, _ = said(body)
    assert [type(event) for event in others] == [type(event) for event in shown]
