"""The decoder for ``/api/chat`` and ``/api/generate``, which are part of Ollama's own API.

See https://docs.ollama.com/api/chat. Each line is a JSON object. The rules are:

* Text and thinking arrive in pieces. ``/api/generate`` sends them as top-level fields.
* Each tool call arrives as a whole. Each entry in ``tool_calls`` is treated as a new call, because old versions send no
  ids, or give every call the same ``index``.
* The last line has ``done``. If ``done_reason`` is missing, the finish reason is ``stop``.
* Log-probabilities become metadata.
* An ``error`` ends the stream.
* A line of an unknown kind becomes a ``RawChunk``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters._usage_and_metadata import REFUSALS
from rxllm.adapters.ollama.frames import OWN, PROVIDER, FirstLine, Line, MessageDelta, to_usage
from rxllm.values import AdapterError, FinishReason, Message
from rxllm.values.json_text import read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder
from rxllm.wire.framing import NDJSONFraming
from rxllm.wire.tool_calls import CallTracker

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "load": "other",
    "unload": "other",
    **REFUSALS,
}

_FIRST = msgspec.json.Decoder(FirstLine)
_LINE = msgspec.json.Decoder(Line)


class OllamaDecoder(FrameDecoder):
    """Decodes one response. If `raw` is true, the decoder also emits ``RawChunk`` events."""

    content = frozenset({"message", "response", "thinking", "content", "tool_calls", "function", "name", "arguments"})

    def __init__(self, *, messages: Iterable[Message] = (), raw: bool = False) -> None:
        super().__init__(NDJSONFraming(), Blocks(CallTracker.after(messages)), _FIRST, provider=PROVIDER, raw=raw)
        self._calls = 0

    def read(self, kind: str, line: Line, frame: bytes, /) -> None:
        if type(line) is FirstLine:
            self.blocks.start(model=line.model)
            if line.model:
                self._decode = _LINE.decode
        if self.raw:
            self.blocks.raw(kind, read_json(frame))
        delta = line.message
        if delta is not None:
            self._read_message(delta)
        if line.thinking:
            self._read_thinking(line.thinking)
        if line.response:
            self.blocks.text(line.response)
        logprobs = line.logprobs
        if logprobs and isinstance(logprobs, list):
            thinks = line.thinking or (delta is not None and delta.thinking and not delta.content)
            self.blocks.append("reasoning_logprobs" if thinks else "logprobs", cast(list[Any], logprobs))
        if line.error:
            self.fail(self.error_of(read_json(frame)))
        elif line.done:
            self._read_end(frame)
        elif delta is None and line.response is None and not line.thinking and not self.raw:
            self.blocks.raw(kind, read_json(frame))

    def error_of(self, payload: Any) -> AdapterError:
        error = provider_error(PROVIDER, payload)
        return error if error.reason != "unknown" else provider_error(PROVIDER, {"type": "server_error", **payload})

    def _read_message(self, delta: MessageDelta) -> None:
        if delta.thinking:
            self._read_thinking(delta.thinking)
        if delta.content:
            self.blocks.text(delta.content)
        for entry in delta.tool_calls or ():
            function = entry.function or entry
            if function.name or function.arguments:
                self.blocks.call(self._calls, entry.id, function.name, function.arguments)
                self.blocks.complete_call(self._calls)
                self._calls += 1

    def _read_thinking(self, text: str) -> None:
        self.blocks.thinking(text)
        self.blocks.sign(provider_data=OWN)

    def _read_end(self, frame: bytes) -> None:
        last = read_json(frame)
        reason = str(last.get("done_reason") or "") or None
        usage = to_usage(last)
        self.blocks.usage(usage)
        self.blocks.note({"timings": usage.extra} if usage.extra else {})
        self.blocks.finish(FINISH_REASONS.get(reason, "other") if reason else "stop", reason)
        self.blocks.end(over=True)
