"""The answer of Gemini's ``streamGenerateContent`` to events.

https://ai.google.dev/api/generate-content and https://ai.google.dev/gemini-api/docs/thought-signatures. It is an event
stream (``?alt=sse``) or a JSON array of the same chunks; its first byte tells. What comes, and what is done:

* only candidate 0 is read; there is no end marker but the array's ``]``, and content may follow a finish reason;
* a call comes whole, or value by value (``partialArgs``); most have no id, and none is made of the name;
* a ``thoughtSignature`` goes back with the part it came with: a call's is in its metadata, a file's in the file; that
  of text or thinking ends its part, so that signed and unsigned text are never joined, and is a thinking block whose
  `provider_data` says what it signs;
* code execution and other tools of the server are calls with the metadata ``{"server": True}``, complete when their
  result has come; ``"parts"`` there goes back verbatim;
* grounding, citations and read URLs are sources; all of the grounding is in the completed message's metadata;
* a prompt that is blocked ends as ``content_filter``; usage is a snapshot, and the last one counts;
* an error inside the stream ends it; a chunk or a part of nothing known is a ``RawChunk``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._gemini_chunks import (
    COUNTERS,
    FINISH_REASONS,
    Candidate,
    Chunk,
    FirstChunk,
    FunctionCall,
    Part,
    PartialArguments,
    to_usage,
)
from rxllm.adapters._gemini_sources import sources_of
from rxllm.adapters._http_errors import provider_error
from rxllm.events import Event
from rxllm.values import LLMError, Message, StreamError
from rxllm.wire.blocks import Blocks
from rxllm.wire.json_array import JSONArrayDecoder
from rxllm.wire.sse import BOM, SSEDecoder
from rxllm.wire.tool_calls import CallTracker

PROVIDER = "google"

_FIRST = msgspec.json.Decoder(FirstChunk)
_CHUNK = msgspec.json.Decoder(Chunk)
_KNOWN = {"candidates", "usageMetadata", "promptFeedback", "modelVersion", "responseId", "createTime"}


class GeminiDecoder:
    """One response's bytes to events; `messages` are those it answers, `raw` asks for a ``RawChunk`` of every chunk."""

    def __init__(self, *, messages: Iterable[Message] = (), raw: bool = False) -> None:
        self.raw = raw
        self._frames = _Frames()
        self._blocks = Blocks(CallTracker.after(messages))
        self._decode: Any = _FIRST.decode
        self._usage: dict[str, Any] | None = None
        self._calls = 0  # so far; a call's number is its index
        self._partial: tuple[int, PartialArguments] | None = None
        self._server: dict[str, tuple[int, dict[str, Any]]] = {}  # the server's calls without a result, by id
        self._sources: set[str] = set()
        self._grounding: dict[str, Any] = {}

    def feed(self, data: bytes) -> list[Event]:
        try:
            frames = self._frames.feed(data)
        except StreamError as error:
            self._fail(error)
            frames = []
        for kind, frame in frames:
            self._read(kind, frame)
        if self._frames.ended:
            self._end(over=True)
        return self._blocks.take()

    def close(self) -> list[Event]:
        try:
            frames = self._frames.close()
        except StreamError as error:
            self._fail(error)
            frames = []
        for kind, frame in frames:
            self._read(kind, frame)
        self._end(over=False)
        return self._blocks.take()

    def _read(self, kind: str, frame: bytes) -> None:
        if self._blocks.ended:
            return
        try:
            chunk: Chunk = self._decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._read_odd(kind, frame)
        else:
            self._read_chunk(kind, chunk, frame)

    def _read_odd(self, kind: str, frame: bytes) -> None:
        try:
            data = msgspec.json.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError):
            message = f"a frame that is not JSON: {frame[:200].decode(errors='replace')}"
            self._fail(StreamError("malformed_event", message, provider=PROVIDER))
            return
        try:
            # JSON of other types than agreed: numbers as strings are forgiven, the rest is shown as it came.
            chunk = msgspec.convert(data, FirstChunk, strict=False)
        except msgspec.ValidationError:
            self._blocks.raw(_raw_kind(kind), data)
        else:
            self._read_chunk(kind, chunk, frame)

    def _read_chunk(self, kind: str, chunk: Chunk, frame: bytes) -> None:
        if type(chunk) is FirstChunk:
            self._blocks.start(id=chunk.response_id, model=chunk.model_version)
            if chunk.response_id and chunk.model_version:
                self._decode = _CHUNK.decode
        if self.raw:
            self._blocks.raw(_raw_kind(kind), msgspec.json.decode(frame))
        for candidate in chunk.candidates or ():
            if not candidate.index:
                self._read_candidate(candidate, frame)
        if chunk.usage_metadata:
            self._read_usage(chunk.usage_metadata)
        if chunk.prompt_feedback:
            self._read_feedback(chunk.prompt_feedback)
        if chunk.error or kind == "error":
            self._fail(provider_error(PROVIDER, msgspec.json.decode(frame)))
        elif chunk.candidates is None and not self.raw:
            data = msgspec.json.decode(frame)
            if data.keys() - _KNOWN:
                self._blocks.raw(_raw_kind(kind), data)

    def _read_candidate(self, candidate: Candidate, frame: bytes) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._read_part(part, frame)
        if candidate.grounding_metadata or candidate.citation_metadata or candidate.url_context_metadata:
            self._read_sources(candidate)
        if candidate.finish_reason is not None:
            reason = str(candidate.finish_reason)
            self._blocks.finish(FINISH_REASONS.get(reason.upper(), "other"), reason)
        if candidate.finish_message:
            self._blocks.note({"finish_message": candidate.finish_message})

    def _read_usage(self, counted: dict[str, Any]) -> None:
        # Some chunks say nothing but {"trafficType": ...}: that takes no count back.
        if counted != self._usage and (self._usage is None or not COUNTERS.isdisjoint(counted)):
            self._usage = counted
            self._blocks.usage(to_usage(counted))

    def _read_feedback(self, feedback: dict[str, Any]) -> None:
        blocked = feedback.get("blockReason")
        if blocked not in (None, 0, "BLOCKED_REASON_UNSPECIFIED"):
            self._blocks.finish("content_filter", str(blocked))
            self._blocks.note({"prompt_feedback": feedback})

    def _read_sources(self, candidate: Candidate) -> None:
        for source in sources_of(candidate):
            key = repr(sorted(source.items()))
            if key not in self._sources:
                self._sources.add(key)
                self._blocks.source(source)
        self._grounding |= candidate.grounding_metadata or {}

    def _read_part(self, part: Part, frame: bytes) -> None:
        if part.text and not part.thought_signature:
            if part.thought:
                self._blocks.thinking(part.text)
            else:
                self._blocks.text(part.text)
        elif part.function_call is not None:
            self._read_call(part.function_call, part.thought_signature)
        elif part.inline_data or part.file_data:
            self._blocks.file(_file(part))
        elif part.text is None:
            self._read_server(part, frame)
        elif part.thought_signature:
            self._read_signed(part.text, part.thought_signature, thought=bool(part.thought))

    def _read_signed(self, text: str, signature: str, *, thought: bool) -> None:
        blocks = self._blocks
        blocks.close_block()
        if thought:
            blocks.thinking(text)
        else:
            blocks.text(text)
        signs = "thought" if thought else "text" if text else "nothing"
        blocks.sign(signature, {"provider": PROVIDER, "signs": signs})
        blocks.close_block()

    def _read_call(self, call: FunctionCall, signature: str | None) -> None:
        if call.name:
            self._finish_partial()
            index = self._new_call()
            metadata = {"thoughtSignature": signature} if signature else {}
            metadata |= {"google_id": call.id} if call.id else {}
            goes_on = bool(call.partial_args or call.will_continue)
            self._blocks.call(index, call.id, call.name, None if goes_on else call.args, metadata)
            if goes_on:
                self._partial = (index, PartialArguments())
            else:
                self._blocks.complete_call(index)
        if self._partial is not None:
            self._partial[1].feed(call.partial_args or ())
            if not call.will_continue:
                self._finish_partial()

    def _finish_partial(self, *, complete: bool = True) -> None:
        if self._partial is None:
            return
        index, partial = self._partial
        self._partial = None
        self._blocks.call(index, None, None, partial.finish())
        if complete:
            self._blocks.complete_call(index)

    def _read_server(self, part: Part, frame: bytes) -> None:
        signed = {"thoughtSignature": part.thought_signature} if part.thought_signature else {}
        match part:
            case Part(executable_code=dict(code)):
                self._open_server("code_execution", code, code, {"executableCode": code, **signed})
            case Part(tool_call=dict(call)):
                name = str(call.get("toolType", "server_tool")).lower()
                self._open_server(name, call, call.get("args"), {"toolCall": call, **signed})
            case Part(code_execution_result=dict(result)):
                self._close_server("code_execution", result, {"codeExecutionResult": result, **signed})
            case Part(tool_response=dict(response)):
                name = str(response.get("toolType", "server_tool")).lower()
                self._close_server(name, response, {"toolResponse": response, **signed})
            case Part(thought_signature=str(signature)):
                self._read_signed("", signature, thought=bool(part.thought))
            case _ if not self.raw:
                self._blocks.raw("part", msgspec.json.decode(frame))
            case _:
                pass

    def _open_server(self, name: str, said: Mapping[str, Any], arguments: Any, part: dict[str, Any]) -> None:
        index, id = self._new_call(), str(said.get("id") or "")
        given = {k: v for k, v in cast(dict[str, Any], arguments or {}).items() if k != "id"}
        metadata = {"server": True, "provider": PROVIDER, "parts": [part]}
        self._settle(id)
        self._server[id] = (index, metadata)
        self._blocks.call(index, id or None, name, given, {"server": True})

    def _close_server(self, name: str, said: Mapping[str, Any], part: dict[str, Any]) -> None:
        id = str(said.get("id") or "")
        if id not in self._server:  # a result of a call that was never said
            self._open_server(name, said, None, part)
            index, metadata = self._server.pop(id)
        else:
            index, metadata = self._server.pop(id)
            metadata["parts"].append(part)
        self._blocks.call(index, None, None, None, {**metadata, "result": dict(said)})
        self._blocks.complete_call(index)

    def _settle(self, id: str) -> None:
        if id in self._server:
            index, metadata = self._server.pop(id)
            self._blocks.call(index, None, None, None, metadata)

    def _new_call(self) -> int:
        self._calls += 1
        return self._calls - 1

    def _fail(self, error: LLMError) -> None:
        self._finish_partial(complete=False)
        self._blocks.error(error)

    def _end(self, *, over: bool) -> None:
        if self._blocks.ended:
            return
        self._finish_partial(complete=False)
        for id in [*self._server]:
            self._settle(id)
        if self._grounding:
            self._blocks.note({"grounding_metadata": self._grounding})
        self._blocks.end(over=over)


class _Frames:
    """The chunks of an event stream or of a JSON array, whichever begins."""

    def __init__(self) -> None:
        self._held = b""
        self._source: SSEDecoder | JSONArrayDecoder | None = None

    @property
    def ended(self) -> bool:
        """Whether the array is closed; an event stream has no such mark."""
        return isinstance(self._source, JSONArrayDecoder) and self._source.ended

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        source = self._source
        if type(source) is SSEDecoder:
            return source.feed(data)
        if source is None:
            data, self._held = self._held + data, b""
            begun = data.removeprefix(BOM).lstrip()
            if not begun or BOM.startswith(data):
                self._held = data
                return []
            source = self._source = JSONArrayDecoder() if begun[:1] == b"[" else SSEDecoder()
        frames = source.feed(data)
        return [("message", frame) if isinstance(frame, bytes) else frame for frame in frames]

    def close(self) -> list[tuple[str, bytes]]:
        source = self._source
        return source.close() if isinstance(source, SSEDecoder) else []


def _file(part: Part) -> dict[str, Any]:
    held = part.inline_data or part.file_data or {}
    file: dict[str, Any] = {"mime_type": held.get("mimeType") or "application/octet-stream"}
    if part.inline_data:
        file["data"] = _from_base64(str(held.get("data") or ""))
    else:
        file["url"] = held.get("fileUri")
    if part.thought:
        file["thought"] = True
    if part.thought_signature:
        file["thoughtSignature"] = part.thought_signature
    return file


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _raw_kind(kind: str) -> str:
    # "usage" is the one kind that is folded, and a frame of that name is not what is meant.
    return "chunk" if kind in ("message", "usage") else kind
