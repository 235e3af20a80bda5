"""Gemini's chunk types, and functions that read frames, log-probabilities and usage.

See https://ai.google.dev/api/generate-content. An enum value can be a name or a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._usage_and_metadata import LONGEST_NAME, as_count, check_counters, dicts, with_short_names
from rxllm.values import Usage
from rxllm.values.usage import whole
from rxllm.wire.framing import BOM, JSONArrayDecoder, SSEDecoder

PROVIDER = "google"


CONTENT = frozenset(
    {
        *("candidates", "content", "parts", "text", "inlineData", "fileData"),
        *("functionCall", "name", "partialArgs", "functionResponse", "toolCall", "toolResponse"),
        *("executableCode", "codeExecutionResult"),
    }
)
"""The fields that hold an answer's text, thinking, files and calls."""


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
    continuation_token: Any = None
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
    """A chunk that may contain the response's id and model."""

    response_id: str | None = None
    model_version: str | None = None


def to_logprobs(result: Any) -> list[dict[str, Any]]:
    """Convert a ``logprobsResult`` to OpenAI's format."""
    fields = cast(dict[str, Any], result) if isinstance(result, dict) else {}
    chosen, alternatives = dicts(fields.get("chosenCandidates")), dicts(fields.get("topCandidates"))
    tops = [[_token(candidate) for candidate in dicts(top.get("candidates"))] for top in alternatives]
    return [{**_token(token), "top_logprobs": tops[i] if i < len(tops) else []} for i, token in enumerate(chosen)]


def _token(candidate: Mapping[str, Any]) -> dict[str, Any]:
    token = {"token": candidate.get("token", ""), "logprob": candidate.get("logProbability", 0.0)}
    return token | ({"token_id": candidate["tokenId"]} if "tokenId" in candidate else {})


COUNTERS = {
    "promptTokenCount",
    "candidatesTokenCount",
    "responseTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
    "totalTokenCount",
}


def to_usage(counters: Mapping[str, Any]) -> Usage:
    """Convert a ``usageMetadata`` object to `Usage`.

    ``promptTokenCount`` does not include the tokens of tools, so they are added to the input. ``candidatesTokenCount``
    does not include thoughts, so they are added to the output. All other counters go into `extra`.
    """
    counters = {name: as_count(count) for name, count in counters.items()}
    prompt, tools = whole(counters.get("promptTokenCount")), whole(counters.get("toolUsePromptTokenCount"))
    thoughts = whole(counters.get("thoughtsTokenCount"))
    answer = whole(counters.get("candidatesTokenCount"))
    answer = whole(counters.get("responseTokenCount")) if answer is None else answer
    extra = with_short_names(_flatten((name, count) for name, count in counters.items() if name not in COUNTERS))
    check_counters(len(extra))
    return Usage(
        input_tokens=prompt if tools is None else (prompt or 0) + tools,
        output_tokens=answer if thoughts is None else (answer or 0) + thoughts,
        cached_input_tokens=whole(counters.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
        total_tokens=whole(counters.get("totalTokenCount")),
        extra=extra,
    )


def _flatten(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, value in items:
        if len(name) > LONGEST_NAME:
            yield "", True
        elif isinstance(value, list) and all(isinstance(item, dict) for item in cast(list[Any], value)):
            # [{"modality": "TEXT", "tokenCount": 3}, ...]
            for item in cast(list[dict[str, Any]], value):
                yield f"{name}.{item.get('modality')}", item.get("tokenCount", 0)
        elif isinstance(value, dict):
            inner = cast(dict[str, Any], value)
            yield from _flatten((f"{name}.{key}", count) for key, count in inner.items())
        elif value is not None:
            yield name, value


class GeminiFrames:
    """Splits an event stream (``?alt=sse``) or a JSON array into frames.

    Some servers ignore ``alt``, so the response's first byte decides which of the two formats is read.
    """

    def __init__(self) -> None:
        self.ended = False  # True once the array has ended
        self._buffer: bytes = b""
        self._source: SSEDecoder | JSONArrayDecoder | None = None

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        source = self._source
        if type(source) is SSEDecoder:
            return source.feed(data)
        if source is None:
            data, self._buffer = self._buffer + data, b""
            start = data.removeprefix(BOM).lstrip()
            if not start or BOM.startswith(data):
                self._buffer = data if BOM.startswith(data) else b""
                return []
            source = self._source = JSONArrayDecoder() if start[:1] == b"[" else SSEDecoder()
        frames = source.feed(data)
        self.ended = isinstance(source, JSONArrayDecoder) and source.ended
        return [("message", frame) if isinstance(frame, bytes) else frame for frame in frames]

    def close(self) -> list[tuple[str, bytes]]:
        source = self._source
        return source.close() if isinstance(source, SSEDecoder) else []
