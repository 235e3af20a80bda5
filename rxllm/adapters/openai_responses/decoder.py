"""The decoder for the Responses API, which streams typed deltas.

`ResponsesDecoder` itself ignores sequence numbers, because some servers repeat or omit them.

An event of steering, such as ``response.steer.accepted``, becomes a ``Custom`` event of that name. It does not change
the message: the server answers the user's input in a response of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters._usage_and_metadata import costs_beside, metadata_of, to_usage
from rxllm.adapters.openai_responses.frames import USAGE, Frame, Item, as_item, as_items, to_item
from rxllm.adapters.openai_responses.output import Handler, Output
from rxllm.events import Custom
from rxllm.values import AdapterError, FinishReason, LLMError, Message, StreamError
from rxllm.values.json_text import read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder
from rxllm.wire.framing import SSEDecoder
from rxllm.wire.lenient import Odd
from rxllm.wire.tool_calls import CallTracker

FINISH_REASONS: dict[str, FinishReason] = {
    "completed": "stop",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "max_messages": "length",
    "steered": "stop",  # at a boundary between items; the server continues with the user's message
    "content_filter": "content_filter",
    "failed": "error",
    "cancelled": "error",
}

NAMED = frozenset({"response.created", "response.queued", "response.in_progress"})
ENDED = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_HANDLERS: dict[str, Handler] = {
    "response.output_item.added": Output.on_item_added,
    "response.output_item.done": Output.on_item_done,
    "response.content_part.added": Output.on_part_added,
    "response.reasoning_part.added": Output.on_part_added,  # sent by vLLM
    "response.output_text.delta": Output.on_text,
    "response.output_text.done": Output.on_text_done,
    "response.output_text.annotation.added": Output.on_annotation,
    "response.refusal.delta": Output.on_refusal,
    "response.refusal.done": Output.on_text_done,
    "response.reasoning_summary_text.delta": Output.on_summary,
    "response.reasoning_text.delta": Output.on_thought,
    "response.function_call_arguments.delta": Output.on_arguments,
    "response.mcp_call_arguments.delta": Output.on_arguments,
    "response.custom_tool_call_input.delta": Output.on_input,
    "response.code_interpreter_call_code.delta": Output.on_code,
    "response.shell_call_command.added": Output.on_command,
    "response.shell_call_command.delta": Output.on_command,
    "response.shell_call_command.done": Output.on_command,
}

_SILENT = frozenset(
    {
        "response.content_part.done",
        "response.reasoning_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.function_call_arguments.done",
        "response.mcp_call_arguments.done",
        "response.custom_tool_call_input.done",
        "response.code_interpreter_call_code.done",
        "response.compaction.compacting",
    }
)
"""The types of frames that only repeat other frames."""

PINGS = frozenset({"keepalive", "response.keepalive", "ping"})
"""The types of frames that keep the connection open."""

CONTENT = _HANDLERS.keys() | _SILENT
"""The types of frames that are a part of the answer, apart from its first and last frames."""


class ResponsesDecoder(FrameDecoder):
    """Decodes one response. `offered` contains the names of the request's tools.

    If `raw` is true, the decoder also emits ``RawChunk`` events.
    """

    typed: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Frame)
    """The decoder for frames. A subclass can replace it to read more fields."""

    content = frozenset({"type", "delta"})

    def __init__(
        self,
        *,
        provider: str = "openai",
        messages: Iterable[Message] = (),
        offered: Collection[str] = (),
        raw: bool = False,
    ) -> None:
        super().__init__(SSEDecoder(), Blocks(CallTracker.after(messages)), self.typed, provider=provider, raw=raw)
        self._output = Output(self.blocks, provider, offered)

    def read(self, kind: str, frame: Frame, data: bytes, /) -> None:
        if not self.blocks.started or frame.type in NAMED:
            head = to_item(frame.response) if frame.type else as_item(read_json(data))
            self.blocks.start(id=head.get("id"), model=head.get("model"))
        if self.raw:
            self.blocks.raw(_raw_kind(frame), read_json(data))
        handler = _HANDLERS.get(frame.type)
        if handler is not None:
            self._output.receive(handler, frame, data)
        elif frame.type in ENDED:
            self._complete(to_item(frame.response), {"copilot_usage": frame.copilot_usage})
        elif frame.type not in NAMED and frame.type not in _SILENT and frame.type not in PINGS:
            self._read_other(kind, frame, read_json(data))

    def _read_other(self, kind: str, frame: Frame, fields: Item) -> None:
        if "error" not in (kind, frame.type) and fields.get("object") == "response":
            self.read_whole(fields)
        elif frame.type.startswith("response.steer."):
            self.blocks.aside(Custom(frame.type, _fields_of(fields)))
        elif "error" in (kind, frame.type) or fields.get("error"):
            self._fail_on(_fields_of(fields))
        elif not self._output.report_progress(frame, fields) and not self.raw:
            self.blocks.raw(_raw_kind(frame), fields)

    def read_whole(self, response: Item) -> None:
        """Read an answer that was not streamed. If the provider is still writing it, do nothing."""
        if not is_pending(response):
            self._complete(response, response)

    def _complete(self, response: Item, beside: Item) -> None:
        self.blocks.start(id=response.get("id"), model=response.get("model"))
        self._output.finish(as_items(response.get("output")))
        self.blocks.note(metadata_of(response.get("metadata")) | metadata_of(response))
        counted = response.get("usage")
        if not isinstance(counted, dict | None):
            self.report(Odd(("response", "usage"), counted, "an object"))
        counters = costs_beside(response) | costs_beside(beside) | as_item(counted)
        if counters:
            usage = to_usage(counters, USAGE)
            self.blocks.usage(replace(usage, tool_usage=as_item(response.get("tool_usage"))))
        status = str(response.get("status") or "completed")
        if status in ("failed", "cancelled") or response.get("error"):
            self._fail_on({"error": response.get("error") or {"message": f"response status: {status}", "code": status}})
            return
        reason = str(as_item(response.get("incomplete_details")).get("reason") or status)
        self.blocks.finish(FINISH_REASONS.get(reason, "other"), reason)
        self.blocks.end(over=True)

    def fail(self, error: LLMError) -> None:
        self._output.flush()
        super().fail(error)

    def end(self, *, over: bool) -> None:
        self._output.flush()
        super().end(over=over)

    def _fail_on(self, payload: Item) -> None:
        error = self.error_of(payload)
        cancelled = StreamError("cancelled", error.message, provider=self.provider)
        self.fail(cancelled if error.code == "cancelled" else error)

    def error_of(self, payload: Any) -> AdapterError:
        return provider_error(self.provider, payload)


def is_pending(response: Item) -> bool:
    """Return whether the provider is still writing `response`, which was not streamed."""
    is_whole = bool(response.get("output")) and response.get("background") is not True
    return response.get("status") in ("queued", "in_progress") and not is_whole


def _fields_of(fields: Item) -> Item:
    return {name: value for name, value in fields.items() if name not in ("type", "sequence_number")}


def _raw_kind(frame: Frame) -> str:
    # If a raw chunk had the kind "usage", its data would be read as counters.
    return frame.type if frame.type not in ("", "usage") else "chunk"
