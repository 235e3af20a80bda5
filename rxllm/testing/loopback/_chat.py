"""The frames of OpenAI's chat dialect."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from rxllm.testing.loopback._script import Pause

DONE = b"data: [DONE]\n\n"


def chat_event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """A frame with one choice's `delta`; `more` are fields beside the choices, as ``usage=...``."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "loopback"}
    return b"data: " + json.dumps({**frame, "choices": [choice], **more}).encode() + b"\n\n"


def chat_chunk(text: str) -> bytes:
    return chat_event({"content": text})


def chat_finish(reason: str = "stop", **more: Any) -> bytes:
    return chat_event({}, reason, **more)


def chat(*texts: str) -> list[bytes]:
    """A whole response, with a chunk for each text."""
    return [*map(chat_chunk, texts), chat_finish(), DONE]


def endless(make: Callable[[int], bytes] | None = None, every: float = 0.0) -> Iterator[bytes | Pause]:
    """Frames without end, as fast as the client reads or one in `every` seconds; each reply needs its own.

    ``make(i)`` is a frame; without it the answer is the text ``"0 1 2 "`` and so on, a number in each frame.
    """
    make = make or (lambda i: chat_chunk(f"{i} "))
    for i in itertools.count():
        yield make(i)
        if every:
            yield Pause(every)
