"""The chunks of Chat Completions as types, as far as they are read, and what is in their usage, images and sound.

Types are as wide as the servers make them: fields that nobody reads are not here, and cost nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec

from rxllm.values import AdapterError, FinishReason, Usage
from rxllm.values._usage import amount, whole

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


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: Function | None = None
    refusal: str | None = None
    annotations: list[dict[str, Any]] | None = None
    images: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None


class Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Any = None
    content_filter_results: Any = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    x_groq: dict[str, Any] | None = None
    citations: list[Any] | None = None
    search_results: list[dict[str, Any]] | None = None


class FirstChunk(Chunk, gc=False):
    """Read until the response's id and model are known; what it says about the answer need not be read again."""

    id: str | None = None
    model: str | None = None
    system_fingerprint: Any = None
    service_tier: Any = None
    provider: Any = None
    prompt_filter_results: Any = None


def to_usage(counted: Mapping[str, Any], known: Mapping[str, Iterable[str]] | None = None) -> Usage:
    """The counters of a ``usage`` object; those without a field of their own are in `extra`, by their dotted names.

    `known` are the provider's names of each field of `Usage`.
    """
    flat = dict(_flat(counted))
    known = known or _USAGE
    fields = {field: _first(flat, names, amount if field in _COSTS else whole) for field, names in known.items()}
    extra = {name: held for name, held in flat.items() if not any(name in names for names in known.values())}
    usage = Usage(**fields, extra=extra)
    if usage.total_cost is None and isinstance(ticks := extra.get(_TICKS), int):
        usage = replace(usage, total_cost=ticks / 1e10, extra={k: v for k, v in extra.items() if k != _TICKS})
    return _with_thoughts(usage)


_TICKS = "cost_in_usd_ticks"  # of xAI


def _with_thoughts(usage: Usage) -> Usage:
    """Return the usage with its thoughts among the output; some (xAI) count them beside it: the total tells."""
    prompt, output, thoughts = usage.input_tokens or 0, usage.output_tokens or 0, usage.reasoning_tokens or 0
    is_beside = thoughts and usage.total_tokens == prompt + output + thoughts
    return replace(usage, output_tokens=output + thoughts) if is_beside else usage


_USAGE = {
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
    "total_cost": ("cost", "cost.total_cost"),
}


_COSTS = ("input_cost", "output_cost", "total_cost")

_FAILURES = {"network_error": "network_error", "insufficient_system_resource": "provider_unavailable"}


def finish_error(provider: str, raw: str, chunk: Mapping[str, Any]) -> AdapterError:
    """The error of a finish reason that is a failure; the code is OpenRouter's ``native_finish_reason``, if given."""
    choices = cast(list[dict[str, Any]], chunk["choices"])
    code = str(next((each["native_finish_reason"] for each in choices if each.get("native_finish_reason")), raw))
    message = f"the answer ended with {code}"
    return AdapterError(_FAILURES.get(raw.lower(), "unknown"), message, provider=provider, code=code)


def to_logprobs(held: Any) -> Iterable[tuple[str, list[Any]]]:
    """The tokens of a choice's ``logprobs``, and whether they are of its text or of its thoughts.

    ``{"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...], "refusal": [...]}``; the older form of
    completions, ``{"tokens": [...], "token_logprobs": [...], ...}``, is put into that one.
    """
    match held:
        case {"tokens": list(), "token_logprobs": list()}:
            named = cast(dict[str, list[Any]], held)
            pairs = zip(named["tokens"], named["token_logprobs"], strict=False)
            yield "logprobs", [{"token": token, "logprob": logprob} for token, logprob in pairs]
        case dict():
            for name, key in _LOGPROBS.items():
                items = cast(dict[str, Any], held).get(name)
                if items and isinstance(items, list):
                    yield key, cast(list[Any], items)
        case _:
            pass


_LOGPROBS = {"reasoning_content": "reasoning_logprobs", "content": "logprobs", "refusal": "logprobs"}


def text_of(value: Any) -> str:
    """Return what should be text; nothing where it is not."""
    return value if isinstance(value, str) else ""


def file_of(part: Mapping[str, Any]) -> dict[str, Any]:
    held = part.get("image_url")
    url = str(cast(dict[str, Any], held).get("url") if isinstance(held, dict) else held)
    head, _, text = url.partition(";base64,")
    if not head.startswith("data:"):
        return {"mime_type": "image/*", "url": url}
    return {"mime_type": head.removeprefix("data:"), "data": _from_base64(text)}


def audio_of(pieces: Mapping[str, list[Any]]) -> dict[str, Any]:
    # Streamed sound is 16-bit PCM, the only format that the API streams; each piece is base64 by itself.
    held = {name: values[-1] for name, values in pieces.items()}
    held["data"] = b"".join(_from_base64(str(piece)) for piece in pieces.get("data", ()))
    held["transcript"] = "".join(str(piece) for piece in pieces.get("transcript", ()))
    return {"mime_type": "audio/pcm", **held}


def _flat(counted: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, held in counted.items():
        if isinstance(held, dict):
            yield from _flat(cast(dict[str, Any], held), f"{prefix}{name}.")
        elif held is not None:
            yield f"{prefix}{name}", held


def _first(flat: Mapping[str, Any], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    numbers = (read(flat.get(name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""
