"""Chunks of OpenAI's chats, and what they are decoded to."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.collector import StreamCollector
from rxllm.values import Response, SourcePart
from tests.wire.lawful import lawful

DONE = b"data: [DONE]\n\n"


def chunk(delta: Any = None, finish: str | None = None, **rest: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    data = {"id": "r1", "model": "m", "object": "chat.completion.chunk", "choices": choices, **rest}
    return b"data: %b\n\n" % msgspec.json.encode(data)


def call(index: int | None, id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def calls(*entries: dict[str, Any]) -> bytes:
    return chunk({"tool_calls": list(entries)})


HI = chunk({"content": "Hi"})
STOP = chunk({}, "stop")


def decode(*reads: bytes, decoder: ChatDecoder | None = None):
    decoder = decoder or ChatDecoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.close()


def said(body: bytes, decoder: ChatDecoder | None = None):
    """The events but for the last, and the response that they fold to."""
    events = decode(body, decoder=decoder)
    lawful(events)
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return events[:-1], state.to_response()


def answer(choice: dict[str, Any], **more: Any) -> Response[Any]:
    body = {"id": "r1", "model": "m", "object": "chat.completion", "choices": [{"index": 0, **choice}], **more}
    decoder, state = ChatDecoder(), StreamCollector()
    for event in decoder.feed(msgspec.json.encode(body)) + decoder.close():
        state = state.apply_event(event)
    return state.to_response()


def whole(message: dict[str, Any], **more: Any) -> Response[Any]:
    return answer({"message": {"role": "assistant", **message}, "finish_reason": "stop", **more})


def sources(response: Response[Any]) -> list[dict[str, Any]]:
    return [part.source for part in response.message.parts if isinstance(part, SourcePart)]
