"""Convert provider errors to `AdapterError`s.

Providers use different codes and statuses for the same error. The first match determines the reason:

1. A code or message indicating that the context is too long or that content was filtered.
2. A message indicating that the key was rejected. Some servers send this message with status 400.
3. If the status is 400 or unknown, the first code that has a reason other than ``invalid_request``.
4. The status or, if the status has no reason, the last code that has a reason.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from rxllm.adapters._usage_and_metadata import dicts, text_of
from rxllm.values import AdapterError
from rxllm.values.json_text import UNREADABLE, json_text, read_json

_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size|limit)|maximum (context|prompt)|reduce the length of (the|your) \w+"
    r"|\b(prompt|input|request).{0,30}(?<!string )(?<!array )(?<!took )too (long|large)"
    r"|\b(messages?|conversation|history|query|question|content|context|text)\b.{0,30}(?<!string )(?<!array )too long"
    r"|too many (input )?tokens|exceed(s|ed) (the maximum number of (input )?tokens|model token limit)"
    r"|token count.*exceeds|too long.{0,40}\btokens",
    re.IGNORECASE,
)
_UNKNOWN_KEY = re.compile(  # xAI puts these words in a URL
    r"(incorrect|invalid)( |%20)api( |%20)key|api( |%20)key( |%20)(is |was )?(not valid|invalid|incorrect|missing)",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content (management|filter)|content_filter|responsible ?ai|violates usage guidelines|input was flagged"
    r"|flagged (as potentially violating|for possible)|content exists risk",  # the last words are DeepSeek's
    re.IGNORECASE,
)

_BY_CODE = {
    "context_length_exceeded": (
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "prompt_too_long",
        "input_too_long",
        "too_long",
    ),
    "content_filter": (
        "content_filter",
        "content_policy_violation",
        "moderation_blocked",
        "data_inspection_failed",
        "image_content_policy_violation",
        "bio_policy",
        "cyber_policy",
        "misalignment_policy_violation",
    ),
    "authentication_failed": (
        "authentication_error",
        "invalid_api_key",
        "invalid_authentication_error",
        "permission_error",
        "permission_denied",
        "unauthenticated",
        "api_key_invalid",
        "forbidden",
    ),
    "rate_limited": (
        "rate_limit_error",
        "rate_limit_exceeded",
        "insufficient_quota",
        "billing_error",
        "payment_required",
        "resource_exhausted",
        "throttlingexception",
        "too_many_requests",
    ),
    "timeout": ("timeout", "timeout_error", "request_timeout", "deadline_exceeded", "vector_store_timeout"),
    "provider_unavailable": (
        "overloaded_error",
        "api_error",
        "server_error",
        "internal_server_error",
        "internal_error",
        "internal",
        "unavailable",
        "service_unavailable",
    ),
    "invalid_request": (
        "invalid_request_error",
        "invalid_request",
        "invalid_argument",
        "not_found_error",
        "model_not_found",
        "invalid_prompt",
        "data_residency_mismatch",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "invalid_base64_image",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_file_too_large",
        "image_file_not_found",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
    ),
}
_REASONS = {code: reason for reason, codes in _BY_CODE.items() for code in codes}
LONGEST_WAIT = 366 * 86_400.0
"""The maximum ``retry_after``, in seconds. A larger value would overflow a timer."""
LONGEST_MESSAGE = 2_000
"""The maximum length of an error's message, in characters. It is cut before any pattern is matched with it."""
_SPECIFIC = ("context_length_exceeded", "content_filter")


def http_error(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
    """Return the error for a response whose status is 300 or higher."""
    fields = {name.lower(): text for name, text in headers.items()}
    try:
        payload = read_json(body)
    except UNREADABLE:
        payload = _plain_text(body, fields.get("content-type", ""))
    request_id = fields.get("x-request-id") or fields.get("request-id")
    return provider_error(provider, payload, status=status, retry_after=retry_after(fields), request_id=request_id)


def provider_error(
    provider: str,
    payload: Any,
    *,
    status: int | None = None,
    retry_after: float | None = None,
    request_id: str | None = None,
) -> AdapterError:
    """Return the error that a parsed body or error frame describes."""
    error = _flatten(payload)
    upstream = _upstream_error(error)
    message = _clip(": ".join(filter(None, (_message_of(error), _message_of(upstream))))) or None
    details = dicts(error.get("details"))
    values = [fields.get(name) for fields in (error, upstream) for name in ("code", "type", "status")]
    values += [detail.get("reason") for detail in details]
    codes = [str(value) for value in values if value not in (None, "")]
    if status is None:
        status = next((int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)), None)
    return AdapterError(
        _reason(status, [code.lower() for code in codes], message),
        message or (f"HTTP {status}" if status else None),
        provider=provider,
        status=status,
        code=str(error["code"]) if error.get("code") not in (None, "") else None,
        retry_after=retry_after if retry_after is not None else _retry_delay(details),
        request_id=request_id or text_of(error.get("request_id")) or None,
        metadata={k: v for k, v in error.items() if k not in ("message", "code", "request_id") and v is not None},
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the provider asks the client to wait, or None if it does not ask.

    If the provider asks the client to wait until a date, the wait is measured from the time in the ``date`` header or,
    if there is no such header, from the current time.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return _parse_seconds(headers[name], unit)
        except (KeyError, ValueError):
            continue
    try:
        due = parsedate_to_datetime(headers["retry-after"]).timestamp()
        now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
    except (KeyError, ValueError, TypeError, OverflowError):  # a date is missing or malformed
        return None
    return max(0.0, due - now)


def _flatten(payload: Any) -> dict[str, Any]:
    # A payload has one of these forms: {"error": {...}}, {"error": "..."}, {"detail": ...}, {"message": ...},
    # [{"error": ...}], "..."
    if isinstance(payload, list):
        return _flatten(cast(list[Any], payload)[0]) if payload else {}
    if not isinstance(payload, dict):
        return {"message": payload}
    outer = cast(dict[str, Any], payload)
    inner = outer.get("error")
    if isinstance(inner, dict):
        return {"request_id": outer.get("request_id"), **cast(dict[str, Any], inner)}
    if isinstance(inner, str) and "message" not in outer:
        return {**{k: v for k, v in outer.items() if k != "error"}, "message": inner}
    return dict(outer)


def _upstream_error(error: Mapping[str, Any]) -> dict[str, Any]:
    # OpenRouter puts the upstream error into metadata.raw, either as JSON or as text.
    metadata = error.get("metadata")
    raw = cast(dict[str, Any], metadata).get("raw") if isinstance(metadata, dict) else None
    if not isinstance(raw, str):
        return {}
    try:
        return _flatten(read_json(raw))
    except UNREADABLE:
        return {"message": raw[:500]}


def _message_of(error: Mapping[str, Any]) -> str | None:
    value = next((error[name] for name in ("message", "detail", "error", "msg") if error.get(name)), None)
    return value if value is None or isinstance(value, str) else json_text(value)


def _clip(message: str) -> str:
    """Return the first `LONGEST_MESSAGE` characters of a provider's text."""
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


def _reason(status: int | None, codes: list[str], message: str | None) -> str:
    by_code = [_REASONS[code] for code in codes if code in _REASONS]
    if status in (None, 400, 403, 413, 422, 500) or any(reason in _SPECIFIC for reason in by_code):
        for reason, words in zip(_SPECIFIC, (_TOO_LONG, _FILTERED), strict=True):
            if reason in by_code or words.search(message or ""):
                return reason
    if status in (None, 400) and _UNKNOWN_KEY.search(message or ""):
        return "authentication_failed"
    by_status = _reason_of_status(status)
    if status in (None, 400):
        return next((reason for reason in by_code if reason != "invalid_request"), None) or by_status or _last(by_code)
    return by_status or _last(by_code)


def _reason_of_status(status: int | None) -> str | None:
    match status:
        case 401 | 403:
            return "authentication_failed"
        case 408:
            return "timeout"
        case 402 | 429:  # 402 means no credit
            return "rate_limited"
        case int() if status >= 500:
            return "provider_unavailable"
        case int() if status >= 300:
            return "invalid_request"
        case _:
            return None


def _last(reasons: list[str]) -> str:
    return reasons[-1] if reasons else "unknown"


def _retry_delay(details: list[dict[str, Any]]) -> float | None:
    # Google sends {"retryDelay": "34.5s"}.
    delays = (re.fullmatch(r"(\d+(?:\.\d*)?)s", str(detail.get("retryDelay"))) for detail in details)
    return next((_parse_seconds(delay[1]) for delay in delays if delay), None)


def _parse_seconds(text: str, unit: int = 1) -> float:
    """Convert `text` to seconds. The result is at most `LONGEST_WAIT`.

    Raises ``ValueError`` if `text` is not a number.
    """
    seconds = float(text) / unit
    if math.isnan(seconds):
        raise ValueError("not a time")
    return min(max(0.0, seconds), LONGEST_WAIT)


def _plain_text(body: bytes, content_type: str) -> str | None:
    text = body[:LONGEST_MESSAGE].decode(errors="replace").strip()
    return None if "html" in content_type or text.startswith("<") else text[:500] or None
