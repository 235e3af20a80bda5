"""Frames of Anthropic's answers."""

from __future__ import annotations

from typing import Any

import msgspec

TEXT = {"type": "text", "text": ""}


def frame(type: str, **rest: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), msgspec.json.encode({"type": type, **rest}))


def begin(index: int, **block: Any) -> bytes:
    return frame("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **rest: Any) -> bytes:
    return frame("content_block_delta", index=index, delta={"type": kind, **rest})


def stop(index: int) -> bytes:
    return frame("content_block_stop", index=index)


def finish(reason: str | None = "end_turn", usage: Any = None, **rest: Any) -> bytes:
    return frame("message_delta", delta={"stop_reason": reason, **rest}, usage=usage)


def tool_use(index: int, id: str = "a", **rest: Any) -> bytes:
    return begin(index, type="tool_use", id=id, name="f", input={}, **rest)


def json_of(index: int, text: str) -> bytes:
    return delta(index, "input_json_delta", partial_json=text)


MESSAGE = {"id": "r1", "model": "m", "content": [], "stop_reason": None}
START = frame("message_start", message=MESSAGE)
PING = frame("ping")
END = frame("message_stop")
HI = begin(0, **TEXT) + delta(0, "text_delta", text="Hi") + stop(0)
CALL_A = tool_use(0) + json_of(0, '{"x": 1}') + stop(0)
