"""The chunks of Chat Completions, from OpenAI and the many servers that speak it, to events.

https://platform.openai.com/docs/api-reference/chat-streaming. What servers send, and what the decoder makes of it:

* only choice 0 is read; chunks without choices have usage, or nothing;
* thinking is the first non-empty of ``reasoning_content``, ``reasoning``, ``reasoning_details``: some servers send it
  twice;
* what is opaque in ``reasoning_details`` (signatures, ciphertext) is kept, to be sent back;
* a refusal is text, with the finish reason ``content_filter``;
* log-probabilities are in the completed message's metadata, those of thoughts by themselves, and so is what the server
  says about its answer, see ``_metadata``;
* ``message`` is read where there is no ``delta``, from a server that does not stream. Some send both, with all of the
  text so far in ``message``;
* an error inside the stream ends it; ``[DONE]`` ends it; a finish reason does not, but one that is a failure
  (``network_error``) makes the end an error;
* a chunk with unexpected types, or with no known field, is a ``RawChunk``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters._metadata import metadata_of, metadata_of_usage, most_severe
from rxllm.adapters._usage import to_usage
from rxllm.adapters.openai_chat.frames import (
    Choice,
    Chunk,
    Delta,
    FirstChunk,
    Function,
    audio_of,
    file_of,
    text_of,
    texts_of,
    to_logprobs,
)
from rxllm.adapters.openai_chat.usage import USAGE
from rxllm.values import AdapterError, FinishReason, Message
from rxllm.values._json import read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder, raw_kind
from rxllm.wire.sse import SSEDecoder
from rxllm.wire.tool_calls import CallTracker

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "error": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}
_FAILURES = {"network_error": "network_error", "insufficient_system_resource": "provider_unavailable"}
"""The reason of the ``AdapterError`` for finish reasons that are failures; of others it is unknown."""

_FIRST = msgspec.json.Decoder(FirstChunk)
_CHUNK = msgspec.json.Decoder(Chunk)
_NO_FUNCTION = Function()


class ChatDecoder(FrameDecoder):
    """Decode one response; `messages` are those it answers, `raw` asks for a ``RawChunk`` of every frame."""

    def __init__(self, *, provider: str = "openai", messages: Iterable[Message] = (), raw: bool = False) -> None:
        self._sse = SSEDecoder()
        super().__init__(self._sse, Blocks(CallTracker.after(messages)), _FIRST, provider=provider, raw=raw)
        self._usage: dict[str, Any] | None = None
        self._sources: set[str] = set()
        self._filters: dict[str, Any] = {}
        self._audio: dict[str, list[Any]] = {}

    def read(self, kind: str, chunk: Chunk, frame: bytes, /) -> None:
        if type(chunk) is FirstChunk:
            self.blocks.start(id=chunk.id, model=chunk.model)
            self.blocks.note(metadata_of(msgspec.structs.asdict(chunk)))
            if chunk.id and chunk.model:
                self._decode = _CHUNK.decode
        if self.raw:
            self.blocks.raw(raw_kind(kind), read_json(frame))
        if chunk.search_results or chunk.citations:
            self._read_sources(chunk)
        for choice in chunk.choices or ():
            if choice.index:
                continue
            if choice.delta is not None:
                self._read_delta(choice.delta)
            else:
                self._read_whole(choice)
            if choice.logprobs:
                for name, items in to_logprobs(choice.logprobs):
                    self.blocks.append(name, items)
            if choice.content_filter_results:
                self._read_filters(choice.content_filter_results)
            if choice.finish_reason:
                self._read_finish(choice.finish_reason, frame)
        if chunk.usage or chunk.x_groq:
            self._read_usage(chunk.usage or (chunk.x_groq or {}).get("usage"))
        if not chunk.choices:
            self.blocks.note(metadata_of(read_json(frame)))
        if chunk.error or kind == "error":
            self.fail(self.error_of(read_json(frame)))
        elif chunk.choices is None and not chunk.usage:
            self._read_unknown(kind, frame)

    def _read_finish(self, raw: str, frame: bytes) -> None:
        reason = FINISH_REASONS.get(raw.lower(), "other")
        chunk = read_json(frame)
        self.blocks.finish(reason, raw, _failure(self.provider, raw, chunk) if reason == "error" else None)
        for part in (chunk, *(choice for choice in chunk["choices"] if not choice.get("index"))):
            self.blocks.note(metadata_of(part))

    def _read_filters(self, verdicts: Any) -> None:
        if isinstance(verdicts, dict):
            self._filters = most_severe(self._filters, cast(dict[str, Any], verdicts))
            self.blocks.note({"content_filter_results": self._filters})

    def _read_whole(self, choice: Choice) -> None:
        if choice.message is not None:
            self._read_delta(choice.message)
            self._whole = self._sse.is_json
        elif choice.text:
            self.blocks.text(choice.text)

    def _read_usage(self, usage: Any) -> None:
        if isinstance(usage, dict) and usage and usage != self._usage:
            self._usage = cast(dict[str, Any], usage)
            self.blocks.usage(to_usage(self._usage, USAGE))
            self.blocks.note(metadata_of_usage(self._usage))

    def _read_unknown(self, kind: str, frame: bytes) -> None:
        data = read_json(frame)
        if data.get("object") == "error":
            self.fail(self.error_of(data))
        elif not self.raw and not data.keys() & {"choices", "object", "usage", "x_groq", "search_results", "citations"}:
            self.blocks.raw(raw_kind(kind), data)

    def _read_delta(self, delta: Delta) -> None:
        blocks = self.blocks
        thinking = delta.reasoning_content or delta.reasoning
        if thinking:
            blocks.thinking(thinking)
        if delta.reasoning_details:
            self._read_details(delta.reasoning_details, is_repeated=bool(thinking))
        content = delta.content
        if content:
            if isinstance(content, str):
                blocks.text(content)
            else:
                self._read_parts(content)
        if delta.tool_calls:
            for call in delta.tool_calls:
                function = call.function or _NO_FUNCTION
                blocks.call(call.index, call.id, function.name, function.arguments)
        if delta.function_call:
            blocks.call(0, None, delta.function_call.name, delta.function_call.arguments)
        if delta.refusal:
            blocks.refusal(delta.refusal)
        if delta.annotations or delta.images or delta.audio:
            self._read_attachments(delta)

    def _read_details(self, details: list[dict[str, Any]], *, is_repeated: bool) -> None:
        for detail in details:
            signature = text_of(detail.get("signature"))
            if not is_repeated:
                self.blocks.thinking(text_of(detail.get("text")) or text_of(detail.get("summary")))
            if signature or detail.get("data"):
                opaque = {k: v for k, v in detail.items() if k not in ("text", "summary")}
                self.blocks.sign(signature, {"reasoning_details": [opaque]})
                self.blocks.close_block()

    def _read_parts(self, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self.blocks.text(text)
                case {"type": "thinking", "thinking": str(text)}:
                    self.blocks.thinking(text)
                case {"type": "thinking", "thinking": list()}:
                    self.blocks.thinking(texts_of(part["thinking"]))
                case {"type": "image_url"}:
                    self.blocks.file(file_of(part))
                case {"type": "reference"}:
                    self.blocks.source(part)
                case _:
                    self.blocks.raw("content", part)

    def _read_attachments(self, delta: Delta) -> None:
        for annotation in delta.annotations or ():
            cited = annotation.get("url_citation")
            self._add_source({**annotation, **cited} if isinstance(cited, dict) else annotation)
        for image in delta.images or ():
            self.blocks.file(file_of(image))
        for name, value in (delta.audio or {}).items():
            self._audio.setdefault(name, []).append(value)

    def _read_sources(self, chunk: Chunk) -> None:
        for result in chunk.search_results or ():
            self._add_source(result)
        for citation in chunk.citations or ():
            self._add_source({"url": citation} if isinstance(citation, str) else citation)

    def _add_source(self, source: Any) -> None:
        if not isinstance(source, dict):
            return
        fields = {k: v for k, v in cast(dict[str, Any], source).items() if k != "url_citation"}
        key = repr([fields.get("url") or fields, fields.get("start_index"), fields.get("end_index")])
        if key not in self._sources:
            self._sources.add(key)
            self.blocks.source(fields)

    def end(self, *, over: bool) -> None:
        if self._audio:
            self.blocks.file(audio_of(self._audio))
            self._audio = {}
        super().end(over=over)

    def error_of(self, payload: Any) -> AdapterError:
        return provider_error(self.provider, payload)


def _failure(provider: str, raw: str, chunk: Mapping[str, Any]) -> AdapterError:
    # OpenRouter has the real reason in native_finish_reason.
    choices = cast(list[dict[str, Any]], chunk["choices"])
    natives = (choice["native_finish_reason"] for choice in choices if choice.get("native_finish_reason"))
    code = str(next(natives, raw))
    message = f"the answer ended with {code}"
    return AdapterError(_FAILURES.get(raw.lower(), "unknown"), message, provider=provider, code=code)
