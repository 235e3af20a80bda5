"""The decoder for responses from Gemini's ``streamGenerateContent``.

See https://ai.google.dev/api/generate-content. The content parts are read by ``parts``. The rules are:

* Only candidate 0 is read, or a lone one, whatever its index, if the request did not ask for several.
* More content can arrive after a finish reason.
* Grounding, citations and fetched URLs become sources. The metadata contains all the grounding data.
* If the prompt is blocked, the finish reason is ``content_filter``.
* Each usage object replaces the one before it.
* Log-probabilities become metadata, in OpenAI's format.
* If a finish reason means failure, as ``MALFORMED_FUNCTION_CALL`` does, the stream ends with an error.
* A chunk or part of an unknown kind becomes a ``RawChunk``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._http_errors import provider_error
from rxllm.adapters._usage_and_metadata import dicts, metadata_of
from rxllm.adapters.gemini.frames import (
    CONTENT,
    COUNTERS,
    PROVIDER,
    Candidate,
    Chunk,
    FirstChunk,
    GeminiFrames,
    to_logprobs,
    to_usage,
)
from rxllm.adapters.gemini.parts import PartReader
from rxllm.values import AdapterError, FinishReason, LLMError, Message
from rxllm.values.json_text import read_json
from rxllm.wire.event_order import Blocks
from rxllm.wire.frames import FrameDecoder, raw_kind
from rxllm.wire.framing import Frame
from rxllm.wire.tool_calls import CallTracker

_BY_REASON: dict[FinishReason, str] = {
    "stop": "STOP 1",
    "length": "MAX_TOKENS 2",
    "content_filter": (
        "SAFETY 3 RECITATION 4 LANGUAGE 6 BLOCKLIST 7 PROHIBITED_CONTENT 8 SPII 9 IMAGE_SAFETY 11 "
        "IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION MODEL_ARMOR"
    ),
    "error": (
        "MALFORMED_FUNCTION_CALL 10 UNEXPECTED_TOOL_CALL 12 TOO_MANY_TOOL_CALLS 13 MISSING_THOUGHT_SIGNATURE "
        "MALFORMED_RESPONSE"
    ),
    "other": "FINISH_REASON_UNSPECIFIED 0 OTHER 5 IMAGE_OTHER NO_IMAGE ESCALATION PUP_LIMITED_DISABLED CONTINUATION",
}

FINISH_REASONS: dict[str, FinishReason] = {
    name: reason for reason, names in _BY_REASON.items() for name in names.split()
}

_FIRST = msgspec.json.Decoder(FirstChunk)
_CHUNK = msgspec.json.Decoder(Chunk)
_KNOWN = {"candidates", "usageMetadata", "promptFeedback", "modelVersion", "responseId", "createTime"}


class GeminiDecoder(FrameDecoder):
    """Decodes one response. `n` is the number of candidates that were asked for.

    If `raw` is true, the decoder also emits ``RawChunk`` events.
    """

    content = CONTENT

    def __init__(self, *, messages: Iterable[Message] = (), n: int = 1, raw: bool = False) -> None:
        self._frames = GeminiFrames()
        super().__init__(self._frames, Blocks(CallTracker.after(messages)), _FIRST, provider=PROVIDER, raw=raw)
        self._n = n
        self._usage: dict[str, Any] | None = None
        self._parts = PartReader(self.blocks, raw=raw)
        self._sources: set[str] = set()
        self._grounding: dict[str, Any] = {}

    def _read_all(self, frames: list[Frame]) -> None:
        super()._read_all(frames)
        if self._frames.ended:
            self.end(over=True)

    def read(self, kind: str, chunk: Chunk, frame: bytes, /) -> None:
        if type(chunk) is FirstChunk:
            self.blocks.start(id=chunk.response_id, model=chunk.model_version)
            if chunk.response_id and chunk.model_version:
                self._decode = _CHUNK.decode
        if self.raw:
            self.blocks.raw(raw_kind(kind), read_json(frame))
        candidates = chunk.candidates or ()
        for candidate in candidates:
            if not candidate.index or (self._n == len(candidates) == 1):
                self._read_candidate(candidate, frame)
        if chunk.usage_metadata:
            self._read_usage(chunk.usage_metadata)
        if chunk.prompt_feedback:
            self._read_feedback(chunk.prompt_feedback)
        if chunk.error or kind == "error":
            self.fail(self.error_of(read_json(frame)))
        elif chunk.candidates is None and not self.raw:
            data = read_json(frame)
            if data.keys() - _KNOWN:
                self.blocks.raw(raw_kind(kind), data)

    def _read_candidate(self, candidate: Candidate, frame: bytes) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._parts.read(part, frame)
        if candidate.grounding_metadata or candidate.citation_metadata or candidate.url_context_metadata:
            self._read_sources(candidate)
        if candidate.finish_reason is not None:
            self._read_finish(str(candidate.finish_reason), candidate.finish_message)
        if candidate.finish_message:
            self.blocks.note({"finish_message": candidate.finish_message})
        if candidate.continuation_token:
            self.blocks.note({"continuation_token": candidate.continuation_token})
        if candidate.logprobs_result:
            self.blocks.append("logprobs", to_logprobs(candidate.logprobs_result))
        if candidate.safety_ratings:
            self.blocks.note(metadata_of({"safetyRatings": candidate.safety_ratings}))
        if candidate.avg_logprobs is not None:
            self.blocks.note({"avg_logprobs": candidate.avg_logprobs})

    def _read_finish(self, raw: str, message: str | None) -> None:
        reason = FINISH_REASONS.get(raw.upper(), "other")
        self.blocks.finish(reason, raw, _finish_error(raw, message) if reason == "error" else None)

    def _read_usage(self, counters: dict[str, Any]) -> None:
        self.blocks.note(metadata_of(counters))
        # If a chunk contains only {"trafficType": ...}, it must not reset the counters.
        if counters != self._usage and (self._usage is None or not COUNTERS.isdisjoint(counters)):
            self._usage = counters
            self.blocks.usage(to_usage(counters))

    def _read_feedback(self, feedback: dict[str, Any]) -> None:
        blocked = feedback.get("blockReason")
        if blocked not in (None, 0, "BLOCKED_REASON_UNSPECIFIED"):
            self.blocks.finish("content_filter", str(blocked))
        self.blocks.note({"prompt_feedback": feedback})

    def _read_sources(self, candidate: Candidate) -> None:
        for source in sources_of(candidate):
            key = repr(sorted(source.items()))
            if key not in self._sources:
                self._sources.add(key)
                self.blocks.source(source)
        self._grounding |= candidate.grounding_metadata or {}

    def fail(self, error: LLMError) -> None:
        self._parts.flush()
        super().fail(error)

    def end(self, *, over: bool) -> None:
        if self.blocks.ended:
            return
        self._parts.flush()
        if self._grounding:
            self.blocks.note({"grounding_metadata": self._grounding})
        super().end(over=over)

    def error_of(self, payload: Any) -> AdapterError:
        return use_status_as_code(provider_error(PROVIDER, payload))


def use_status_as_code(error: AdapterError) -> AdapterError:
    """Use Google's name for the error as the error's code, instead of the HTTP status."""
    name = error.metadata.get("status")
    if isinstance(name, str) and (error.code is None or error.code.isdigit()):
        error.code = name
        error.metadata = {key: value for key, value in error.metadata.items() if key != "status"}
    return error


def _finish_error(reason: str, message: str | None) -> AdapterError:
    kind = "invalid_request" if reason == "MISSING_THOUGHT_SIGNATURE" else "malformed_response"
    text = f"the model's answer ended with {reason}" + (f": {message}" if message else "")
    return AdapterError(kind, text, provider=PROVIDER, code=reason)


def sources_of(candidate: Candidate) -> Iterable[dict[str, Any]]:
    """Yield the candidate's sources, each with a ``"type"``. A later frame may repeat a source."""
    grounding = candidate.grounding_metadata or {}
    for chunk in dicts(grounding.get("groundingChunks")):
        for kind, fields in chunk.items():
            if isinstance(fields, dict):
                yield _source(kind, cast(dict[str, Any], fields), "uri", "sourceUri")
    for support in dicts(grounding.get("groundingSupports")):
        yield {"type": "grounding_support", **support}
    for name in ("citations", "citationSources"):
        for citation in dicts((candidate.citation_metadata or {}).get(name)):
            yield _source("citation", citation, "uri")
    for page in dicts((candidate.url_context_metadata or {}).get("urlMetadata")):
        yield _source("url_context", page, "retrievedUrl")


def _source(kind: str, fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    url = next((fields[name] for name in names if fields.get(name)), None)
    rest = {name: value for name, value in fields.items() if name not in names}
    return {"type": kind, **({"url": url} if url else {}), **rest}
