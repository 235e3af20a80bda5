"""Awkward Responses streams that were seen in the wild, and what is said of each; and that no cut changes it.

A comment tells where the official SDK's helper fails, openai 3.54.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.events import (
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    TextCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from rxllm.testing import cut
from rxllm.values import AdapterError, Message, Response, StreamError, ThinkingPart, ToolCall
from tests.adapters.openai_responses.support import (
    COMPLETED,
    CREATED,
    HI,
    HI_DONE,
    WHOLE,
    added,
    begun,
    decode,
    delta,
    done,
    frame,
    function,
    message,
    response,
    said,
)
from tests.wire.lawful import lawful

STARTED = MessageStarted(Message("assistant", metadata={"id": "r1", "model": "m"}))
SAID = [STARTED, TextDelta("Hi", "m1"), TextCompleted("Hi", "m1")]


CALLS = (ToolCall("a", "f", {"x": 1}, '{"x":1}'), ToolCall("b", "f", {"x": 2}, '{"x":2}'))


def assert_says_hi(body: bytes) -> Response[Any]:
    events, folded = said(body)
    assert events == SAID
    assert folded.finish_reason == "stop"
    return folded


def test_00_as_it_should_be():
    assert assert_says_hi(WHOLE).raw_finish_reason == "completed"


def test_01_keep_alives_of_all_kinds():
    # the SDK raises: empty data is no JSON
    alive = b": ping\n\ndata:\n\n" + frame("keepalive") + b"id: 1\n: ping\n\n"
    assert_says_hi(CREATED + alive + HI + alive + HI_DONE + COMPLETED)


def test_02_no_event_lines():
    assert_says_hi(b"".join(line for line in WHOLE.splitlines(keepends=True) if not line.startswith(b"event")))


def test_03_crlf_and_a_missing_last_blank_line():
    # the SDK never sees the last frame, and ends in silence
    assert_says_hi(WHOLE.replace(b"\n", b"\r\n").rstrip())


def test_04_line_separators_inside_json():
    text = "a\u2028b\u2029c\u0085d"
    body = CREATED + begun(0, "m1") + delta("output_text", 0, "m1", text) + done(0, message("m1", text)) + COMPLETED
    assert said(body)[1].output_text == text


def test_05_utf8_split_at_every_byte():
    body = CREATED + begun(0, "m1") + delta("output_text", 0, "m1", "é€😀") + COMPLETED
    whole = decode(body)
    assert whole[1] == TextDelta("é€😀", "m1")
    for i in range(len(body)):
        assert decode(body[:i], body[i:]) == whole


def test_06_an_end_without_an_end():
    # the SDK ends in silence
    events, folded = said(CREATED + HI)
    assert (events, folded.output_text) == (SAID, "Hi")
    assert isinstance(folded.error, StreamError)
    assert folded.error.reason == "truncated"


def test_07_an_end_inside_a_call():
    events, folded = said(CREATED + added(0, function("i", "a", "")) + delta("function_call_arguments", 0, "i", '{"x'))
    assert events[-1] == ToolCallCompleted("a", "f", {}, '{"x', {"error": "incomplete"})
    assert folded.tool_calls == ()


@pytest.mark.parametrize(
    "error",
    [
        {"code": "server_error", "message": "oh", "param": None},
        {"error": {"type": "server_error", "code": "server_error", "message": "oh"}},
    ],
)
def test_08_an_error_event_flat_or_nested(error: Any):
    events, folded = said(CREATED + HI + frame("error", sequence_number=9, **error) + response("failed"))
    assert events == SAID
    assert isinstance(folded.error, AdapterError)
    assert (folded.error.reason, folded.error.code, folded.error.message) == (
        "provider_unavailable",
        "server_error",
        "oh",
    )


def test_09_a_response_that_failed_has_its_usage():
    # ALLM's adapter ignores the event, ReqLLM did until 1.21
    error = {"code": "rate_limit_exceeded", "message": "slow down"}
    folded = said(CREATED + HI + response("failed", error=error, usage={"input_tokens": 3}))[1]
    assert folded.error == AdapterError("rate_limited", "slow down", provider="openai", code="rate_limit_exceeded")
    assert (folded.finish_reason, folded.usage.input_tokens) == ("error", 3)


def test_10_cancelled():
    for body in (response("cancelled"), response("completed", status="cancelled")):
        error = said(CREATED + HI + body)[1].error
        assert isinstance(error, StreamError)
        assert error.reason == "cancelled"


def test_11_ids_that_change_from_frame_to_frame():
    # the SDK raises: Completed output item identity changed
    body = CREATED.replace(b"r1", b"r0") + begun(0, "m1")
    body += delta("output_text", 0, "m2", "H") + delta("output_text", 0, "m3", "i") + done(0, message("m4", "Hi"))
    events, folded = said(body + COMPLETED)
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["H", "i"]
    assert (folded.output_text, folded.id) == ("Hi", "r0")


def test_12_index_0_of_everything():
    # the SDK raises: Duplicate response output index
    body = CREATED + added(0, function("i", "a", "")) + added(0, function("j", "b", ""))
    body += delta("function_call_arguments", 0, "i", '{"x"') + delta("function_call_arguments", 0, "j", '{"x":2}')
    body += delta("function_call_arguments", 0, "i", ":1}")
    body += done(0, function("i", "a", '{"x":1}')) + done(0, function("j", "b", '{"x":2}'))
    output = [function("i", "a", '{"x":1}'), function("j", "b", '{"x":2}')]
    assert said(body + response("completed", output=output))[1].tool_calls == CALLS


def test_13_no_deltas_at_all():
    body = CREATED + added(0, message("m1")) + done(0, message("m1", "Hi"))
    body += added(1, function("i", "a", '{"x":1}')) + done(1, function("i", "a", '{"x":1}')) + COMPLETED
    events, folded = said(body)
    assert events[:3] == SAID
    assert (folded.tool_calls, folded.finish_reason) == (CALLS[:1], "tool_calls")


def test_14_items_that_only_the_end_has():
    output = [message("m1", "Hi"), function("i", "a", '{"x":1}')]
    folded = said(CREATED + response("completed", output=output))[1]
    assert (folded.output_text, folded.tool_calls) == ("Hi", CALLS[:1])


def test_15_an_end_that_lacks_the_items():
    # the SDK's final response is empty: ChatGPT's own server stores nothing, and says so
    assert assert_says_hi(WHOLE).output_text == "Hi"


def test_16_two_calls_whose_deltas_are_mixed():
    body = CREATED + added(0, function("i", "a", "")) + added(1, function("j", "b", ""))
    for index, id, piece in [(0, "i", '{"x"'), (1, "j", '{"x"'), (0, "i", ":1}"), (1, "j", ":2}")]:
        body += delta("function_call_arguments", index, id, piece)
    body += done(1, function("j", "b", '{"x":2}')) + done(0, function("i", "a", '{"x":1}')) + COMPLETED
    events, folded = said(body)
    assert folded.tool_calls == CALLS
    assert events[1:3] == [ToolCallStarted("a", "f"), ToolCallStarted("b", "f")]
    assert events[3] == ToolCallDelta("a", '{"x"')


def test_17_two_texts_whose_deltas_are_mixed():
    body = CREATED + begun(0, "m1") + begun(1, "m2")
    for index, text in [(0, "a"), (1, "b"), (0, "c"), (1, "d")]:
        body += delta("output_text", index, f"m{index + 1}", text)
    events, folded = said(body + done(0, message("m1", "ac")) + done(1, message("m2", "bd")) + COMPLETED)
    texts = [(event.text, event.id) for event in events if isinstance(event, TextCompleted)]
    assert texts == [("a", "m1"), ("b", "m2"), ("c", "m1+1"), ("d", "m2+1")]
    assert folded.output_text == "abcd"


def test_18_texts_of_one_message():
    body = CREATED + begun(0, "m1", 2)
    body += delta("output_text", 0, "m1", "a", content_index=0) + delta("output_text", 0, "m1", "b", content_index=1)
    events, folded = said(body + done(0, message("m1", "a", "b")) + COMPLETED)
    assert [(e.text, e.id) for e in events if isinstance(e, TextCompleted)] == [("a", "m1"), ("b", "m1.1")]
    assert folded.output_text == "ab"


def test_19_ciphertext_differs_from_frame_to_frame():
    first = {"type": "reasoning", "id": "t", "summary": [], "encrypted_content": "1"}
    last = {**first, "encrypted_content": "2"}
    body = CREATED + added(0, first) + done(0, last) + response("completed", output=[{**first, "id": "u"}])
    assert said(body)[1].message == Message(
        "assistant",
        (ThinkingPart("", None, {"provider": "openai", "item": last}),),
        metadata={"id": "r1", "model": "m"},
    )


def test_20_nulls_strings_and_missing_indices():
    # the SDK raises: it asks for an item None
    body = CREATED + begun(0, "m1").replace(b'"output_index":0', b'"output_index":"0"')
    body += frame("response.output_text.delta", output_index=None, item_id="m1", content_index=None, delta="H")
    body += frame("response.output_text.delta", item_id="m1", delta="i", logprobs=None, obfuscation="x")
    assert said(body + response("completed", usage=None, incomplete_details=None))[1].output_text == "Hi"


def test_21_resumed_in_the_middle():
    # the SDK raises: Expected to have received `response.created`
    events, folded = said(delta("output_text", 0, "m1", "Hi") + response("completed", output=[message("m1", "Hi")]))
    assert events[1:] == SAID[1:]
    assert (folded.output_text, folded.id) == ("Hi", "r1")


def test_22_done_as_the_end():
    assert_says_hi(CREATED + HI + HI_DONE + COMPLETED + b"data: [DONE]\n\n")
    folded = said(CREATED + HI + b"data: [DONE]\n\n")[1]
    assert (folded.output_text, folded.finish_reason, folded.error) == ("Hi", None, None)


def test_23_a_call_id_that_the_thread_has_used():
    before = [Message("assistant", tool_calls=(ToolCall("a", "f"),))]
    body = CREATED + added(0, function("i", "a", "")) + done(0, function("i", "a", '{"x":1}')) + COMPLETED
    assert [call.id for call in said(body, messages=before)[1].tool_calls] == ["call_1"]


def test_24_an_answer_that_was_not_streamed():
    # the SDK says nothing at all
    whole = {"id": "r1", "object": "response", "model": "m", "status": "completed", "output": [message("m1", "Hi")]}
    assert_says_hi(msgspec.json.format(msgspec.json.encode(whole)))


def test_25_an_error_with_status_200():
    # the SDK says nothing at all
    error = said(b'{"error": {"message": "no", "code": "context_length_exceeded"}}')[1].error
    assert error == AdapterError("context_length_exceeded", "no", provider="openai", code="context_length_exceeded")


@pytest.mark.parametrize("body", [b"data: {nonsense\n\n", b'data: {"type": "\xff"}\n\n', b"data: <html>\n\n"])
def test_26_a_frame_that_is_not_json(body: bytes):
    events, folded = said(CREATED + HI + body)
    assert events == SAID
    assert isinstance(folded.error, StreamError)
    assert folded.error.reason == "malformed_event"


def test_27_no_indices_and_the_ends_of_all_items_at_the_end():
    # llama.cpp; the SDK raises: list indices must be integers
    calls = [{**function("", "a", '{"x":1}')}, {**function("", "b", '{"x":2}')}]
    body = CREATED + frame("response.output_item.added", item=message("m1"))
    body += frame("response.output_text.delta", item_id="m1", delta="Hi")
    for call in calls:
        del call["id"]
        body += frame("response.output_item.added", item={**call, "arguments": ""})
        body += frame("response.function_call_arguments.delta", item_id=call["call_id"], delta=call["arguments"])
    for item in [message("m1", "Hi"), *calls]:
        body += frame("response.output_item.done", item=item)
    events, folded = said(body + response("completed", output=[message("m1", "Hi"), *calls]))
    assert events[:3] == SAID
    assert (folded.output_text, folded.tool_calls) == ("Hi", CALLS)


BODY = (
    b"\xef\xbb\xbf: hello\r\n\r\n"
    + CREATED
    + added(0, {"type": "reasoning", "id": "t", "summary": []})
    + delta("reasoning_summary_text", 0, "t", "hé", summary_index=0).replace(b"\n", b"\r")
    + done(0, {"type": "reasoning", "id": "t", "summary": [{"text": "hé"}], "encrypted_content": "x"})
    + added(1, message("m1")).replace(b"\n", b"\r\n")
    + delta("output_text", 1, "m1", "H€", content_index=0)
    + b"data:\n\n"
    + done(1, message("m1", "H€"))
    + added(2, function("i", "a", ""))
    + delta("function_call_arguments", 2, "i", '{"x":1}')
    + done(2, function("i", "a", '{"x":1}'))
    + response("completed", usage={"input_tokens": 1, "output_tokens": 2})
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
    decoder = ResponsesDecoder()
    assert isinstance(decoder.feed(WHOLE)[-1], MessageCompleted)
    assert decoder.feed(HI) == decoder.close() == []


def test_nothing_at_all_is_a_truncated_stream():
    started, failed = decode()
    assert started == MessageStarted(Message("assistant"))
    assert isinstance(failed, ErrorEvent)
    assert failed.error.reason == "truncated"
