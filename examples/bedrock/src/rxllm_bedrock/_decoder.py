"""Decode the stream of ConverseStream: frames of AWS's binary event stream, each with one JSON object.

See https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html.

* ``contentBlockStart`` begins a tool call, or a call or result of a server tool. Text and thinking can do without it.
* ``messageStop`` has the stop reason. ``metadata``, with the usage, follows.
* A failure after the status 200 is a frame with the name of an exception.
* What the server's tools do becomes a ``ProviderPart``, to be sent back. Unknown events become ``RawChunk``s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from botocore.eventstream import EventStreamBuffer, EventStreamMessage
from rxllm import AdapterError, Message, Usage
from rxllm.adapters import provider_error
from rxllm.values import FinishReason, ProviderPart
from rxllm.wire import Blocks, CallTracker, Frame, FrameDecoder

PROVIDER = "bedrock"

FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}

_FAILED = "exception: "
"""The beginning of a frame's kind if it reports an exception. The exception's name follows."""


class EventStreamFraming:
    """Splits bytes into frames. botocore checks their checksums, and accepts at most 24 MB a frame."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()
        self._failure: Exception | None = None

    def feed(self, data: bytes) -> list[Frame]:
        frames = self.close()
        self._buffer.add_data(data)
        try:
            for message in self._buffer:
                frames.append(_frame(message))
        except Exception as error:
            self._failure = error
        return frames or self.close()

    def close(self) -> list[Frame]:
        """Raise the error that followed the last frames, if there was one."""
        if self._failure is not None:
            raise self._failure
        return []


def _frame(message: EventStreamMessage) -> Frame:
    headers = message.headers
    match headers.get(":message-type"):
        case "exception":
            return f"{_FAILED}{headers.get(':exception-type')}", message.payload or b"{}"
        case "error":
            return f"{_FAILED}{headers.get(':error-code')}", msgspec.json.encode(headers.get(":error-message"))
        case _:
            return str(headers.get(":event-type")), message.payload


class ConverseDecoder(FrameDecoder):
    """Decode one response to `messages`."""

    def __init__(self, messages: Iterable[Message] = (), *, raw: bool = False) -> None:
        blocks, typed = Blocks(CallTracker.after(messages)), msgspec.json.Decoder()
        super().__init__(EventStreamFraming(), blocks, typed, provider=PROVIDER, raw=raw)
        self._calls: set[int] = set()
        self._server: dict[int, dict[str, Any]] = {}  # open blocks of the server's tools

    def read(self, kind: str, event: Any, data: bytes) -> None:
        if kind.startswith(_FAILED):
            self.fail(with_name(self.error_of(event), kind.removeprefix(_FAILED)))
            return
        self.blocks.start()
        if self.raw:
            self.blocks.raw(kind, event)
        match kind, event:
            case "messageStart", _:
                pass
            case "contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": dict(call)}}:
                self._start_call(index, call)
            case "contentBlockStart", {"contentBlockIndex": index, "start": {"toolResult": dict(result)}}:
                self._server[index] = {"toolResult": {**result, "content": []}}
            case "contentBlockDelta", {"contentBlockIndex": index, "delta": dict(delta)} if self._add(index, delta):
                pass
            case "contentBlockStop", {"contentBlockIndex": index}:
                self._stop(index)
            case "messageStop", {"stopReason": str(stop)}:
                self._finish(stop, event)
            case "metadata", dict():
                if counters := event.get("usage"):
                    self.blocks.usage(_usage(counters))
                self.blocks.note({name: event[name] for name in ("metrics", "trace", "serviceTier") if name in event})
            case _ if not self.raw:
                self.blocks.raw(kind, event)

    def _start_call(self, index: int, call: dict[str, Any]) -> None:
        if call.get("type") == "server_tool_use":
            self.blocks.close_block()
            self._server[index] = {"toolUse": {**call, "input": ""}}
        else:
            self._calls.add(index)
            self.blocks.call(index, call["toolUseId"], call["name"], None)

    def _add(self, index: int, delta: dict[str, Any]) -> bool:
        """Report a delta. Return False if its kind is unknown."""
        match delta:
            case {"text": text}:
                self.blocks.text(text)
            case {"toolUse": {"input": piece}} if index in self._server:
                self._server[index]["toolUse"]["input"] += piece
            case {"toolUse": {"input": piece}}:
                self.blocks.call(index, None, None, piece)
            case {"toolResult": list(items)} if index in self._server:
                self._server[index]["toolResult"]["content"] += items
            case {"reasoningContent": {"text": text}}:
                self.blocks.thinking(text)
            case {"reasoningContent": {"signature": str(signature)}}:
                self.blocks.sign(signature, {"provider": PROVIDER})
            case {"reasoningContent": {"redactedContent": redacted}}:
                self.blocks.sign(None, {"provider": PROVIDER, "redactedContent": redacted})
            case {"citation": dict(citation)}:
                self.blocks.source(citation)
            case _:
                return False
        return True

    def _stop(self, index: int) -> None:
        self.blocks.close_block()
        if index in self._calls:
            self.blocks.complete_call(index)
        if block := self._server.pop(index, None):
            if call := block.get("toolUse"):
                call["input"] = msgspec.json.decode(call["input"] or "{}")
            self.blocks.part(ProviderPart(PROVIDER, block))

    def _finish(self, stop: str, event: dict[str, Any]) -> None:
        reason, failure = FINISH_REASONS.get(stop, "other"), None
        if reason == "error":
            failure = AdapterError("malformed_response", f"the model's output is malformed: {stop}", provider=PROVIDER)
        self.blocks.finish(reason, stop, failure)
        if fields := event.get("additionalModelResponseFields"):
            self.blocks.note({"additional_fields": fields})

    def error_of(self, payload: Any) -> AdapterError:
        return provider_error(PROVIDER, payload)


def with_name(error: AdapterError, name: str) -> AdapterError:
    """Return `error` with the `name` of AWS's exception as its code, and the reason that the name stands for."""
    error.code = name or error.code
    match name.lower().removesuffix("exception"):
        case "internalserver" | "modelerror" | "modelnotready" | "modelstreamerror" | "serviceunavailable":
            error.reason = "provider_unavailable"
        case "servicequotaexceeded" | "throttling":
            error.reason = "rate_limited"
        case "modeltimeout":
            error.reason = "timeout"
        case "validation" if error.reason == "unknown":
            error.reason = "invalid_request"
    return error


def _usage(counters: Mapping[str, Any]) -> Usage:
    names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "totalTokens")
    counts = {name: count for name, count in counters.items() if isinstance(count, int)}
    uncached, output, cached, written, total = map(counts.get, names)
    # Bedrock's inputTokens excludes the tokens of the cache; those of `Usage` include them.
    included = None if uncached is None else uncached + (cached or 0) + (written or 0)
    rest = {name: count for name, count in counters.items() if count and name not in names}
    return Usage(included, output, cached, written, total_tokens=total, extra=rest)
