"""Decode the stream of ``/v2/chat``. See https://docs.cohere.com/v2/docs/streaming.

* ``message-start`` has the id.
* ``message-end`` has the usage and the finish reason, or the error. ``[DONE]`` may follow.
* Text and thinking arrive in ``content-delta``, between the start and the end of their block.
* The model's plan to use tools arrives in ``tool-plan-delta`` and becomes thinking. The next request returns plans and
  thinking to Cohere in different fields, so `provider_data` records which of the two a part is.
* Tool calls arrive in pieces. Each call has an index and its own end.
* Any other frame becomes a ``RawChunk``, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from rxllm import AdapterError, Message, Usage
from rxllm.adapters import provider_error
from rxllm.values import FinishReason
from rxllm.wire import Blocks, CallTracker, FrameDecoder, SSEDecoder

PROVIDER = "cohere"

PLAN = {"provider": PROVIDER, "kind": "tool_plan"}
THOUGHT = {"provider": PROVIDER, "kind": "thinking"}

FINISH_REASONS: dict[str, FinishReason] = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "TOOL_CALL": "tool_calls",
    "ERROR": "error",
    "TIMEOUT": "error",
}


class Content(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    id: str | None = None
    function: Function | None = None


class MessageDelta(msgspec.Struct):
    """A piece of the message, with only one field. In ``message-start`` all fields are present, as empty lists."""

    content: Content | list[Any] | None = None
    tool_plan: str | None = None
    tool_calls: ToolCall | list[Any] | None = None
    citations: dict[str, Any] | list[Any] | None = None


class Delta(msgspec.Struct):
    message: MessageDelta | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None
    error_type: str | None = None


class Frame(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    index: int | None = None
    delta: Delta | None = None


_FRAME = msgspec.json.Decoder(Frame)


class CohereDecoder(FrameDecoder):
    """Decode one response to `messages`. `Blocks` makes events from its parts and keeps them in order."""

    def __init__(self, messages: Iterable[Message] = (), *, raw: bool = False) -> None:
        blocks = Blocks(CallTracker.after(messages))
        super().__init__(SSEDecoder(), blocks, _FRAME, provider=PROVIDER, raw=raw)

    def read(self, kind: str, frame: Frame, data: bytes) -> None:
        self.blocks.start(id=frame.id)
        if self.raw:
            self.blocks.raw(frame.type or kind, msgspec.json.decode(data))
        delta = frame.delta or Delta()
        match frame.type:
            case "message-start" | "citation-end":
                pass
            case "content-start" | "content-delta" | "tool-plan-delta" | "tool-call-start" | "tool-call-delta":
                if frame.type == "content-start":
                    self.blocks.close_block()  # ends a plan, for which Cohere sends no end
                self._read_message(delta.message or MessageDelta(), frame.index)
            case "citation-start" if delta.message and isinstance(delta.message.citations, dict):
                self.blocks.source(delta.message.citations)
            case "content-end":
                self.blocks.close_block()
            case "tool-call-end" if frame.index is not None:
                self.blocks.complete_call(frame.index)
            case "message-end":
                self._read_end(delta)
            case _ if not self.raw:
                self.blocks.raw(frame.type or kind, msgspec.json.decode(data))

    def _read_message(self, message: MessageDelta, index: int | None) -> None:
        if isinstance(message.content, Content):
            self.blocks.text(message.content.text or "")
            self._read_thinking(message.content.thinking, THOUGHT)
        self._read_thinking(message.tool_plan, PLAN)
        if isinstance(message.tool_calls, ToolCall):
            function = message.tool_calls.function or Function()
            self.blocks.call(index, message.tool_calls.id, function.name, function.arguments)

    def _read_thinking(self, text: str | None, kind: Mapping[str, Any]) -> None:
        if text:
            self.blocks.thinking(text)
            self.blocks.sign(provider_data=kind)

    def _read_end(self, delta: Delta) -> None:
        if delta.usage:
            self.blocks.usage(_usage(delta.usage))
        reason = delta.finish_reason or "COMPLETE"
        if FINISH_REASONS.get(reason) == "error" or delta.error:
            self.fail(self.error_of({"message": delta.error or reason, "type": delta.error_type or reason}))
        else:
            self.blocks.finish(FINISH_REASONS.get(reason, "other"), reason)

    def error_of(self, payload: Any) -> AdapterError:
        return provider_error(PROVIDER, payload)


def _usage(usage: Mapping[str, Any]) -> Usage:
    tokens = usage.get("tokens") or {}
    return Usage(
        input_tokens=_count(tokens, "input_tokens"),
        output_tokens=_count(tokens, "output_tokens"),
        cached_input_tokens=_count(usage, "cached_tokens"),
        reasoning_tokens=_count(tokens, "reasoning_tokens"),
        extra={"billed_units": usage["billed_units"]} if usage.get("billed_units") else {},
    )


def _count(counters: Mapping[str, Any], name: str) -> int | None:
    number = counters.get(name)
    return int(number) if isinstance(number, int | float) else None
