"""What a provider says about its answer is in the response's metadata, under one name on every wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.collector import StreamCollector
from rxllm.testing import cut
from rxllm.values import Response, SourcePart
from tests.corpus import recordings

SAFE = {"hate": {"filtered": False, "severity": "safe"}}
LOW = {"hate": {"filtered": False, "severity": "low"}}


def fold(decoder: Any, *chunks: bytes) -> Response[Any]:
    state = StreamCollector()
    for event in [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close():
        state = state.apply_event(event)
    return state.to_response()


def metadata(decoder: Any, *frames: Any) -> dict[str, Any]:
    return fold(decoder, *(b"data: %b\n\n" % msgspec.json.encode(frame) for frame in frames)).metadata


def chat(*frames: Any) -> dict[str, Any]:
    return metadata(ChatDecoder(), *({"id": "c", "model": "m", **frame} for frame in frames))


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


STOP = said("", finish_reason="stop")


def test_openai_s_tier_and_fingerprint():
    everywhere = {"service_tier": "default", "system_fingerprint": "fp_1"}
    assert chat({**said("Hi"), **everywhere}, said("."), STOP) == everywhere
    assert chat(said("Hi"), STOP, {"choices": [], "usage": {"total_tokens": 1}, **everywhere}) == everywhere
    assert chat({**said("Hi"), "service_tier": None, "system_fingerprint": ""}, STOP) == {}


def test_why_the_cache_missed_and_what_the_model_did_not_read():
    reason = {"type": "tools_changed", "cache_missed_input_tokens": 900}
    message = {"id": "m", "model": "m", "diagnostics": {"cache_miss_reason": reason}}
    end = {"type": "message_stop"}
    missed = {"type": "message_start", "message": message}
    assert metadata(MessagesDecoder(), missed, end) == {"cache_miss_reason": reason}
    pending = {**missed, "message": {**message, "diagnostics": {"cache_miss_reason": None}}}
    assert metadata(MessagesDecoder(), pending, end) == {}

    dropped = [{"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "model_binding_mismatch"}]
    start = {"type": "message_start", "message": {"id": "m", "model": "m", "input_transformations": dropped}}
    fallback = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "input_transformations": []}
    assert metadata(MessagesDecoder(), start, end) == {"input_transformations": dropped}
    assert metadata(MessagesDecoder(), start, fallback, end) == {"input_transformations": []}
    odd = {**start, "message": {**message, "input_transformations": 7, "diagnostics": "x"}}
    assert metadata(MessagesDecoder(), odd, end) == {}

    notes = {
        "prompt_cache_diagnostics": {"type": "cache_miss", "reason": "tools_changed", "cache_missed_tokens": 900},
        "input_transformations": [
            {"id": "rs_1", "type": "reasoning", "action": "removed", "reason": "prefix_mismatch"}
        ],
    }
    response = {"id": "r", "model": "m", "status": "completed", "output": [], **notes}
    assert metadata(ResponsesDecoder(), {"type": "response.completed", "response": response}) == notes


def test_openrouter_s_provider_and_its_own_finish_reason():
    end = said("", finish_reason="stop", native_finish_reason="end_turn")
    expected = {"provider": "Anthropic", "native_finish_reason": "end_turn"}
    assert chat({**said("Hi"), "provider": "Anthropic"}, end) == expected
    message = {"id": "m", "model": "m", "provider": "Amazon Bedrock", "usage": {"input_tokens": 1}}
    start = {"type": "message_start", "message": message}
    assert metadata(MessagesDecoder(), start, {"type": "message_stop"}) == {"provider": "Amazon Bedrock"}


def test_azure_s_filters_the_gravest_verdict_counts():
    prompt = [{"prompt_index": 0, "content_filter_results": SAFE}]
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": prompt}
    later = [said("a", content_filter_results=LOW), said("b", content_filter_results=SAFE)]
    end = said("", finish_reason="stop", content_filter_results={})
    assert chat(first, *later, end) == {"prompt_filter_results": prompt, "content_filter_results": LOW}
    filtered = {"hate": {"filtered": True, "severity": "medium"}, "jailbreak": {"filtered": False, "detected": True}}
    end = said("", finish_reason="content_filter", content_filter_results=filtered)
    assert chat(*later, end) == {"content_filter_results": filtered}


@pytest.mark.parametrize("odd", ["none", [1], {"hate": "safe"}, {"hate": {"severity": ["low"]}}])
def test_odd_filters_do_no_harm(odd: Any):
    assert chat(said("Hi", content_filter_results=SAFE), said("", finish_reason="stop", content_filter_results=odd))


@pytest.mark.parametrize("name", ["timings", "time_info"])
def test_times_of_the_server(name: str):
    assert chat(said("Hi"), {**STOP, name: {"queue_time": 1.5}}) == {"timings": {"queue_time": 1.5}}
    assert chat(said("Hi"), STOP, {"choices": [], name: {"predicted_ms": 2}}) == {"timings": {"predicted_ms": 2}}


def test_times_among_the_counters():
    times = {"queue_time": 0.1, "prompt_time": 0.2, "completion_time": 0.3, "total_time": 0.5}
    assert chat(said("Hi"), STOP, {"choices": [], "usage": {"prompt_tokens": 1, **times}}) == {"timings": times}
    lines = [{"model": "m", "response": "Hi"}, {"done": True, "done_reason": "stop", "eval_duration": 7}]
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    assert fold(OllamaDecoder(), body).metadata == {"timings": {"eval_duration": 7}}


def test_the_responses_api():
    filters = [{"blocked": False, "source_type": "prompt"}]
    about = {"service_tier": "priority", "moderation": {"flagged": False}, "content_filters": filters}
    response = {"status": "completed", "output": [], "metadata": {"system_fingerprint": "fp_1", "mine": "x"}, **about}
    ended = {"type": "response.completed", "response": response}
    assert metadata(ResponsesDecoder(), ended) == {**about, "system_fingerprint": "fp_1"}


def test_what_perplexity_groq_watsonx_and_azure_say_besides():
    """Groq's channel is as in groq/dl-alexandre-req_llm__groq__openai_gpt_oss_120b__streaming; of the others there is
    no recording.
    """
    asked = ["And then?"]
    assert chat({**said("Hi"), "related_questions": asked}, STOP) == {"related_questions": asked}
    assert chat(said("Hi"), {**STOP, "related_questions": asked}) == {"related_questions": asked}
    warnings = [{"id": "deprecation_warning", "message": "will be withdrawn"}]
    assert chat({**said("Hi"), "system": {"warnings": warnings}}, STOP) == {"warnings": warnings}
    assert chat({**said("Hi"), "system": "x"}, STOP) == {}
    thinking = {"choices": [{"index": 0, "delta": {"reasoning": "Hm", "channel": "analysis"}}]}
    assert chat(said(""), thinking, said("Hi"), STOP) == {"channel": "analysis"}
    unfiltered = {"error": {"code": "content_filter_error", "message": "The contents are not filtered"}}
    for frames in (
        [said("Hi", content_filter_result=unfiltered), STOP],
        [
            said("Hi"),
            {
                **STOP,
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "content_filter_result": unfiltered}],
            },
        ],
    ):
        assert chat(*frames) == {"content_filter_result": unfiltered}


def test_venice_s_citations_are_sources_and_vercel_s_routing_is_kept():
    """No recording of either: Venice's had no search."""
    found = {"web_search_citations": [{"title": "A", "url": "https://a"}], "enable_web_search": "on"}
    frames = [said("Hi"), {**said(""), "venice_parameters": found}, STOP]
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode({"id": "c", "model": "m", **frame}) for frame in frames)
    parts = fold(ChatDecoder(), body).message.parts
    assert [part.source["url"] for part in parts if isinstance(part, SourcePart)] == ["https://a"]
    assert chat(said("Hi"), {**STOP, "venice_parameters": found}) == {"venice_parameters": found}
    routed = {"gateway": {"routing": {"finalProvider": "bedrock"}, "generationId": "gen_1"}}
    assert chat(said("Hi"), {**STOP, "provider_metadata": routed}) == {"provider_metadata": routed}


def test_anthropic_s_tier_and_speed():
    usage = {"input_tokens": 1, "service_tier": "priority", "speed": "fast"}
    start = {"type": "message_start", "message": {"id": "m", "model": "m", "usage": usage}}
    noted = metadata(MessagesDecoder(), start, {"type": "message_stop"})
    assert noted == {"service_tier": "priority", "speed": "fast"}


def test_gemini_s_tier_ratings_and_feedback():
    ratings = [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]
    candidate = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP", "safetyRatings": ratings}
    first = {"candidates": [candidate], "promptFeedback": {"safetyRatings": ratings}}
    last = {"usageMetadata": {"totalTokenCount": 3, "serviceTier": "flex"}}
    billed = {"usageMetadata": {"trafficType": "ON_DEMAND"}}
    assert metadata(GeminiDecoder(), first, last, billed) == {
        "prompt_feedback": {"safetyRatings": ratings},
        "safety_ratings": ratings,
        "service_tier": "flex",
        "traffic_type": "ON_DEMAND",
    }


CHAT = (b'"system_fingerprint"', b'"service_tier"', b'"provider"', b'"time_info"', b'"timings"')


def test_what_any_recorded_chat_says_is_kept_however_it_is_cut():
    names = {name.decode().strip('"'): "timings" if b"tim" in name else name.decode().strip('"') for name in CHAT}
    for recording in recordings("openai-chat"):
        response = fold(ChatDecoder(), *cut(recording.body, *range(0, len(recording.body), 997)))
        if response.error is not None:
            continue
        for line in recording.body.splitlines():
            if not line.startswith(b"data: {"):
                continue
            frame = msgspec.json.decode(line[6:])
            kept = [response.metadata.get(kept) for name, kept in names.items() if frame.get(name)]
            assert all(kept), (recording, frame)
