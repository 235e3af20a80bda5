"""The user-facing text of displays: how a run ended, durations, counts, changed requests, and remedies for errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rxllm.values import AdapterError, PrefixReport, StreamError

Look = Literal["running", "waiting", "done", "stopped", "failed"]
"""The look of a card. A ``waiting`` card needs input from a person."""

_ENDINGS: dict[str | None, tuple[Look, str]] = {
    "length": ("stopped", "cut off at the token limit"),
    "content_filter": ("stopped", "stopped by the content filter"),
    "max_turns": ("stopped", "stopped at the turn limit"),
    "budget": ("stopped", "stopped by the budget"),
    "cancelled": ("stopped", "stopped"),
    "error": ("failed", "failed"),
    "tool_error": ("failed", "stopped by a failed tool"),
    "approval": ("waiting", "waiting for approval"),
    "ask_user": ("waiting", "waiting for an answer"),
    "manual_tool_calls": ("waiting", "waiting for a tool's result"),
    "awaiting_user": ("waiting", "waiting for an answer"),
    "awaiting_tools": ("waiting", "waiting for tools"),
    **dict.fromkeys(("stop", "tool_calls", "other", "completed", "halt_when", "idle", None), ("done", "done")),
}


def ending(reason: str | None) -> tuple[Look, str]:
    """Return the look and the status text of a card.

    `reason` is a response's finish reason, a chat's halted reason or a session's status. A tool may halt a chat with
    its own reason.

    >>> ending("stop"), ending("approval"), ending("found it")
    (('done', 'done'), ('waiting', 'waiting for approval'), ('done', 'done: found it'))
    """
    return _ENDINGS.get(reason) or ("done", f"done: {reason}")


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(1.26), duration(42.9), duration(125), duration(7260)
    ('1.3 s', '42 s', '2 min 05 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{int(seconds)} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def count(number: int, noun: str) -> str:
    """Format a number together with its noun.

    >>> count(1, "step"), count(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def thinking_text(tokens: int) -> str:
    """Describe thinking that is not shown. `tokens` is an estimate, or 0 if there is none.

    >>> thinking_text(1234), thinking_text(0)
    ('thinking, about 1,234 tokens', 'thinking')
    """
    return f"thinking, about {count(tokens, 'token')}" if tokens else "thinking"


def change_texts(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the first change at the beginning of a response's request, and how many thoughts were left out, as text.

    If rxllm does not know the change, the first text is the provider's reason for a cache miss. Thoughts were left out
    by rxllm, before or after a refusal, or by the provider. Either text can be empty.

    >>> change_texts({"prefix": PrefixReport("system", {"messages.1.content.0": "system"})})
    ('system changed', '1 thought left out')
    """
    number = sum(_left_out(name, value) for name, value in metadata.items())
    return _change(metadata), f"{count(number, 'thought')} left out" if number else ""


def _change(metadata: Mapping[str, Any]) -> str:
    match metadata:
        case {"prefix": PrefixReport(first_change=str(change))}:
            return f"{change} changed"
        case {"cache_miss_reason": {"type": str(reason)}} if reason.endswith("_changed"):  # others are no change
            return reason.replace("_", " ")
        case {"prompt_cache_diagnostics": {"type": "cache_miss", "reason": str(reason)}}:
            return reason.replace("_", " ")
        case _:
            return ""


def _left_out(name: str, value: Any) -> int:
    """Return the number of thoughts that an entry of a response's metadata reports as left out."""
    match name, value:
        case "prefix", PrefixReport(left_out=places):
            return len(places)
        case "refused_thoughts", {"left_out": [*places]}:
            return len(places)
        case "input_transformations", [*entries]:
            return sum(map(_is_dropped, entries))
        case _:
            return 0


def _is_dropped(transformation: Any) -> bool:
    match transformation:
        case {"type": "thinking_dropped"} | {"type": "reasoning", "action": "removed"}:  # Anthropic's, or OpenAI's
            return True
        case _:
            return False


def error_text(error: Exception) -> str:
    """Return the error's text, with a remedy if there is one.

    >>> error_text(AdapterError("rate_limited", provider="openai"))
    'openai: rate limited; wait, or send fewer requests at a time with ops.rate_limited'
    """
    text = str(error).strip() or type(error).__name__
    if isinstance(error, AdapterError | StreamError):
        if error.message == error.default_message():
            text = f"{error.provider or 'the model'}: {error.reason.replace('_', ' ')}"
        remedy = _REMEDIES.get(error.reason)
        return text if remedy is None or ";" in text or "\n" in text else f"{text.removesuffix('.')}; {remedy}"
    return text


_REMEDIES = {
    "authentication_failed": "check the API key",
    "rate_limited": "wait, or send fewer requests at a time with ops.rate_limited",
    "provider_unavailable": "try again later, or ask another model with ops.fallback",
    "context_length_exceeded": "shorten the conversation, or use a model with a larger context",
    "timeout": "pass a larger timeout, or ask another model with ops.fallback",
    "network_error": "check the base_url and the network",
    "truncated": "ask again, or use ops.restart to do so automatically",
    "content_filter": "change the request, or ask another model with ops.fallback",
    "budget_exceeded": "pass a larger budget",
}
"""Maps error reasons to remedies. A message that contains a semicolon or a line break gets no remedy."""
