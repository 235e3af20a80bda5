"""Awkward streams that were seen in the wild, and what is said of each; and that no cut changes it.

Where a docstring says "the SDK", it is what anthropic 2.12 does with the same bytes.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.collector import StreamCollector
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    PartAdded,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing import cut
from rxllm.values import (
    AdapterError,
    Message,
    ProviderPart,
    StreamError,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    Usage,
)
from tests.adapters.anthropic.support import (
    CALL_A,
    END,
    HI,
    MESSAGE,
    PING,
    START,
    TEXT,
    begin,
    delta,
    finish,
    frame,
    json_of,
    stop,
    tool_use,
)
from tests.wire.lawful import lawful

STARTED = MessageStarted(Message("assistant", metadata={"id": "r1", "model": "m"}))


SAID = [STARTED, TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")]
SECOND = [TextDelta("Hi", "block_1"), TextCompleted("Hi", "block_1")]  # in the second block
CALL = ToolCall("a", "f", {"x": 1}, '{"x": 1}')


def decode(*reads: bytes):
    decoder = MessagesDecoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.close()


def said(body: bytes):
    """The events but for the last, and the response that they fold to."""
    events = decode(body)
    lawful(events)
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return events[:-1], state.to_response()


def assert_says_hi(body: bytes) -> None:
    events, response = said(body)
    assert events == SAID
    assert response.finish_reason == "stop"


def test_01_pings_anywhere():
    body = PING + START + PING + begin(0, **TEXT) + PING + delta(0, "text_delta", text="Hi") + b": ping\n\n" + stop(0)
    assert_says_hi(body + PING + finish() + PING + END)


def test_02_an_empty_heartbeat():
    assert_says_hi(START + b"event: ping\ndata:\n\n" + HI + b"data: \n\n" + finish() + END)


def test_03_no_names_of_events():
    """The SDK reads nothing of such a stream, and says nothing of it."""
    body = START + HI + finish() + END
    assert_says_hi(b"".join(line + b"\n\n" for line in body.split(b"\n") if line.startswith(b"data")))


def test_04_crlf_and_line_separators_inside_json():
    text = "a\u2028b\u2029c\u0085d"
    body = START + begin(0, **TEXT) + delta(0, "text_delta", text=text) + stop(0) + finish() + END
    assert said(body.replace(b"\n", b"\r\n"))[1].output_text == text


def test_05_utf8_split_at_every_byte():
    body = START + begin(0, **TEXT) + delta(0, "text_delta", text="é€😀") + stop(0) + finish() + END
    whole = decode(body)
    assert whole[1] == TextDelta("é€😀", "block_0")
    for i in range(len(body)):
        assert decode(body[:i], body[i:]) == whole


def test_06_an_end_without_message_stop():
    assert_says_hi(START + HI + finish())


def test_07_an_end_without_a_stop_reason():
    """The SDK takes it for a success."""
    events, response = said(START + begin(0, **TEXT) + delta(0, "text_delta", text="Hi"))
    assert events == SAID
    assert response.error == StreamError("truncated", "the stream ended without a finish reason or an end marker")


def test_08_an_error_in_the_stream():
    error = {"type": "overloaded_error", "message": "Overloaded"}
    events, response = said(START + HI + frame("error", error=error, request_id="req_1"))
    assert events == SAID
    assert response.error == AdapterError(
        "provider_unavailable", "Overloaded", provider="anthropic", code="overloaded_error", request_id="req_1"
    )


def test_09_an_error_is_all_there_is():
    started, failed = decode(frame("error", error={"type": "rate_limit_error", "message": "slow down"}))
    assert started == MessageStarted(Message("assistant"))
    assert isinstance(failed, ErrorEvent)
    assert failed.error.reason == "rate_limited"


def test_10_an_error_that_is_no_json():
    response = said(START + HI + b"event: error\ndata: upstream went away\n\n")[1]
    assert isinstance(response.error, AdapterError)
    assert response.error.message == "upstream went away"


@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"message": "no", "code": "x"}\n\n',
        b'data: {"type": "error", "message": "no", "code": "x"}\n\n',
        b'data: {"error": {"message": "no", "type": "x"}}\n\n',
        b'event: error\ndata: {"error": {"message": "no", "type": "x"}, "index": [], "type": 5}\n\n',
    ],
)
def test_10_errors_in_the_shapes_of_others(error: bytes):
    response = said(START + HI + error)[1]
    assert isinstance(response.error, AdapterError)
    assert (response.error.message, response.error.code) == ("no", "x")


def test_11_an_error_in_the_middle_of_a_call():
    events, _ = said(START + tool_use(0) + json_of(0, '{"x"') + frame("error", error={"type": "api_error"}))
    assert events[-1] == ToolCallCompleted("a", "f", {}, '{"x"', {"error": "incomplete"})


def test_12_openais_end_marker_too():
    """The SDK fails: it wants JSON of it."""
    assert_says_hi(START + HI + finish() + END + b"event: data\ndata: [DONE]\n\n")
    assert_says_hi(START + HI + finish() + b"data: [DONE]\n\n" + END)


def test_13_a_tool_without_arguments():
    response = said(START + tool_use(0) + json_of(0, "") + stop(0) + finish("tool_use") + END)[1]
    assert response.tool_calls == (ToolCall("a", "f", {}, ""),)


def test_14_arguments_that_come_with_the_block():
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    body = START + begin(0, **block) + stop(0) + finish("tool_use") + END
    assert said(body)[1].tool_calls == (ToolCall("a", "f", {"x": 1}, '{"x":1}'),)
    body = START + begin(0, **block) + json_of(0, '{"x": 2}') + stop(0) + finish("tool_use") + END
    assert said(body)[1].tool_calls[0].arguments == {"x": 2}, "deltas win"


def test_15_calls_that_are_interleaved():
    body = START + tool_use(0) + tool_use(1, "b") + json_of(0, '{"x":') + json_of(1, "{}") + json_of(0, " 1}")
    events, response = said(body + stop(1) + stop(0) + finish("tool_use") + END)
    assert response.tool_calls == (CALL, ToolCall("b", "f", {}, "{}"))
    assert events[1:3] == [ToolCallStarted("a", "f"), ToolCallStarted("b", "f")]


def test_16_one_index_for_all_blocks():
    """The SDK loses the arguments of both calls."""
    body = START + HI + CALL_A + tool_use(0, "b") + json_of(0, "{}") + stop(0) + finish("tool_use") + END
    response = said(body)[1]
    assert (response.output_text, response.tool_calls) == ("Hi", (CALL, ToolCall("b", "f", {}, "{}")))


def test_17_blocks_that_nobody_stops():
    body = START + begin(0, **TEXT) + delta(0, "text_delta", text="Hi") + tool_use(1) + json_of(1, '{"x": 1}')
    events, response = said(body + finish("tool_use") + END)
    assert events[:3] == SAID
    assert response.tool_calls == (CALL,)


def test_18_deltas_of_blocks_that_nobody_opened():
    """The SDK fails: there is no such block."""
    body = START + delta(0, "text_delta", text="Hi") + finish() + END
    assert_says_hi(body)
    error = said(START + json_of(3, "{}") + HI + finish() + END)[1].error
    assert "arguments belong to no call: {}" in str(error)


@pytest.mark.parametrize("index", [0, 2, 4, None])
@pytest.mark.parametrize("before", ["text", "thinking"])
def test_18_arguments_with_another_index_are_those_of_the_open_call(index: int | None, before: str):
    block = begin(0, type=before, **{before: "x"}) + frame("content_block_stop", index=0)
    call = begin(1, type="tool_use", id="a", name="f") + json_of(index, '{"x":') + json_of(index, "1}")
    (made,) = said(START + block + call + frame("content_block_stop", index=1) + finish() + END)[1].tool_calls
    assert (made.name, made.arguments) == ("f", {"x": 1})


def test_18_a_call_whose_name_is_no_text_is_an_error():
    error = said(START + begin(0, type="tool_use", id="a", name=7) + finish() + END)[1].error
    assert "name is not text" in str(error)


def test_19_arguments_that_are_cut_by_max_tokens():
    """The SDK completes them by itself: nothing says that something is missing."""
    response = said(START + tool_use(0) + json_of(0, '{"path": "a.py", "text": "one') + finish("max_tokens") + END)[1]
    (call,) = (response.message or Message("assistant")).tool_calls
    assert (call.arguments, call.metadata) == ({}, {"error": "invalid_json"})
    assert response.finish_reason == "length"


def test_20_arguments_that_are_no_json():
    """The SDK fails."""
    response = said(START + tool_use(0) + json_of(0, '{"x": }') + stop(0) + finish("tool_use") + END)[1]
    assert response.tool_calls == (ToolCall("a", "f", {}, '{"x": }', {"error": "invalid_json"}),)


def test_21_thinking_and_its_signature():
    body = START + begin(0, type="thinking", thinking="", signature="") + delta(0, "thinking_delta", thinking="hm")
    body += delta(0, "signature_delta", signature="s") + stop(0) + HI.replace(b'"index":0', b'"index":1')
    events, _ = said(body + finish() + END)
    origin = {"provider": "anthropic", "type": "thinking"}
    assert events == [
        STARTED,
        ThinkingDelta("hm", "block_0"),
        ThinkingCompleted("hm", "s", origin, id="block_0"),
        *SECOND,
    ]


def test_22_thinking_that_is_not_shown():
    body = START + begin(0, type="thinking", thinking="", signature="") + delta(0, "signature_delta", signature="s")
    message = said(body + stop(0) + HI + finish() + END)[1].message
    assert message is not None
    assert message.content == (ThinkingPart("", "s", {"provider": "anthropic", "type": "thinking"}), TextPart("Hi"))


def test_23_redacted_thinking_twice():
    body = begin(0, type="redacted_thinking", data="x") + stop(0) + begin(1, type="redacted_thinking", data="y")
    message = said(START + body + stop(1) + finish() + END)[1].message
    assert message is not None
    data = [part.provider_data for part in message.parts if isinstance(part, ThinkingPart)]
    assert data == [{"provider": "anthropic", "type": "redacted_thinking", "data": data} for data in "xy"]


def test_24_citations_before_and_after_their_text():
    one, two = ({"type": "char_location", "cited_text": text} for text in "ab")
    body = START + begin(0, **TEXT, citations=None) + delta(0, "citations_delta", citation=one)
    body += delta(0, "text_delta", text="Hi") + delta(0, "citations_delta", citation=two) + stop(0)
    events, response = said(body + HI.replace(b'"index":0', b'"index":1') + finish() + END)
    assert events == [*SAID, SourceAdded(one), SourceAdded(two), *SECOND]
    assert response.output_text == "HiHi"


def test_25_a_tool_that_the_server_runs():
    page = {"type": "web_search_result", "url": "u", "title": "t", "page_age": None, "encrypted_content": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]}
    body = START + begin(0, type="server_tool_use", id="s", name="web_search", input={}) + json_of(0, '{"query": "q"}')
    events, response = said(body + stop(0) + begin(1, **result) + stop(1) + HI + finish() + END)
    metadata = {"server": True, "anthropic": {"type": "server_tool_use"}}
    assert events == [
        STARTED,
        ToolCallStarted("s", "web_search", metadata),
        ToolCallDelta("s", '{"query": "q"}'),
        ToolCallCompleted("s", "web_search", {"query": "q"}, '{"query": "q"}', metadata),
        PartAdded(ProviderPart("anthropic", result)),
        SourceAdded({"type": "web_search_result", "url": "u", "title": "t"}),
        *SAID[1:],
    ]
    assert (response.tool_calls, response.finish_reason) == ((), "stop")
    assert response.message is not None
    assert response.message.parts[:2] == (ToolCallPart("s"), ProviderPart("anthropic", result))


def test_26_blocks_deltas_and_events_that_are_still_to_be_invented():
    """The SDK drops the new delta."""
    block = begin(0, type="new", a=1) + delta(0, "new_delta", b=2) + stop(0)
    events, _ = said(START + block + frame("new_event", c=3) + HI + finish() + END)
    part = ProviderPart("anthropic", {"type": "new", "a": 1, "b": 2})
    assert events == [STARTED, PartAdded(part), RawChunk("new_event", {"type": "new_event", "c": 3}), *SAID[1:]]


def test_27_a_refusal_after_some_text():
    response = said(START + HI + finish("refusal", stop_details={"type": "refusal"}) + END)[1]
    assert (response.output_text, response.finish_reason, response.raw_finish_reason) == (
        "Hi",
        "content_filter",
        "refusal",
    )
    assert response.metadata == {"stop_details": {"type": "refusal"}}


def test_28_a_turn_that_pauses():
    response = said(START + HI + finish("pause_turn", container={"id": "c1"}) + END)[1]
    assert (response.finish_reason, response.raw_finish_reason) == ("other", "pause_turn")
    assert response.message is not None
    assert response.message.metadata == {"id": "r1", "model": "m", "anthropic_container": "c1"}


def test_29_usage_is_cumulative_and_null_says_nothing():
    """Summed, as some do, it would be 25 tokens of output."""
    first = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 5}
    last = {"input_tokens": None, "output_tokens": 20, "server_tool_use": {"web_search_requests": 1}}
    last |= {"output_tokens_details": {"thinking_tokens": 7}, "cache_creation": {"ephemeral_1h_input_tokens": 2}}
    events, response = said(frame("message_start", message={**MESSAGE, "usage": first}) + HI + finish(usage=last) + END)
    assert response.usage == Usage(
        input_tokens=17,
        output_tokens=20,
        cached_input_tokens=5,
        cache_write_input_tokens=2,
        reasoning_tokens=7,
        total_tokens=37,
        tool_usage={"web_search_requests": 1},
        extra={"cache_creation.ephemeral_1h_input_tokens": 2},
    )
    assert [event.usage.output_tokens for event in events if isinstance(event, UsageUpdated)] == [5, 20]


def test_30_a_message_delta_without_usage():
    """The SDK fails."""
    body = START + HI + frame("message_delta", delta={"stop_reason": "end_turn"}) + END
    assert_says_hi(body)


def test_31_a_server_that_does_not_stream():
    """The SDK reads nothing of it."""
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    message = {**MESSAGE, "type": "message", "content": [{**TEXT, "text": "Hi"}, call], "stop_reason": "tool_use"}
    events, response = said(msgspec.json.encode({**message, "usage": {"input_tokens": 1, "output_tokens": 2}}))
    assert events[:3] == SAID
    assert (response.tool_calls[0].arguments, response.usage.total) == ({"x": 1}, 3)


def test_32_another_message_after_the_end():
    """The SDK adds it to the first."""
    assert_says_hi(START + HI + finish() + END + START + HI + finish() + END)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("compaction", "other"),
        ("something_new", "other"),
    ],
)
def test_stop_reasons(raw: str, expected: str):
    response = said(START + HI + finish(raw) + END)[1]
    assert (response.finish_reason, response.raw_finish_reason) == (expected, raw)


def test_types_that_nobody_agreed_on():
    forgiven = frame("content_block_delta", index="0", delta={"type": "text_delta", "text": "!"})
    blocks = begin(1, type="text", text=None, citations=3) + begin(2, type=None) + begin(3, type="thinking", thinking=1)
    response = said(START + HI + forgiven + blocks + finish(usage={"output_tokens": "5"}) + END)[1]
    assert (response.output_text, response.error) == ("Hi!", None)
    odd = frame("content_block_delta", index=0, delta={"type": "text_delta", "text": 5})
    error = said(START + HI + odd + forgiven + END)[1].error
    assert isinstance(error, StreamError)
    assert (error.reason, error.message) == ("malformed_event", "delta.text is not a string: 5")


BODY = (
    b"\xef\xbb\xbf: hello\r\n\r\n"
    + PING
    + frame("message_start", message={**MESSAGE, "usage": {"input_tokens": 1, "output_tokens": 1}})
    + begin(0, type="thinking", thinking="", signature="")
    + delta(0, "thinking_delta", thinking="hé")
    + delta(0, "signature_delta", signature="s")
    + stop(0)
    + HI.replace(b"\n", b"\r")
    + b"data:\n\n"
    + tool_use(1)
    + json_of(1, '{"x"')
    + json_of(1, ":1}")
    + stop(1)
    + begin(2, type="code_execution_tool_result", content={"stdout": "x"})
    + stop(2)
    + delta(7, "text_delta", text="é")
    + finish("tool_use", {"output_tokens": 9})
    + b'event: message_stop\ndata: {"type": "message_stop"}'
)


@given(st.lists(st.integers(0, len(BODY)), max_size=30), st.integers(0, len(BODY)))
def test_any_cut_of_any_prefix_gives_the_same_events(cuts: list[int], end: int):
    body = BODY[:end]
    whole = decode(body)
    lawful(whole)
    assert decode(*cut(body, *(place for place in cuts if place < len(body)))) == whole
    assert decode(*(bytes([each]) for each in body)) == whole


def test_after_the_end_nothing_is_said():
    decoder = MessagesDecoder()
    assert isinstance(decoder.feed(START + HI + finish() + END)[-1], MessageCompleted)
    assert decoder.feed(HI) == decoder.close() == []


def test_nothing_at_all_is_a_truncated_stream():
    started, failed = decode()
    assert started == MessageStarted(Message("assistant"))
    assert isinstance(failed, ErrorEvent)
    assert failed.error.reason == "truncated"
