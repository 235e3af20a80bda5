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

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.values import AdapterError, FinishReason, Message, Usage
from rxllm.values._json import read_json
from rxllm.values._usage import whole
from rxllm.wire.blocks import Blocks
from rxllm.wire.frames import FrameDecoder
from rxllm.wire.ndjson import NDJSONDecoder
from rxllm.wire.sse import Frame
from rxllm.wire.tool_calls import CallTracker

PROVIDER = "ollama"

FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "load": "other", "unload": "other"}


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: dict[str, Any] | str | None = None


class CallEntry(msgspec.Struct, gc=False):
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[CallEntry] | None = None


class Line(msgspec.Struct, gc=False):
    message: Said | None = None
    response: str | None = None  # this and the next of /api/generate
    thinking: str | None = None
    logprobs: Any = None
    done: bool | None = None
    error: Any = None


class FirstLine(Line, gc=False):
    """Read until the model is known."""

    model: str | None = None


_FIRST = msgspec.json.Decoder(FirstLine)
_LINE = msgspec.json.Decoder(Line)
OWN = {"provider": PROVIDER}  # nothing is signed, but whose thinking it is decides whether it goes back
_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


class _Lines:
    """The lines as frames, all of one kind."""

    def __init__(self) -> None:
        self._lines = NDJSONDecoder()

    def feed(self, data: bytes) -> list[Frame]:
        return [("line", line) for line in self._lines.feed(data)]

    def close(self) -> list[Frame]:
        return [("line", line) for line in self._lines.close()]


class OllamaDecoder(FrameDecoder):
    """One response's bytes to events; `messages` are those it answers, `raw` asks for a ``RawChunk`` of every line."""

    def __init__(self, *, messages: Iterable[Message] = (), raw: bool = False) -> None:
        super().__init__(_Lines(), Blocks(CallTracker.after(messages)), _FIRST, provider=PROVIDER, raw=raw)
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


def to_usage(last: Mapping[str, Any]) -> Usage:
    """The counters of the last line, times in nanoseconds; of a prompt that was cached there is no count."""
    durations = {name: _count(last, name) for name in _DURATIONS}
    extra = {name: held for name, held in durations.items() if held is not None}
    return Usage(_count(last, "prompt_eval_count"), _count(last, "eval_count"), extra=extra)


def stream_error(payload: Mapping[str, Any]) -> AdapterError:
    """The error of a line: its words alone tell what it is, and where they do not, the server has failed."""
    error = provider_error(PROVIDER, payload)
    return error if error.reason != "unknown" else provider_error(PROVIDER, {"type": "server_error", **payload})


def _count(last: Mapping[str, Any], name: str) -> int | None:
    number = last.get(name)
    return int(number) if isinstance(number, str) and number.isdecimal() and len(number) < 19 else whole(number)
