"""Lines of Ollama's answers."""

from __future__ import annotations

from typing import Any

import msgspec

from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.collector import StreamCollector
from rxllm.events import (
    Event,
    UsageUpdated,
)
from rxllm.values import Response
from tests.wire.lawful import lawful


def line(content: str | None = None, *, done: bool = False, end: bytes = b"\n", **rest: Any) -> bytes:
    """A line of /api/chat; `thinking` and `tool_calls` go into its message."""
    held = {"content": content, "thinking": rest.pop("thinking", None), "tool_calls": rest.pop("tool_calls", None)}
    message = {"role": "assistant", **{name: value for name, value in held.items() if value is not None}}
    said = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": done, **rest}
    return msgspec.json.encode(said) + end


def call(name: str, arguments: Any, **rest: Any) -> dict[str, Any]:
    return {**rest, "function": {"name": name, "arguments": arguments}}


HI = line("Hi")
STOP = line("", done=True, done_reason="stop")


def decode(*reads: bytes) -> list[Event]:
    decoder = OllamaDecoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.close()


def said(body: bytes) -> tuple[list[Event], Response[Any]]:
    """The events but for usage and the last, and the response that they fold to, however the body is cut."""
    events = decode(body)
    lawful(events)
    assert decode(*(bytes([each]) for each in body)) == events
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return [event for event in events[:-1] if not isinstance(event, UsageUpdated)], state.to_response()
