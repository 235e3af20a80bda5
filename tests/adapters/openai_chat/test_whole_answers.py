"""Answers that are not streamed, in the forms of several servers; none is among the recorded streams."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm.values import AdapterError, FilePart, Response
from tests.adapters.openai_chat.support import DONE, HI, STOP, answer, chunk, said, sources, whole


def files(response: Response[Any]) -> list[dict[str, Any]]:
    return [part.file for part in response.message.parts if isinstance(part, FilePart)]


def test_a_message_beside_an_empty_delta():
    """Perplexity's; its streams, of which perplexity/0xPlaygrounds-rig__perplexity__streaming is one, have both too."""
    response = whole({"content": "Hi"}, delta={"role": "assistant", "content": ""})
    assert (response.output_text, response.finish_reason) == ("Hi", "stop")
    both = chunk({"content": "Hi"}).replace(b'"finish_reason"', b'"message":{"content":"Hi"},"finish_reason"')
    assert said(both + STOP + DONE)[1].output_text == "Hi"


def test_empty_fields_are_neither_a_call_nor_a_file():
    """Snowflake's."""
    audio = {"id": "", "data": "", "expires_at": 0, "transcript": ""}
    for empty in ({"name": "", "arguments": ""}, {}, {"name": None, "arguments": None}):
        response = whole({"content": "Hi", "function_call": empty, "audio": audio, "tool_calls": None})
        assert (response.tool_calls, files(response), response.finish_reason) == ((), [], "stop")
    assert files(whole({"content": "Hi", "audio": {"id": None, "data": None}})) == []


def test_sound_is_still_a_file():
    assert [file["transcript"] for file in files(whole({"audio": {"data": "AAA=", "transcript": "Hi"}}))] == ["Hi"]


def test_an_error_of_the_choice_is_the_answer_s():
    """OpenRouter's, whole and at the end of a stream; the usage beside it counts."""
    metadata = {"provider_name": "Z", "raw": '{"error":{"message":"GPU lost"}}'}
    error = {"code": 502, "message": "Provider returned error", "metadata": metadata}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    message = {"role": "assistant", "content": "Hel"}
    for reason in ("error", "stop", None):
        response = answer({"message": message, "finish_reason": reason, "error": error}, usage=usage)
        failure = response.error
        assert isinstance(failure, AdapterError)
        assert (failure.reason, failure.status, failure.code) == ("provider_unavailable", 502, "502")
        assert failure.message == "Provider returned error: GPU lost"
        assert (response.output_text, response.usage.input_tokens) == ("Hel", 3)
    end = msgspec.json.encode({"id": "r1", "choices": [{"delta": {}, "finish_reason": "error", "error": error}]})
    counted = msgspec.json.encode({"id": "r1", "choices": [], "usage": usage})
    response = said(HI + b"data: %b\n\ndata: %b\n\n" % (end, counted) + DONE)[1]
    assert isinstance(response.error, AdapterError)
    assert (response.error.status, response.output_text, response.usage.input_tokens) == (502, "Hi", 3)


def test_an_object_as_content_is_its_json():
    """Cloudflare's, for a response format."""
    assert whole({"content": {"city": "Oslo", "at": [1]}}).output_text == '{"city":"Oslo","at":[1]}'


CITED = {"content": "...", "title": "A", "url": "https://a", "filepath": "a.md", "chunk_id": "0"}
TOOL = {"role": "tool", "content": msgspec.json.encode({"citations": [CITED], "intent": '["x"]'}).decode()}


def test_the_messages_of_azure_s_old_answers_from_one_s_own_data():
    messages = [{"index": 0, **TOOL, "end_turn": False}, {"index": 1, "role": "assistant", "content": "Hi [doc1]"}]
    response = answer({"messages": messages})
    assert (response.output_text, response.error) == ("Hi [doc1]", None)
    assert [source["url"] for source in sources(response)] == ["https://a"]
    deltas = [TOOL, {"role": "assistant"}, {"content": "Hi "}, {"content": "[doc1]"}, {"content": "[DONE]"}]
    streamed = [{"id": "r1", "model": "m", "choices": [{"index": 0, "messages": [{"delta": d}]}]} for d in deltas]
    response = said(b"".join(b"data: %b\n\n" % msgspec.json.encode(frame) for frame in streamed) + DONE)[1]
    assert (response.output_text, len(sources(response))) == ("Hi [doc1]", 1)
