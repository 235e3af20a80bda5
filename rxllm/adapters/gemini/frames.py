"""The chunks of Gemini's ``streamGenerateContent`` as types, as far as they are read, and what their usage means.

https://ai.google.dev/api/generate-content. Enumerations are names, or their numbers where the server was asked for
``enum-encoding=int``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.values import Usage
from rxllm.values._usage import whole
from rxllm.wire.json_array import JSONArrayDecoder
from rxllm.wire.sse import BOM, SSEDecoder

PROVIDER = "google"

COUNTERS = {
    "promptTokenCount",
    "candidatesTokenCount",
    "responseTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "totalTokenCount",
}


class FunctionCall(msgspec.Struct, gc=False, rename="camel"):
    id: str | None = None
    name: str | None = None
    args: Any = None
    partial_args: list[dict[str, Any]] | None = None
    will_continue: bool | None = None


class Part(msgspec.Struct, gc=False, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    function_response: dict[str, Any] | None = None
    inline_data: dict[str, Any] | None = None
    file_data: dict[str, Any] | None = None
    executable_code: dict[str, Any] | None = None
    code_execution_result: dict[str, Any] | None = None
    tool_call: dict[str, Any] | None = None
    tool_response: dict[str, Any] | None = None


class Content(msgspec.Struct, gc=False):
    parts: list[Part] | None = None


class Candidate(msgspec.Struct, gc=False, rename="camel"):
    index: int | None = None
    content: Content | None = None
    finish_reason: str | int | None = None
    finish_message: str | None = None
    logprobs_result: Any = None
    avg_logprobs: Any = None
    grounding_metadata: dict[str, Any] | None = None
    citation_metadata: dict[str, Any] | None = None
    url_context_metadata: dict[str, Any] | None = None
    safety_ratings: Any = None


class Chunk(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[Candidate] | None = None
    usage_metadata: dict[str, Any] | None = None
    prompt_feedback: dict[str, Any] | None = None
    error: Any = None


class FirstChunk(Chunk, gc=False, rename="camel"):
    """Read until the response's id and model are known."""

    response_id: str | None = None
    model_version: str | None = None


def to_usage(counted: Mapping[str, Any]) -> Usage:
    """The counters of a ``usageMetadata`` object.

    ``promptTokenCount`` includes cached tokens, but not ``toolUsePromptTokenCount``, those of the server's tools, and
    ``candidatesTokenCount`` includes no thoughts; ``totalTokenCount`` is the sum of all. Counters without a field of
    their own are in `extra`.
    """
    prompt, tools = whole(counted.get("promptTokenCount")), whole(counted.get("toolUsePromptTokenCount"))
    thoughts = whole(counted.get("thoughtsTokenCount"))
    said = whole(counted.get("candidatesTokenCount"))
    said = whole(counted.get("responseTokenCount")) if said is None else said
    extra = dict(_flat((name, held) for name, held in counted.items() if name not in COUNTERS))
    return Usage(
        input_tokens=prompt if tools is None else (prompt or 0) + tools,
        output_tokens=said if thoughts is None else (said or 0) + thoughts,
        cached_input_tokens=whole(counted.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
        total_tokens=whole(counted.get("totalTokenCount")),
        extra=extra,
    )


def _flat(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, held in items:
        if isinstance(held, list) and all(isinstance(each, dict) for each in cast(list[Any], held)):
            # [{"modality": "TEXT", "tokenCount": 3}, ...]
            for each in cast(list[dict[str, Any]], held):
                yield f"{name}.{each.get('modality')}", each.get("tokenCount", 0)
        elif isinstance(held, dict):
            inner = cast(dict[str, Any], held)
            yield from _flat((f"{name}.{key}", value) for key, value in inner.items())
        elif held is not None:
            yield name, held


def to_logprobs(result: Any) -> list[dict[str, Any]]:
    """The tokens of a ``logprobsResult`` and those that might have been, as OpenAI says them."""
    held = cast(dict[str, Any], result) if isinstance(result, dict) else {}
    chosen, others = _dicts(held.get("chosenCandidates")), _dicts(held.get("topCandidates"))
    tops = [[_token(each) for each in _dicts(top.get("candidates"))] for top in others]
    return [{**_token(each), "top_logprobs": tops[i] if i < len(tops) else []} for i, each in enumerate(chosen)]


def _token(said: Mapping[str, Any]) -> dict[str, Any]:
    named = {"token": said.get("token", ""), "logprob": said.get("logProbability", 0.0)}
    return named | ({"token_id": said["tokenId"]} if "tokenId" in said else {})


def _dicts(held: Any) -> list[dict[str, Any]]:
    return [each for each in cast(list[Any], held) if isinstance(each, dict)] if isinstance(held, list) else []


class GeminiFrames:
    """The chunks of an event stream or of a JSON array, whichever begins."""

    def __init__(self) -> None:
        self.ended = False  # the array is closed; an event stream has no such mark
        self._held: bytes = b""
        self._source: SSEDecoder | JSONArrayDecoder | None = None

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
        self.ended = isinstance(source, JSONArrayDecoder) and source.ended
        return [("message", frame) if isinstance(frame, bytes) else frame for frame in frames]

    def close(self) -> list[tuple[str, bytes]]:
        source = self._source
        return source.close() if isinstance(source, SSEDecoder) else []
