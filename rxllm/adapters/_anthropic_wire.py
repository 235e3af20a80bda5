"""The frames of Anthropic's Messages API, and of the servers that speak it, to events.

https://platform.claude.com/docs/en/build-with-claude/streaming. What is done with them besides the blocks:

* usage is cumulative: ``message_delta`` replaces what ``message_start`` said, name by name, and null says nothing;
* ``message_stop`` ends the stream, and so does an error; a stop reason does not;
* a stop reason's details, and the container that the next request must name, are metadata;
* pings are skipped; a frame of an unknown type, or of unexpected types, is a ``RawChunk``;
* a message as one JSON document is that of a server that does not stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from rxllm.adapters._anthropic_blocks import Content
from rxllm.adapters._anthropic_errors import anthropic_error
from rxllm.adapters._anthropic_frames import FINISH_REASONS, Delta, Frame, MessageFrame, to_usage
from rxllm.adapters._metadata import metadata_of
from rxllm.values import AdapterError, LLMError, Message
from rxllm.values._json import read_json
from rxllm.wire.blocks import Blocks
from rxllm.wire.frames import FrameDecoder, raw_kind
from rxllm.wire.sse import SSEDecoder
from rxllm.wire.tool_calls import CallTracker

_FRAME = msgspec.json.Decoder(Frame)


class MessagesDecoder(FrameDecoder):
    """One response's bytes to events; `messages` are those it answers, `raw` asks for a ``RawChunk`` of every frame."""

    def __init__(self, *, provider: str = "anthropic", messages: Iterable[Message] = (), raw: bool = False) -> None:
        super().__init__(SSEDecoder(), Blocks(CallTracker.after(messages)), _FRAME, provider=provider, raw=raw)
        self._content = Content(self._blocks, provider)
        self._usage: dict[str, Any] = {}

    def _read_unfit(self, kind: str, data: Any, frame: bytes) -> None:
        super()._read_unfit(kind, data, frame)
        if isinstance(data, dict) and cast(dict[str, Any], data).get("type") == "error":
            self._fail(self._error_of(data))

    def _read_plain(self, kind: str, text: str) -> None:
        if kind != "ping":
            super()._read_plain(kind, text)

    def _read(self, kind: str, frame: Frame, data: bytes, /) -> None:
        named = frame.type if frame.type and kind != "error" else kind
        if named == "content_block_delta" and frame.delta is not None and not self.raw:
            if not self._content.add(frame.index, frame.delta):
                self._read_unknown(named, frame, data)
        elif named != "ping":
            self._read_other(named, frame, data)

    def _read_other(self, named: str, frame: Frame, data: bytes) -> None:
        message = frame if frame.type == "message" else frame.message
        if message is not None:
            self._blocks.start(id=message.id, model=message.model)
            self._blocks.note(metadata_of({"provider": message.provider}))
        if self.raw:
            self._blocks.raw(raw_kind(named), read_json(data))
        match named:
            case "content_block_delta" if frame.delta is not None and self._content.add(frame.index, frame.delta):
                pass
            case "content_block_start" if frame.content_block is not None:
                self._content.start(frame.index, frame.content_block)
            case "content_block_stop":
                self._content.stop(frame.index)
            case "message_start" | "message" if message is not None:
                self._read_message(message)
                self._whole = message is frame
            case "message_delta":
                self._finish(frame.usage, frame.delta)
                if frame.context_management:
                    self._blocks.note({"context_management": frame.context_management})
            case "message_stop":
                self._end(over=True)
            case _:
                self._read_unknown(named, frame, data)

    def _read_unknown(self, named: str, frame: Frame, data: bytes) -> None:
        held = read_json(data)
        if named == "error" or frame.error:
            self._fail(self._error_of(held))
        elif frame.delta is not None and self._content.add_odd(frame.index, held["delta"]):
            pass
        elif not self.raw:
            self._blocks.raw(raw_kind(named), held)

    def _read_message(self, message: MessageFrame) -> None:
        for index, block in enumerate(message.content or ()):
            self._content.start(index, block)
            self._content.stop(index)
        self._finish(message.usage, message)

    def _finish(self, usage: dict[str, Any] | None, said: MessageFrame | Delta | None) -> None:
        counted = {name: held for name, held in (usage or {}).items() if held is not None}
        if counted:
            self._usage |= counted
            self._blocks.usage(to_usage(self._usage))
            self._blocks.note(metadata_of(self._usage))
        if said is None:
            return
        if said.stop_reason:
            self._blocks.finish(FINISH_REASONS.get(said.stop_reason, "other"), said.stop_reason)
        noted = {"stop_sequence": said.stop_sequence, "stop_details": said.stop_details, "container": said.container}
        self._blocks.note({name: held for name, held in noted.items() if held})
        if said.container:
            self._blocks.start(**{f"{self.provider}_container": said.container.get("id")})

    def _fail(self, error: LLMError) -> None:
        self._content.flush()
        super()._fail(error)

    def _end(self, *, over: bool) -> None:
        self._content.flush()
        super()._end(over=over)

    def _error_of(self, payload: Any) -> AdapterError:
        return anthropic_error(self.provider, payload)
