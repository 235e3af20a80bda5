"""The chunks of Gemini's ``streamGenerateContent`` as types, as far as they are read, and what their usage means.

https://ai.google.dev/api/generate-content. Enumerations are names, or their numbers where the server was asked for
``enum-encoding=int``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.values import FinishReason, Usage
from rxllm.values._usage import whole

PROVIDER = "google"

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
    name: reason for reason, named in _BY_REASON.items() for name in named.split()
}


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


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\[(?:'([^']*)'|"([^"]*)")\]""")


class PartialArguments:
    """The arguments of a call that come value by value, each with its path: ``{"jsonPath": "$.a[0].b", ...}``.

    https://docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling. A string may come in
    pieces: it goes on where the piece before it said ``willContinue``.

    >>> partial = PartialArguments()
    >>> partial.feed([{"jsonPath": "$.at[0].city", "stringValue": "Par", "willContinue": True}])
    >>> partial.feed([{"jsonPath": "$.at[0].city", "stringValue": "is"}, {"jsonPath": "$.days", "numberValue": 2}])
    >>> partial.finish()
    {'at': [{'city': 'Paris'}], 'days': 2}
    """

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._open: dict[str, list[str]] = {}  # the strings that go on, by path

    def feed(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        for piece in pieces:
            path = str(piece.get("jsonPath") or "")
            match piece:
                case {"stringValue": str(text)}:
                    self._feed_text(path, text, goes_on=bool(piece.get("willContinue")))
                case {"numberValue": value} | {"boolValue": value}:
                    _assign(self._arguments, path, value)
                case _:
                    _assign(self._arguments, path, None)

    def finish(self) -> dict[str, Any]:
        """All that has come."""
        for path, texts in self._open.items():
            _assign(self._arguments, path, "".join(texts))
        return self._arguments

    def _feed_text(self, path: str, text: str, *, goes_on: bool) -> None:
        if path not in self._open:
            _assign(self._arguments, path, text)  # keeps the place
            if not goes_on:
                return
        texts = self._open.setdefault(path, [])
        texts.append(text)
        if not goes_on:
            _assign(self._arguments, path, "".join(self._open.pop(path)))


def _assign(root: dict[str, Any], path: str, value: Any) -> None:
    keys: list[str | int] = [
        int(step[2]) if step[2] else step[1] or step[3] or step[4] or "" for step in _STEP.finditer(path)
    ]
    at: Any = root
    for key, following in zip(keys, [*keys[1:], None], strict=False):
        empty: Any = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(at, list) and isinstance(key, int):
            at = _put_item(cast(list[Any], at), key, empty, replace=following is None)
        elif isinstance(at, dict) and isinstance(key, str):
            held = cast(dict[str, Any], at)
            at = held.setdefault(key, empty) if following is not None else held.__setitem__(key, value)
        else:
            return  # a path that contradicts those before it


def _put_item(items: list[Any], index: int, value: Any, *, replace: bool) -> Any:
    if index >= len(items):  # whatever the index: nothing is padded
        items.append(value)
    elif replace:
        items[index] = value
    return items[min(index, len(items) - 1)]
