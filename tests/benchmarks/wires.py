"""What the wires' servers would send: whole answers of a given number of deltas, frame by frame.

The frames are as long as the providers' own are, with the fields that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

WIRES = ("chat", "responses", "anthropic", "gemini", "ollama")
KINDS = ("text", "thinking", "tool")
WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " a", " lazy", " dog", ".")
USAGE = {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}


@cache
def answer(wire: str, kind: str, count: int) -> tuple[bytes, ...]:
    """The frames of an answer of `count` deltas of a `kind`, which only chat and anthropic know besides text."""
    return tuple(_WRITERS[wire](kind, _deltas(kind, count)))


def text(kind: str, count: int) -> str:
    """What the deltas of `answer` say together."""
    return "".join(_deltas(kind, count))


def adapter(wire: str, **arguments: Any) -> Any:
    """rxllm's own adapter for a wire."""
    import rxllm

    names = {"chat": "OpenAIChat", "responses": "OpenAIResponses", "ollama": "Ollama"}
    return getattr(rxllm, names.get(wire, wire.title()))(api_key="sk-benchmark", **arguments)


def chat_frame(content: str) -> bytes:
    """A frame of the chat wire with one delta of text."""
    return _chat({"content": content})


def _deltas(kind: str, count: int) -> list[str]:
    words = [WORDS[i % len(WORDS)] for i in range(count)]
    if kind == "tool":  # the arguments of one call
        words[0], words[-1] = '{"text": "' + words[0], words[-1] + '"}'
    if kind == "paragraphs":
        words[59::60] = [".\n\n"] * len(words[59::60])
    return words


def _sse(data: dict[str, Any], event: str | None = None) -> bytes:
    name = b"" if event is None else b"event: %b\n" % event.encode()
    return name + b"data: " + _json(data) + b"\n\n"


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _chat(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return _sse({**_CHAT, "choices": [choice], "usage": None})


_CHAT = {
    "id": "chatcmpl-CtNqfXdF0sYZ7Lf1p3u8wVbKe2aQh",
    "object": "chat.completion.chunk",
    "created": 1763769600,
    "model": "gpt-4o-mini-2024-07-18",
    "service_tier": "default",
    "system_fingerprint": "fp_560af6e559",
}


def _write_chat(kind: str, deltas: list[str]) -> Iterator[bytes]:
    yield _chat({"role": "assistant", "content": ""})
    if kind == "tool":
        called = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "note", "arguments": ""}}
        yield _chat({"tool_calls": [called]})
    for delta in deltas:
        yield _chat(_CHAT_DELTAS[kind](delta))
    yield _chat({}, "tool_calls" if kind == "tool" else "stop")
    yield _sse({**_CHAT, "choices": [], "usage": USAGE})
    yield b"data: [DONE]\n\n"


_CHAT_DELTAS: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda delta: {"content": delta},
    "paragraphs": lambda delta: {"content": delta},
    "thinking": lambda delta: {"reasoning_content": delta},
    "tool": lambda delta: {"tool_calls": [{"index": 0, "function": {"arguments": delta}}]},
}


def _write_responses(kind: str, deltas: list[str]) -> Iterator[bytes]:
    item = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    response = {"id": "resp_1", "object": "response", "model": "gpt-4o-mini", "status": "in_progress", "output": []}
    whole = "".join(deltas)
    content = [{"type": "output_text", "text": whole, "annotations": []}]
    done = {**item, "status": "completed", "content": content}
    usage = {"input_tokens": 9, "output_tokens": 12, "total_tokens": 21}
    ended = {**response, "status": "completed", "output": [done], "usage": usage}
    said = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *({"type": "response.output_text.delta", **place, "delta": delta, "logprobs": []} for delta in deltas),
        {"type": "response.output_text.done", **place, "text": whole},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": ended},
    ]
    for number, data in enumerate(said):
        yield _sse({**data, "sequence_number": number}, data["type"])


def _write_anthropic(kind: str, deltas: list[str]) -> Iterator[bytes]:
    block, make = _BLOCKS[kind]
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    said = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": make(delta)} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use" if kind == "tool" else "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 12},
        },
        {"type": "message_stop"},
    ]
    for data in said:
        yield _sse(data, data["type"])


_BLOCKS: dict[str, tuple[dict[str, Any], Callable[[str], dict[str, Any]]]] = {
    "text": ({"type": "text", "text": ""}, lambda delta: {"type": "text_delta", "text": delta}),
    "thinking": (
        {"type": "thinking", "thinking": "", "signature": ""},
        lambda delta: {"type": "thinking_delta", "thinking": delta},
    ),
    "tool": (
        {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {}},
        lambda delta: {"type": "input_json_delta", "partial_json": delta},
    ),
}


def _write_gemini(kind: str, deltas: list[str]) -> Iterator[bytes]:
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 12, "totalTokenCount": 21}
    for number, delta in enumerate(deltas, 1):
        said = {"content": {"parts": [{"text": delta}], "role": "model"}, "index": 0}
        ended = {"finishReason": "STOP"} if number == len(deltas) else {}
        named = {"usageMetadata": usage, "modelVersion": "gemini-2.5-flash", "responseId": "r1"}
        yield _sse({"candidates": [said | ended], **named})


def _write_ollama(kind: str, deltas: list[str]) -> Iterator[bytes]:
    named = {"model": "llama3.2", "created_at": "2026-01-01T12:00:00.123456Z"}
    for delta in deltas:
        yield _json({**named, "message": {"role": "assistant", "content": delta}, "done": False}) + b"\n"
    counted = {"total_duration": 5191566416, "prompt_eval_count": 9, "eval_count": 12}
    message = {"role": "assistant", "content": ""}
    yield _json({**named, "message": message, "done": True, "done_reason": "stop", **counted}) + b"\n"


_WRITERS: dict[str, Callable[[str, list[str]], Iterator[bytes]]] = {
    "chat": _write_chat,
    "responses": _write_responses,
    "anthropic": _write_anthropic,
    "gemini": _write_gemini,
    "ollama": _write_ollama,
}
