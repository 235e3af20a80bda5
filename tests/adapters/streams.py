"""Streams written by hand, one or two of each wire, that hold every field that a decoder reads."""

from __future__ import annotations

import json
from typing import Any

IMAGE = "iVBORw0KGgo="


def sse(*frames: Any, named: bool = False, done: bool = False) -> bytes:
    """The frames as events; `named` after their types."""
    events = [
        (f"event: {frame['type']}\n" if named else "") + f"data: {json.dumps(frame, separators=(',', ':'))}\n\n"
        for frame in frames
    ]
    return "".join([*events, "data: [DONE]\n\n" if done else ""]).encode()


def chat(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "r1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


_USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 1}}
_DETAIL = {"type": "reasoning.text", "text": "Well.", "signature": "s", "index": 0, "id": "d"}
_CITED = {"type": "url_citation", "url_citation": {"url": "https://a", "start_index": 0, "end_index": 2}}
_LOGPROBS = {"content": [{"token": "Hi", "logprob": -0.1, "bytes": [72], "top_logprobs": []}], "refusal": []}
_EXECUTED = {
    "index": 0,
    "type": "search",
    "arguments": "{}",
    "search_results": {"results": [{"url": "https://a"}]},
    "browser_results": [{"url": "https://d"}],
}
_CUSTOM = {"index": 0, "id": "c3", "type": "custom"}
_CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}

CHAT = (
    sse(
        chat({"role": "assistant", "content": ""}),
        chat({"reasoning_content": "Hm"}),
        chat({"reasoning_details": [_DETAIL]}),
        chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "So"}]}]}),
        chat({"content": [{"type": "thinking", "thinking": "So"}, {"type": "text", "text": "A"}]}),
        chat(
            {"content": [{"type": "image_url", "image_url": {"url": "https://a"}}, {"type": "reference", "ids": [1]}]}
        ),
        chat({"content": "Hi"}, logprobs=_LOGPROBS),
        chat({"content": " you", "annotations": [_CITED]}),
        chat({"images": [{"image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]}),
        chat({"audio": {"id": "a", "data": IMAGE, "transcript": "Hi", "expires_at": 9}}),
        chat({"tool_calls": [_CALL]}),
        chat({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        chat({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "f", "arguments": {"x": 1}}}]}),
        {**chat({}, "tool_calls", native_finish_reason="tool_calls"), "citations": ["https://a", {"url": "https://b"}]},
        {"id": "r1", "choices": [], "usage": _USAGE, "search_results": [{"url": "https://c", "title": "C"}]},
        done=True,
    ),
    sse(
        chat({"function_call": {"name": "add", "arguments": "{}"}}),
        chat({"refusal": "No."}),
        chat({}, "error", native_finish_reason="OOPS"),
        {"x_groq": {"id": "r", "usage": _USAGE}},
        {"object": "error", "message": "overloaded", "type": "server_error", "code": 503},
    ),
    sse(
        {**chat({"content": {"a": 1}, "channel": "analysis"}), "system": {"warnings": [{"id": "w"}]}},
        {
            **chat({"executed_tools": [_EXECUTED]}),
            "venice_parameters": {"web_search_citations": [{"url": "https://b"}]},
        },
        chat({"tool_calls": [{**_CUSTOM, "custom": {"name": "f", "input": "a"}}]}),
        chat({"tool_calls": [{"index": 0, "custom": {"input": "b"}}]}),
        chat({"tool_calls": [{**_CALL, "index": 1, "extra_content": {"google": {"thought_signature": "s"}}}]}),
        {"choices": [{"messages": [{"delta": {"role": "tool", "content": '{"citations": [{"url": "https://c"}]}'}}]}]},
        {"choices": [{"messages": [{"role": "assistant", "content": "Hi"}], "content_filter_result": {"error": {}}}]},
        chat({"provider_metadata": {"gateway": {"cost": "0.1"}}}, "stop", error={"code": 502, "message": "lost"}),
        {"choices": [], "usage": _USAGE, "cost": {"usd": 0.1}, "copilot_usage": {"total_nano_aiu": 1}},
        done=True,
    ),
    json.dumps({"id": "r", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}).encode(),
    sse(chat({"content": "Hi"})) + b'error: {"code":500,"message":"it broke","type":"server_error"}\n\n',
)

_TEXT_LOGPROBS = {"tokens": ["Hi"], "token_logprobs": [-0.1], "top_logprobs": [None], "text_offset": [0]}

COMPLETIONS = (
    sse(
        {"id": "r1", "model": "m", "choices": [{"text": "Hi", "index": 0, "logprobs": _TEXT_LOGPROBS}]},
        {"id": "r1", "choices": [{"text": " you", "index": 0, "finish_reason": "stop"}], "usage": _USAGE},
        done=True,
    ),
)


def _item(number: int, kind: str, /, **fields: Any) -> list[dict[str, Any]]:
    return _streamed(number, kind, "", [], **fields)


def _streamed(number: int, kind: str, name: str, deltas: list[Any], /, **fields: Any) -> list[dict[str, Any]]:
    place = {"output_index": number, "item_id": f"i{number}", "content_index": 0, "summary_index": 0}
    item = {"type": kind, "id": f"i{number}", **fields}
    return [
        {"type": "response.output_item.added", "output_index": number, "item": item},
        *({"type": f"response.{name}", **place, "delta": delta} for delta in deltas),
        {"type": "response.output_item.done", "output_index": number, "item": item},
    ]


_OUTPUT = {"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation", "url": "https://a"}]}
_RESPONSE = {"id": "r1", "model": "m", "status": "completed", "output": []}
_TOKENS = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8, "input_tokens_details": {"cached_tokens": 1}}

RESPONSES = (
    sse(
        {"type": "response.created", "response": _RESPONSE, "sequence_number": 0},
        *_streamed(
            0,
            "reasoning",
            "reasoning_summary_text.delta",
            ["Hm"],
            summary=[{"type": "summary_text", "text": "Hm"}],
            content=[{"type": "reasoning_text", "text": "So"}],
            encrypted_content="e",
        ),
        *_streamed(
            1,
            "message",
            "output_text.delta",
            ["Hi"],
            phase="final",
            content=[_OUTPUT, {"type": "refusal", "refusal": "No"}, {"type": "x"}],
        ),
        *_streamed(
            2,
            "function_call",
            "function_call_arguments.delta",
            ['{"a"', ": 1}"],
            call_id="c1",
            name="add",
            arguments='{"a": 1}',
            namespace="n",
        ),
        *_streamed(3, "custom_tool_call", "custom_tool_call_input.delta", ["x"], call_id="c2", name="f", input="x"),
        *_streamed(4, "web_search_call", "web_search_call.searching", [1], action={"sources": [{"url": "https://a"}]}),
        *_item(5, "image_generation_call", result=IMAGE, size="1x1", output_format="png", revised_prompt="p"),
        *_item(6, "code_interpreter_call", code="1", outputs=[{"type": "image", "url": "https://a"}]),
        *_item(7, "shell_call", call_id="c3", environment={"type": "container_auto"}, action={"commands": ["ls"]}),
        *_item(8, "function_call_output", call_id="c1", output="2"),
        {
            "type": "response.output_text.annotation.added",
            "item_id": "i1",
            "annotation": {"type": "url_citation", "url": "https://b", "start_index": 0},
        },
        {"type": "response.completed", "response": {**_RESPONSE, "usage": _TOKENS, "tool_usage": {"x": {"n": 1}}}},
        named=True,
    ),
    sse(
        {"type": "response.created", "response": _RESPONSE},
        {"type": "response.refusal.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "No"},
        {"type": "response.reasoning_text.delta", "item_id": "n", "delta": "Hm"},
        {
            "type": "response.incomplete",
            "response": {**_RESPONSE, "incomplete_details": {"reason": "max_output_tokens"}},
        },
    ),
    sse(
        {"type": "response.created", "response": _RESPONSE},
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}},
        },
    ),
    sse({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}, named=True),
    json.dumps({"object": "response", **_RESPONSE, "output": [{"type": "message", "content": [_OUTPUT]}]}).encode(),
)


def _block(index: int, block: Any, *deltas: Any) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


_COUNTED = {"input_tokens": 3, "cache_read_input_tokens": 1, "output_tokens": 1, "server_tool_use": {"searches": 1}}
_MESSAGE = {"id": "r1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": _COUNTED}
_WEB = {
    "type": "web_search_tool_result",
    "tool_use_id": "s",
    "content": [{"url": "https://a", "encrypted_content": "e"}],
}

ANTHROPIC = (
    sse(
        {"type": "message_start", "message": _MESSAGE},
        {"type": "ping"},
        *_block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm"},
            {"type": "signature_delta", "signature": "s"},
        ),
        *_block(1, {"type": "redacted_thinking", "data": "x"}),
        *_block(
            2,
            {"type": "text", "text": "", "citations": [{"type": "char_location", "cited_text": "x"}]},
            {"type": "text_delta", "text": "Hi"},
            {"type": "citations_delta", "citation": {"type": "web_search_result_location", "url": "https://a"}},
        ),
        *_block(
            3,
            {"type": "tool_use", "id": "c1", "name": "add", "input": {}, "caller": {"type": "direct"}},
            {"type": "input_json_delta", "partial_json": '{"a"'},
            {"type": "input_json_delta", "partial_json": ": 1}"},
        ),
        *_block(4, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}),
        *_block(5, _WEB, {"type": "odd_delta", "more": 1}),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": "x", "container": {"id": "k"}},
            "usage": {
                "output_tokens": 9,
                "iterations": [
                    {"type": "message", "input_tokens": 3, "output_tokens": 9},
                    {"type": "advisor_message", "model": "m", "input_tokens": 1, "output_tokens": 2},
                ],
            },
            "context_management": {"applied_edits": []},
        },
        {"type": "message_stop"},
        named=True,
    ),
    sse(
        {"type": "message_start", "message": _MESSAGE},
        {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}, "request_id": "q"},
        named=True,
    ),
    json.dumps({**_MESSAGE, "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}).encode(),
)


def _candidate(*parts: Any, **more: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"parts": list(parts)}, "index": 0, **more}],
        "responseId": "r",
        "modelVersion": "m",
    }


_GROUNDING = {
    "groundingChunks": [{"web": {"uri": "https://a", "title": "A"}}],
    "groundingSupports": [{"segment": {"endIndex": 3}, "groundingChunkIndices": [0]}],
}
_PARTIAL = [{"jsonPath": "$.at[0].city", "stringValue": "Par", "willContinue": True}]
_CHOSEN = {
    "chosenCandidates": [{"token": "Hi", "logProbability": -0.1, "tokenId": 1}],
    "topCandidates": [{"candidates": []}],
}

_GEMINI = (
    _candidate({"text": "Hm", "thought": True}),
    _candidate({"text": "So", "thought": True, "thoughtSignature": "s"}, {"text": "A", "thoughtSignature": "t"}),
    _candidate({"text": "Hi"}, logprobsResult=_CHOSEN, avgLogprobs=-0.1),
    _candidate({"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "s"}),
    _candidate({"functionCall": {"name": "at", "willContinue": True, "partialArgs": _PARTIAL}}),
    _candidate({"functionCall": {"partialArgs": [{"jsonPath": "$.days", "numberValue": 2}]}}),
    _candidate({"inlineData": {"mimeType": "image/png", "data": IMAGE}}, {"fileData": {"fileUri": "https://a"}}),
    _candidate({"executableCode": {"language": "PYTHON", "code": "1", "id": "e"}}),
    _candidate({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}, {"unknown": 1}),
    _candidate({"toolCall": {"toolType": "SEARCH", "id": "t", "args": {"q": 1}}}, {"toolResponse": {"id": "t"}}),
    _candidate(
        {"text": ""},
        groundingMetadata=_GROUNDING,
        citationMetadata={"citations": [{"uri": "https://b"}]},
        urlContextMetadata={"urlMetadata": [{"retrievedUrl": "https://c"}]},
    ),
    {
        **_candidate({"text": "."}, finishReason="STOP", finishMessage="done"),
        "usageMetadata": {
            "promptTokenCount": 3,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 2,
            "totalTokenCount": 10,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}],
        },
    },
)
_REFUSED = {
    "error": {
        "code": 429,
        "message": "slow",
        "status": "RESOURCE_EXHAUSTED",
        "details": [{"reason": "X"}, {"retryDelay": "34.5s"}],
    }
}

GEMINI = (
    sse(*_GEMINI),
    sse(
        _candidate({"text": "Hi"}, finishReason="MALFORMED_FUNCTION_CALL"),
        {"promptFeedback": {"blockReason": "SAFETY"}},
    ),
    sse(_candidate({"text": "Hi"}), _REFUSED),
    ("[" + ",\n".join(json.dumps(chunk) for chunk in _GEMINI) + "]").encode(),
)


def _line(message: Any = None, **more: Any) -> dict[str, Any]:
    return {"model": "m", **({"message": {"role": "assistant", **message}} if message is not None else {}), **more}


def ndjson(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


_ENDED = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 5, "total_duration": 9}

OLLAMA = (
    ndjson(
        _line({"thinking": "Hm", "content": ""}),
        _line({"content": "Hi"}, logprobs=[{"token": "Hi", "logprob": -0.1}]),
        _line({"tool_calls": [{"id": "c1", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}}]}),
        _line({"content": ""}, **_ENDED),
    ),
    ndjson(_line(response="Hi", thinking="Hm"), _line(response="", **_ENDED)),
    ndjson(_line({"content": "Hi"}), {"error": "the runner has stopped"}),
)
