"""The text of a reply, which is the JSON of one tool call, to the events of that call.

The JSON is ``{"name": "add", "arguments": {...}}``, in this order. Trailing braces are held back, because the last one
does not belong to the arguments. Text that never becomes a call stays text.
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
from rxllm.http import Decoder
from rxllm.values import Request
from rxllm.wire.event_order import Blocks
from rxllm.wire.tool_calls import CallTracker

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"arguments"\s*:\s*')
_TAIL = re.compile(r"[\s}]*\Z")


class CallDecoder:
    """Wraps a decoder of chat completions, and turns their text into a tool call."""

    def __init__(self, inner: Decoder, request: Request) -> None:
        self._inner = inner
        self._blocks = Blocks(CallTracker.after(request.messages))
        self._id = f"call_{sum(len(message.tool_calls) for message in request.messages)}"
        self._name: str | None = None
        self._text = ""
        self._begun = False  # whether some of the arguments have been reported

    def feed(self, data: bytes) -> list[Event]:
        return self._convert(self._inner.feed(data))

    def close(self) -> list[Event]:
        return self._convert(self._inner.close())

    def _convert(self, events: list[Event]) -> list[Event]:
        for event in events:
            self._read_event(event)
        return self._blocks.take()

    def _read_event(self, event: Event) -> None:
        blocks = self._blocks
        match event:
            case MessageStarted(message=message):
                blocks.start(**message.metadata)
            case TextDelta(delta=delta):
                self._read_text(delta)
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

    def _read_text(self, text: str) -> None:
        self._text += text
        if self._name is None:
            head = _HEAD.match(self._text)
            if head is None:
                return
            self._name, self._text = head[1], self._text[head.end() :]
            self._blocks.call(0, self._id, self._name, None)
        if not self._begun:
            self._text = self._text.lstrip()
        tail = _TAIL.search(self._text)
        self._report(tail.start() if tail else len(self._text))

    def _report(self, length: int) -> None:
        if length:
            self._begun = True
            self._blocks.call(0, self._id, None, self._text[:length])
            self._text = self._text[length:]

    def _flush(self, *, whole: bool) -> None:
        if self._name is None:
            self._blocks.text(self._text)
        else:
            self._report(len(self._text.rstrip().removesuffix("}").rstrip() if whole else self._text))
