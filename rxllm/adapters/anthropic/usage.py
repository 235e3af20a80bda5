"""The usage of the Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.values import Usage
from rxllm.values.usage import amount, whole


def to_usage(counters: Mapping[str, Any]) -> Usage:
    """Return the counters of a ``usage`` object as `Usage`.

    Anthropic's ``input_tokens`` excludes what was read from and written to the cache, `Usage` includes it; output
    includes thinking in both (https://platform.claude.com/docs/en/build-with-claude/prompt-caching). A counter without
    a field of its own is in `extra`, under its dotted name.

    ``iterations`` has a usage for each request that the server made for the answer; compactions and advisors are in no
    other counter. Then the counts are their sums, and `extra` has each, for its price, with its type and its model.
    """
    usage, listed = _to_usage(counters), counters.get("iterations")
    entries = cast(list[Any], listed) if isinstance(listed, list) else []
    parts = [_to_usage(cast(Mapping[str, Any], entry)) for entry in entries if isinstance(entry, dict)]
    if not parts or len(parts) < len(entries) or any(part.total_tokens is None for part in parts):
        return usage
    total = sum(parts, Usage())
    sums = {name: getattr(total, name) for name in _COUNTS}
    cache = {name: count for name, count in total.extra.items() if name.startswith("cache_creation.")}
    iterations = [{name: value for name, value in vars(part).items() if value not in (None, {})} for part in parts]
    return replace(usage, **sums, extra={**usage.extra, **cache, "iterations": iterations})


def _to_usage(counters: Mapping[str, Any]) -> Usage:
    flat = dict(_flat(counters))
    read, written = (whole(flat.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    uncached, output = whole(flat.get("input_tokens")), whole(flat.get("output_tokens"))
    total_input = None if uncached is None else uncached + (read or 0) + (written or 0)
    return Usage(
        input_tokens=total_input,
        output_tokens=output,
        cached_input_tokens=read,
        cache_write_input_tokens=written,
        reasoning_tokens=whole(flat.get("output_tokens_details.thinking_tokens")),
        total_tokens=None if total_input is None or output is None else total_input + output,
        total_cost=amount(flat.get("cost")),  # of a gateway
        tool_usage={name.removeprefix(_TOOLS): count for name, count in flat.items() if name.startswith(_TOOLS)},
        extra={name: count for name, count in flat.items() if name not in _FIELDS and not name.startswith(_TOOLS)},
    )


_TOOLS = "server_tool_use."
_COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens", "total_tokens")


_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens_details.thinking_tokens",
    "cost",
)


def _flat(counters: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, count in counters.items():
        if isinstance(count, dict):
            yield from _flat(cast(dict[str, Any], count), f"{prefix}{name}.")
        elif count is not None:
            yield f"{prefix}{name}", count
