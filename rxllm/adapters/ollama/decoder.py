"""The answers of Ollama's own API to events: of ``/api/chat``, and of ``/api/generate``.

https://docs.ollama.com/api/chat. One JSON object a line; ``/api/generate`` has text and thinking at the top of it. What
comes, and what is done:

* text and thinking come in pieces; a call comes whole, its arguments as an object. Its id is missing before version
  0.12.10, its ``index`` is 0 for all in some versions: each entry is a call of its own;
* the line with ``done`` is the end, and has the usage; without a ``done_reason`` (older servers) it means ``stop``;
* log-probabilities are in the completed message's metadata, those of thoughts by themselves;
* an ``error`` ends the stream: the model's runner has failed, unless its words say otherwise;
* a line of nothing known is a ``RawChunk``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from rxllm.adapters.ollama.errors import stream_error
from rxllm.adapters.ollama.frames import OWN, PROVIDER, FirstLine, Line, Lines, Said, to_usage
from rxllm.values import AdapterError, FinishReason, Message
from rxllm.values._json import read_json
from rxllm.wire.blocks import Blocks
from rxllm.wire.frames import FrameDecoder
from rxllm.wire.tool_calls import CallTracker

FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "load": "other", "unload": "other"}

_FIRST = msgspec.json.Decoder(FirstLine)
_LINE = msgspec.json.Decoder(Line)


class OllamaDecoder(FrameDecoder):
    """One response's bytes to events; `messages` are those it answers, `raw` asks for a ``RawChunk`` of every line."""

    def __init__(self, *, messages: Iterable[Message] = (), raw: bool = False) -> None:
        super().__init__(Lines(), Blocks(CallTracker.after(messages)), _FIRST, provider=PROVIDER, raw=raw)
        self._calls = 0

    def _read(self, kind: str, line: Line, frame: bytes, /) -> None:
        if type(line) is FirstLine:
            self._blocks.start(model=line.model)
            if line.model:
                self._decode = _LINE.decode
        if self.raw:
            self._blocks.raw(kind, read_json(frame))
        said = line.message
        if said is not None:
            self._read_said(said)
        if line.thinking:
            self._think(line.thinking)
        if line.response:
            self._blocks.text(line.response)
        logprobs = line.logprobs
        if logprobs and isinstance(logprobs, list):
            thinks = line.thinking or (said is not None and said.thinking and not said.content)
            self._blocks.append("reasoning_logprobs" if thinks else "logprobs", cast(list[Any], logprobs))
        if line.error:
            self._fail(self._error_of(read_json(frame)))
        elif line.done:
            self._read_end(frame)
        elif said is None and line.response is None and not line.thinking and not self.raw:
            self._blocks.raw(kind, read_json(frame))

    def _error_of(self, payload: Any) -> AdapterError:
        return stream_error(payload)

    def _read_said(self, said: Said) -> None:
        if said.thinking:
            self._think(said.thinking)
        if said.content:
            self._blocks.text(said.content)
        for entry in said.tool_calls or ():
            if entry.function is not None:
                self._blocks.call(self._calls, entry.id, entry.function.name, entry.function.arguments)
                self._blocks.complete_call(self._calls)
                self._calls += 1

    def _think(self, text: str) -> None:
        self._blocks.thinking(text)
        self._blocks.sign(provider_data=OWN)

    def _read_end(self, frame: bytes) -> None:
        last = read_json(frame)
        reason = str(last.get("done_reason") or "") or None
        usage = to_usage(last)
        self._blocks.usage(usage)
        self._blocks.note({"timings": usage.extra} if usage.extra else {})
        self._blocks.finish(FINISH_REASONS.get(reason, "other") if reason else "stop", reason)
        self._blocks.end(over=True)
