"""JSON of one call, as it streams in as text, to the events of a tool call.

The JSON is ``{"name": "add", "arguments": {...}}``, in this order; what the arguments' object is followed by is held
back, because its last brace is not theirs. Text that never becomes a call stays text.
"""

from __future__ import annotations

import re

from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    TextCompleted,
    TextDelta,
    UsageUpdated,
)
from rxllm.runtime import Decoder
from rxllm.values import Request
from rxllm.wire.blocks import Blocks
from rxllm.wire.tool_calls import CallTracker

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"arguments"\s*:\s*')
_TAIL = re.compile(r"[\s}]*\Z")


class CallDecoder:
    """A decoder around one of the chat wire: the same, but that the text is a call."""

    def __init__(self, inner: Decoder, request: Request) -> None:
        self._inner = inner
        self._blocks = Blocks(CallTracker.after(request.messages))
        self._id = f"call_{sum(len(message.tool_calls) for message in request.messages)}"
        self._name: str | None = None
        self._held = ""
        self._begun = False  # whether some of the arguments have been said

    def feed(self, data: bytes) -> list[Event]:
        return self._turned(self._inner.feed(data))

    def close(self) -> list[Event]:
        return self._turned(self._inner.close())

    def _turned(self, events: list[Event]) -> list[Event]:
        for event in events:
            self._turn(event)
        return self._blocks.take()

    def _turn(self, event: Event) -> None:
        blocks = self._blocks
        match event:
            case MessageStarted(message=message):
                blocks.start(**message.metadata)
            case TextDelta(delta=delta):
                self._read(delta)
            case TextCompleted():
                pass
            case UsageUpdated(usage=usage):
                blocks.usage(usage)
            case RawChunk(kind=kind, data=data):
                blocks.raw(kind, data)
            case ErrorEvent(error=error):
                self._flush(whole=False)
                blocks.error(error)
            case MessageCompleted():
                self._flush(whole=event.finish_reason == "stop")
                blocks.finish(event.finish_reason, event.raw_finish_reason)
                blocks.note(event.metadata)
                blocks.end(over=True)
            case _:
                blocks.event(event)

    def _read(self, text: str) -> None:
        self._held += text
        if self._name is None:
            head = _HEAD.match(self._held)
            if head is None:
                return
            self._name, self._held = head[1], self._held[head.end() :]
            self._blocks.call(0, self._id, self._name, None)
        if not self._begun:
            self._held = self._held.lstrip()
        tail = _TAIL.search(self._held)
        self._say(tail.start() if tail else len(self._held))

    def _say(self, length: int) -> None:
        if length:
            self._begun = True
            self._blocks.call(0, self._id, None, self._held[:length])
            self._held = self._held[length:]

    def _flush(self, *, whole: bool) -> None:
        if self._name is None:
            self._blocks.text(self._held)
        else:
            self._say(len(self._held.rstrip().removesuffix("}").rstrip() if whole else self._held))
