"""What the tests of odd frames share."""

from __future__ import annotations

from typing import Any

from rxllm import Event, Request, TextDelta
from rxllm.testing.loopback import DONE, Reply, chat_event, chat_finish
from tests.wire.lawful import lawful


def decode(adapter: Any, *reads: bytes) -> list[Event]:
    decoder = adapter(api_key="k").decoder(Request())
    events = [event for read in reads for event in decoder.feed(read)] + decoder.close()
    lawful(events)
    return events


def calling(name: str, arguments: str = "{}") -> Reply:
    call = {"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments}}
    return Reply([chat_event({"tool_calls": [call]}), chat_finish("tool_calls"), DONE])


def text_of(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


def chat_frames(*deltas: Any) -> list[Any]:
    return [{"id": "r", "model": "m", "choices": [{"delta": delta}]} for delta in deltas]
