"""Chunks of Gemini's answers, and what they are decoded to."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm import Engine
from rxllm.adapters.gemini import Gemini
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.collector import StreamCollector
from rxllm.events import (
    Event,
    MessageStarted,
)
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import (
    Message,
    Response,
)
from tests.wire.lawful import lawful

STARTED = MessageStarted(Message("assistant", metadata={"id": "r1", "model": "m"}))


def data(parts: Any = None, finish: Any = None, **rest: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {} if parts is None else {"content": {"parts": parts, "role": "model"}}
    candidate |= {} if finish is None else {"finishReason": finish}
    return {"candidates": [candidate | rest.pop("candidate", {})], "responseId": "r1", "modelVersion": "m", **rest}


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: %b\r\n\r\n" % msgspec.json.encode(chunk) for chunk in chunks)


def text(said: str) -> dict[str, Any]:
    return data([{"text": said}])


def call(name: str | None, args: Any = None, **rest: Any) -> dict[str, Any]:
    called = {"name": name, "args": args, **rest}
    return {"functionCall": {name: held for name, held in called.items() if held is not None}}


HI = text("Hi")
STOP = data([{"text": ""}], "STOP")


def decode(*reads: bytes) -> list[Event]:
    decoder = GeminiDecoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.close()


def said(body: bytes) -> tuple[list[Event], Response[Any]]:
    """The events but for the last, and the response that they fold to, however the body is cut."""
    events = decode(body)
    lawful(events)
    assert decode(*(bytes([each]) for each in body)) == events
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return events[:-1], state.to_response()


MODEL = "gemini-3-flash"


def model(server: Loopback) -> Engine:
    return Engine(Gemini(base_url=server.url), model=MODEL, retry=False)


def reply(*chunks: Any) -> Reply:
    return Reply([sse(chunk) for chunk in chunks])
