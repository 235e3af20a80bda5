"""Google's errors (https://ai.google.dev/gemini-api/docs/troubleshooting), and those of its finish reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.adapters._http_errors import http_error, provider_error
from rxllm.adapters.gemini.frames import PROVIDER
from rxllm.values import AdapterError


def answer_error(status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
    """Return the error of an HTTP response with a status of 300 or more."""
    return _with_code(http_error(PROVIDER, status, headers, body))


def stream_error(payload: Any) -> AdapterError:
    """Return the error of a chunk."""
    return _with_code(provider_error(PROVIDER, payload))


def finish_error(reason: str, message: str | None) -> AdapterError:
    """Return the error of a response whose finish reason is a failure; the reason is the code."""
    kind = "invalid_request" if reason == "MISSING_THOUGHT_SIGNATURE" else "malformed_response"
    text = f"the model's answer ended with {reason}" + (f": {message}" if message else "")
    return AdapterError(kind, text, provider=PROVIDER, code=reason)


def _with_code(error: AdapterError) -> AdapterError:
    # {"code": 429, "status": "RESOURCE_EXHAUSTED"}: the number only repeats the HTTP status.
    name = error.metadata.get("status")
    if isinstance(name, str) and (error.code is None or error.code.isdigit()):
        error.code = name
        error.metadata = {key: value for key, value in error.metadata.items() if key != "status"}
    return error
