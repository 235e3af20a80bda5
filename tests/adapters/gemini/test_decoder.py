"""Awkward answers of Gemini that were seen in the wild, and what is said of each; and that no cut changes it.

What the official SDK makes of the same bytes is in `BY_SDK` at the end: it raises on some, and on others says nothing
of what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import Gemini, Request
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.events import (
    FileAdded,
    MessageCompleted,
    PartAdded,
    RawChunk,
    SourceAdded,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.testing import cut
from rxllm.values import AdapterError, ProviderPart, StreamError, TextPart, ThinkingPart, Usage
from tests.adapters.gemini.support import HI, STARTED, STOP, call, data, decode, said, sse, text
from tests.wire.lawful import lawful


def array(*chunks: Any) -> bytes:
    return b"[" + b"\n,\r\n".join(msgspec.json.format(msgspec.json.encode(chunk)) for chunk in chunks) + b"\n]"


SAID = [STARTED, TextDelta("Hi", "block_0"), TextCompleted("Hi", "block_0")]


def assert_says_hi(body: bytes) -> None:
    events, response = said(body)
    assert events == SAID
    assert (response.finish_reason, response.raw_finish_reason) == ("stop", "STOP")


def test_01_keep_alives():
    assert_says_hi(b": keep-alive\r\n\r\n" + sse(HI) + b"data:\r\n\r\n" + sse(STOP))


def test_02_line_separators_inside_json():
    line = "a\u2028b\u2029c\u0085d"
    assert said(sse(text(line), STOP))[0] == [STARTED, TextDelta(line, "block_0"), TextCompleted(line, "block_0")]


def test_03_brackets_quotes_and_escapes_in_the_text_of_an_array():
    line = 'a"}]\\",{[é€😀'
    assert said(array(text(line), STOP))[0] == [STARTED, TextDelta(line, "block_0"), TextCompleted(line, "block_0")]


def test_04_both_forms_say_the_same():
    chunks = (HI, data([call("f", {"a": 1})]), data(None, "STOP", usageMetadata={"promptTokenCount": 1}))
    assert decode(sse(*chunks)) == decode(array(*chunks)) == decode(b"\xef\xbb\xbf \n" + array(*chunks))


def test_05_a_blocked_prompt_has_no_candidates():
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    events, response = said(sse({**blocked, "responseId": "r1", "modelVersion": "m"}))
    assert events == [STARTED, UsageUpdated(Usage(4))]
    assert (response.finish_reason, response.raw_finish_reason) == ("content_filter", "SAFETY")
    assert response.metadata == {"prompt_feedback": {"blockReason": "SAFETY"}}


def test_06_a_malformed_call_is_no_success():
    ended = data(None, "MALFORMED_FUNCTION_CALL", candidate={"finishMessage": "no input to parse"})
    response = said(sse(ended))[1]
    assert response.finish_reason == "error"
    assert response.error == AdapterError(
        "malformed_response",
        "the model's answer ended with MALFORMED_FUNCTION_CALL: no input to parse",
        provider="google",
        code="MALFORMED_FUNCTION_CALL",
    )


def test_07_content_without_parts():
    events, response = said(sse(HI, data(None, "MAX_TOKENS", candidate={"content": {"role": "model"}})))
    assert events == SAID
    assert response.finish_reason == "length"


def test_08_content_after_a_finish_reason():
    response = said(sse(data([{"text": "a"}], "STOP"), data([{"text": "b"}], "STOP")))[1]
    assert (response.output_text, response.finish_reason) == ("ab", "stop")


def test_09_a_signature_on_empty_text():
    events, response = said(sse(HI, data([{"text": "", "thoughtSignature": "czE="}], "STOP")))
    signed = ProviderPart("google", {"text": "", "thoughtSignature": "czE="})
    assert events == [*SAID, PartAdded(signed)]
    assert response.message.parts == (TextPart("Hi"), signed)


def test_10_signed_and_unsigned_text_are_never_joined():
    response = said(sse(HI, data([{"text": " a", "thoughtSignature": "czE="}]), text(" b"), STOP))[1]
    signed = ProviderPart("google", {"thoughtSignature": "czE="})
    assert response.message.parts == (TextPart("Hi"), TextPart(" a"), signed, TextPart(" b"))
    assert response.output_text == "Hi a b"


def test_11_a_signed_thought():
    thought = {"text": "hm", "thought": True}
    events = said(sse(data([thought]), data([{**thought, "thoughtSignature": "czE="}]), STOP))[0]
    completed = [event for event in events if isinstance(event, ThinkingCompleted)]
    assert completed == [
        ThinkingCompleted("hm", id="block_0"),
        ThinkingCompleted("hm", "czE=", {"provider": "google"}, id="block_1"),
    ]


def test_12_equal_calls_without_ids():
    response = said(sse(data([call("f", {"x": 1}), call("f", {"x": 1})], "STOP")))[1]
    assert [(each.id, each.arguments) for each in response.tool_calls] == [("call_0", {"x": 1}), ("call_1", {"x": 1})]
    assert response.finish_reason == "tool_calls"


def test_13_an_id_that_comes_twice():
    response = said(sse(data([call("f", {}, id="a"), call("g", {}, id="a")], "STOP")))[1]
    assert [(each.id, each.metadata["google"]["id"]) for each in response.tool_calls] == [("a", "a"), ("call_1", "a")]


@pytest.mark.parametrize("called", [{"name": "f"}, {"name": "f", "args": None}, {"name": "f", "args": {}}])
def test_14_a_call_without_arguments(called: dict[str, Any]):
    response = said(sse(data([{"functionCall": called}], "STOP")))[1]
    assert [(each.name, each.arguments) for each in response.tool_calls] == [("f", {})]
    assert "error" not in response.tool_calls[0].metadata


def test_15_only_the_first_of_parallel_calls_is_signed():
    response = said(sse(data([{**call("f", {}), "thoughtSignature": "czE="}, call("g", {})], "STOP")))[1]
    assert [each.metadata for each in response.tool_calls] == [{"google": {"thoughtSignature": "czE="}}, {}]


PIECES = [
    call("f", willContinue=True),
    call(None, partialArgs=[{"jsonPath": "$.to.city", "stringValue": "Par", "willContinue": True}], willContinue=True),
    call(None, partialArgs=[{"jsonPath": "$.to.city", "stringValue": "is"}], willContinue=True),
    call(
        None, partialArgs=[{"jsonPath": "$.days[0]", "numberValue": 2}, {"jsonPath": "$.at", "nullValue": "NULL_VALUE"}]
    ),
]


def test_16_arguments_in_pieces():
    events, response = said(sse(*(data([piece]) for piece in PIECES), STOP))
    raw = '{"to":{"city":"Paris"},"days":[2],"at":null}'
    arguments = {"to": {"city": "Paris"}, "days": [2], "at": None}
    assert events[1:] == [
        ToolCallStarted("call_0", "f"),
        ToolCallDelta("call_0", raw),
        ToolCallCompleted("call_0", "f", arguments, raw),
    ]
    assert response.finish_reason == "tool_calls"


def test_17_arguments_that_are_cut_off():
    events, response = said(sse(*(data([piece]) for piece in PIECES[:2])))
    raw = '{"to":{"city":"Par"}}'
    assert events[-1] == ToolCallCompleted("call_0", "f", {"to": {"city": "Par"}}, raw, {"error": "incomplete"})
    assert (response.tool_calls, response.error) == ((), truncated())


def truncated() -> StreamError:
    return StreamError("truncated", "the stream ended without a finish reason or an end marker")


ERROR = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}


@pytest.mark.parametrize("body", [sse(HI, ERROR), array(HI, ERROR), sse(HI) + b"event: error\n" + sse(ERROR)])
def test_18_an_error_in_the_stream(body: bytes):
    events, response = said(body)
    assert events == SAID
    expected = AdapterError("provider_unavailable", "overloaded", provider="google", status=503, code="UNAVAILABLE")
    assert response.error == expected


@pytest.mark.parametrize(
    "body", [msgspec.json.encode(ERROR), array(ERROR), msgspec.json.format(msgspec.json.encode(ERROR))]
)
def test_19_an_error_with_status_200(body: bytes):
    error = said(body)[1].error
    assert isinstance(error, AdapterError)
    assert error.reason == "provider_unavailable"


def test_20_usage_is_a_snapshot_not_a_sum():
    counted = [{"promptTokenCount": 9, "totalTokenCount": 9}, {"promptTokenCount": 9, "totalTokenCount": 9}]
    counted += [{"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14}, {"trafficType": "ON_DEMAND"}]
    events, response = said(sse(*(data([{"text": "a"}], usageMetadata=each) for each in counted), STOP))
    assert len([event for event in events if isinstance(event, UsageUpdated)]) == 2
    assert response.usage == Usage(9, 5, total_tokens=14)


def test_21_thinking_that_uses_up_all_tokens():
    response = said(sse(data([{"text": "hm", "thought": True}]), data(None, "MAX_TOKENS")))[1]
    assert (response.output_text, response.finish_reason) == ("", "length")
    assert response.message.parts == (ThinkingPart("hm"),)


@pytest.mark.parametrize("body", [sse(HI), array(HI)[:-1], array(HI, STOP)[:-40]])
def test_22_a_stream_that_is_cut_off(body: bytes):
    events, response = said(body)
    assert events == SAID
    assert (response.output_text, response.error) == ("Hi", truncated())


def test_23_the_end_of_an_array_is_an_end():
    decoder = GeminiDecoder()
    assert isinstance(decoder.feed(array(HI))[-1], MessageCompleted)
    assert decoder.feed(b"\n" + array(HI)) == decoder.close() == []


def test_24_enumerations_as_numbers():
    assert said(array(HI, data(None, 1)))[1].finish_reason == "stop"
    assert said(array(HI, data(None, 3)))[1].finish_reason == "content_filter"


def test_25_of_several_candidates_candidate_0_is_read():
    other = {"index": 1, "content": {"parts": [{"text": "b"}]}, "finishReason": "SAFETY"}
    assert_says_hi(sse(HI, {"candidates": [other, {**other, "index": 2}]}, STOP))
    decoder = Gemini(api_key="k").decoder(Request(options={"generationConfig": {"candidateCount": 2}}))
    events = decoder.feed(sse(HI, {"candidates": [other]}, STOP)) + decoder.close()
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["Hi"]


@pytest.mark.parametrize("indices", [(0, 1, 2), (1, 1, 1)])
def test_25_a_lone_candidate_counts_whatever_its_index(indices: tuple[int, ...]):
    chunks = [data([{"text": text}], finish) for text, finish in (("Hel", None), ("lo", None), ("", "STOP"))]
    for chunk, index in zip(chunks, indices, strict=True):
        chunk["candidates"][0]["index"] = index
    response = said(sse(*chunks))[1]
    assert (response.output_text, response.finish_reason) == ("Hello", "stop")


def test_26_text_that_is_blocked_half_way():
    response = said(sse(HI, data(None, "SAFETY", candidate={"safetyRatings": [{"blocked": True}]})))[1]
    assert (response.output_text, response.finish_reason) == ("Hi", "content_filter")


def test_27_what_is_not_known_is_shown():
    odd = data([{"audioTranscription": {"text": "a"}}])
    events = said(sse({"sessionResumptionUpdate": {}}, odd, HI, STOP))[0]
    raw = [event for event in events if isinstance(event, RawChunk)]
    assert raw == [RawChunk("chunk", {"sessionResumptionUpdate": {}}), RawChunk("part", odd)]
    assert said(sse([1], HI, STOP))[1].output_text == "Hi"
    assert "candidates is not a list: 5" in str(said(sse({"candidates": 5}, HI, STOP))[1].error)
    rest = data([call(None)])
    assert said(sse(rest, HI, STOP))[0][1] == RawChunk("part", rest)


@pytest.mark.parametrize("body", [b"data: {nonsense\n\n", b"data: <html>\n\n", b"[nonsense]", b"[{]}, {}]"])
def test_28_what_is_not_json(body: bytes):
    error = said(body)[1].error
    assert isinstance(error, StreamError)
    assert error.reason in ("malformed_event", "truncated")


def test_28_json_that_is_too_deep():
    deep = b'{"candidates": [{"groundingMetadata": {"a": %b}}]}' % (b"[" * 100_000 + b"]" * 100_000)
    for body in (b"data: " + deep + b"\n\n", b"[" + deep + b"]"):
        error = GeminiDecoder().feed(body)[-1].error
        assert isinstance(error, StreamError)


def test_29_grounding_that_comes_again_and_again():
    found = {"groundingChunks": [{"web": {"uri": "u", "title": "t"}}], "webSearchQueries": ["q"]}
    support = {"segment": {"endIndex": 2, "text": "Hi"}, "groundingChunkIndices": [0]}
    again = data([{"text": "Hi"}], candidate={"groundingMetadata": found})
    last = data(None, "STOP", candidate={"groundingMetadata": {**found, "groundingSupports": [support]}})
    events, response = said(sse(data([], candidate={"groundingMetadata": {}}), again, last))
    assert [event.source for event in events if isinstance(event, SourceAdded)] == [
        {"type": "web", "url": "u", "title": "t"},
        {"type": "grounding_support", **support},
    ]
    assert response.metadata["grounding_metadata"] == {**found, "groundingSupports": [support]}


def test_30_an_image():
    part = {"inlineData": {"mimeType": "image/png", "data": "AAE="}, "thoughtSignature": "czE="}
    events = said(sse(HI, data([part]), STOP))[0]
    assert events[-1] == FileAdded({"mime_type": "image/png", "data": b"\0\1", "thoughtSignature": "czE="})


def test_31_code_that_the_server_runs():
    code, result = {"language": "PYTHON", "code": "1+1"}, {"outcome": "OUTCOME_OK", "output": "2\n"}
    body = sse(
        data([{"executableCode": code, "thoughtSignature": "czE="}]), data([{"codeExecutionResult": result}]), HI, STOP
    )
    events, response = said(body)
    assert events[1] == ToolCallStarted("call_0", "code_execution", {"server": True})
    assert (response.tool_calls, response.finish_reason) == ((), "stop")
    assert [part.data for part in response.message.parts if isinstance(part, ProviderPart)] == [
        {"executableCode": code, "thoughtSignature": "czE="},
        {"codeExecutionResult": result},
    ]


def test_32_nothing_at_all():
    assert said(b"")[1].error == truncated()
    assert said(b"[]")[1].error is None


BODY = sse(
    data([{"text": "hé", "thought": True, "thoughtSignature": "czE="}]), HI, data([{"executableCode": {"code": "1"}}])
) + sse(*(data([piece]) for piece in PIECES), data([{"text": " x", "thoughtSignature": "czI="}], "STOP"))
ARRAY = array(*(msgspec.json.decode(each[6:]) for each in BODY.split(b"\r\n\r\n")[:-1]))


@pytest.mark.parametrize("whole", [BODY, ARRAY])
@given(cuts=st.lists(st.integers(0, len(ARRAY)), max_size=30), end=st.integers(0, len(ARRAY)))
def test_any_cut_of_any_prefix_gives_the_same_events(whole: bytes, cuts: list[int], end: int):
    body = whole[:end]
    events = decode(body)
    lawful(events)
    assert decode(*cut(body, *(place for place in cuts if place < len(body)))) == events
    assert decode(*(bytes([each]) for each in body)) == events


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.text or "" for chunk in chunks)


LINES = "a\u2028b\u2029c\u0085d"

# What the SDK does with the bytes of a test: the exception's name, or what it gives, where that differs from ours.
BY_SDK: dict[str, tuple[bytes, Callable[[list[Any]], Any] | None, Any]] = {
    "01 an empty heartbeat": (sse(HI) + b"data:\r\n\r\n" + sse(STOP), None, "UnknownApiResponseError"),
    "02 line separators": (sse(text(LINES), STOP), text_of, LINES),
    "03 an array": (array(HI, STOP), None, "UnknownApiResponseError"),
    "16 pieces of arguments are calls": (
        sse(*(data([piece]) for piece in PIECES), STOP),
        lambda chunks: [call.name for chunk in chunks for call in chunk.function_calls or ()],
        ["f", None, None, None],
    ),
    "22 a cut stream is a success": (sse(HI), text_of, "Hi"),
    "24 enumerations as numbers": (sse(HI, data(None, 1)), None, "AttributeError"),
    "28 a frame that is not JSON": (b"data: <html>\n\n", None, "UnknownApiResponseError"),
    "32 nothing at all is a success": (b"", text_of, ""),
}


@pytest.mark.judges
@pytest.mark.parametrize("case", BY_SDK)
def test_what_the_sdk_does(case: str):
    httpx = pytest.importorskip("httpx")
    genai = pytest.importorskip("google.genai")
    body, given, expected = BY_SDK[case]
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    http = httpx.Client(transport=httpx.MockTransport(lambda request: answer))
    client = genai.Client(api_key="none", http_options=genai.types.HttpOptions(httpx_client=http))
    chunks: list[Any] = []
    raised = None
    try:
        chunks += client.models.generate_content_stream(model="any", contents="any")
    except Exception as error:
        raised = type(error).__name__
    assert (raised if given is None else given(chunks)) == expected
