"""The chunk types of Chat Completions, and functions that read log-probabilities and media.

The types accept the chunks of every supported server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rxllm.adapters._usage_and_metadata import dicts, text_of
from rxllm.values.json_text import read_object
from rxllm.wire.frames import decode_base64

_LOGPROBS = {"reasoning_content": "reasoning_logprobs", "content": "logprobs", "refusal": "logprobs"}


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Custom(msgspec.Struct, gc=False):
    name: str | None = None
    input: str | None = None


class CallDelta(Function, gc=False):
    """A part of a call. Some servers put the name and the arguments here, and not in ``function``."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: Custom | None = None
    extra_content: Any = None  # this field and the next one contain Gemini's thought signature
    thought_signature: Any = None


class Delta(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]] | dict[str, Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: Function | None = None
    refusal: str | None = None
    annotations: list[dict[str, Any]] | None = None
    images: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None
    executed_tools: list[dict[str, Any]] | None = None  # this field and the next one are sent only by Groq
    channel: Any = None
    extra_content: Any = None  # this field and the next one contain Gemini's thought signature
    thought_signature: Any = None
    reasoning_encrypted: bool | None = None  # Venice: the thinking is ciphertext


class AzureMessage(Delta, gc=False):
    """A message in one of Azure's older "On Your Data" answers.

    The message whose role is ``tool`` contains the citations.
    """

    role: str | None = None
    delta: AzureMessage | None = None


class Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    messages: list[AzureMessage] | None = None
    text: str | None = None
    finish_reason: str | None = None
    error: Any = None
    logprobs: Any = None
    content_filter_results: Any = None
    content_filter_result: Any = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    x_groq: dict[str, Any] | None = None
    citations: list[Any] | None = None
    search_results: list[dict[str, Any]] | None = None
    venice_parameters: dict[str, Any] | None = None


class FirstChunk(Chunk, gc=False):
    """A chunk that arrives while the response's id or model is still unknown."""

    id: str | None = None
    model: str | None = None
    system_fingerprint: Any = None
    service_tier: Any = None
    provider: Any = None
    prompt_filter_results: Any = None
    related_questions: Any = None
    system: Any = None


CONTENT = frozenset(
    {
        *("choices", "delta", "message", "messages", "content", "text", "refusal", "images", "audio"),
        *("reasoning_content", "reasoning", "reasoning_details"),
        *("tool_calls", "function_call", "function", "custom", "name", "arguments", "input"),
    }
)
"""The fields that hold an answer's text, thinking and calls."""

USAGE = {
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("completion_tokens",),
    "total_tokens": ("total_tokens",),
    "cached_input_tokens": (
        "prompt_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "cache_read_input_tokens",
    ),
    "cache_write_input_tokens": ("prompt_tokens_details.cache_write_tokens", "cache_creation_input_tokens"),
    "reasoning_tokens": ("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),
    "input_cost": ("cost.input_tokens_cost",),
    "output_cost": ("cost.output_tokens_cost",),
    "total_cost": ("cost", "cost.total_cost", "cost.usd", "gateway.cost"),
}
"""The names that servers use for each field of `Usage`."""


def to_logprobs(logprobs: Any) -> Iterable[tuple[str, list[Any]]]:
    """Yield the metadata key for each list of log-probabilities, together with the list.

    The legacy form, which has ``tokens`` and ``token_logprobs``, is converted.
    """
    match logprobs:
        case {"tokens": list(), "token_logprobs": list()}:
            yield "logprobs", list(_legacy(cast(dict[str, Any], logprobs)))
        case dict():
            for name, key in _LOGPROBS.items():
                tokens = cast(dict[str, Any], logprobs).get(name)
                if tokens and isinstance(tokens, list):
                    yield key, cast(list[Any], tokens)
        case _:
            pass


def _legacy(lists: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    tops: Any = lists.get("top_logprobs")
    tops = cast(list[Any], tops) if isinstance(tops, list) else []
    for place, (token, logprob) in enumerate(zip(lists["tokens"], lists["token_logprobs"], strict=False)):
        top = tops[place] if place < len(tops) else None
        alternatives = dicts(top)  # Together
        if isinstance(top, dict):  # OpenAI
            alternatives = [{"token": other, "logprob": p} for other, p in cast(dict[str, Any], top).items()]
        yield {"token": token, "logprob": logprob} | ({"top_logprobs": alternatives} if alternatives else {})


def texts_of(parts: list[Any]) -> str:
    return "".join(text_of(part.get("text")) for part in dicts(parts))


def file_of(part: Mapping[str, Any]) -> dict[str, Any]:
    value = part.get("image_url")
    url = str(cast(dict[str, Any], value).get("url") if isinstance(value, dict) else value)
    head, _, text = url.partition(";base64,")
    if not head.startswith("data:"):
        return {"mime_type": "image/*", "url": url}
    return {"mime_type": head.removeprefix("data:"), "data": decode_base64(text)}


def audio_of(fields: Mapping[str, list[Any]]) -> dict[str, Any]:
    # The API streams only 16-bit PCM. Each piece is encoded as base64 separately.
    audio = {name: values[-1] for name, values in fields.items()}
    audio["data"] = b"".join(decode_base64(str(piece)) for piece in fields.get("data", ()))
    audio["transcript"] = "".join(str(piece) for piece in fields.get("transcript", ()))
    return {"mime_type": "audio/pcm", **audio}


def audio_id_of(fields: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the ``audio`` field with which the next request names the sound. OpenAI keeps it until ``expires_at``."""
    named = {name: fields[name][-1] for name in ("id", "expires_at") if name in fields}
    return {"audio": named} if isinstance(named.get("id"), str) else {}


def signatures_of(part: CallDelta | Delta) -> dict[str, Any]:
    fields = {"extra_content": part.extra_content, "thought_signature": part.thought_signature}
    return {name: value for name, value in fields.items() if value}


def azure_citations(content: Any) -> Iterable[dict[str, Any]]:
    found = read_object(content) if isinstance(content, str) else None
    return dicts((found or {}).get("citations"))


def executed_sources(tool: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    found = tool.get("search_results")
    results = cast(dict[str, Any], found).get("results") if isinstance(found, dict) else None
    return [*dicts(results), *dicts(tool.get("browser_results"))]
