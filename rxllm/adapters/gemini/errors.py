"""Google's errors: https://ai.google.dev/gemini-api/docs/troubleshooting. The name of the status is the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.adapters._http_errors import http_error, provider_error
from rxllm.adapters.gemini.frames import PROVIDER
from rxllm.values import AdapterError


def answer_error(status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
    """The error of an HTTP answer with a status of 300 or more."""
    return _coded(http_error(PROVIDER, status, headers, body))


def stream_error(payload: Any) -> AdapterError:
    """The error of a chunk."""
    return _coded(provider_error(PROVIDER, payload))


def finish_error(reason: str, message: str | None) -> AdapterError:
    """The error of an answer that ends with a finish reason of ``"error"``, which is the code."""
    kind = "invalid_request" if reason == "MISSING_THOUGHT_SIGNATURE" else "malformed_response"
    said = f"the model's answer ended with {reason}" + (f": {message}" if message else "")
    return AdapterError(kind, said, provider=PROVIDER, code=reason)


def _coded(error: AdapterError) -> AdapterError:
    # {"code": 429, "status": "RESOURCE_EXHAUSTED"}: the number says no more than the HTTP status does.
    name = error.metadata.get("status")
    if isinstance(name, str) and (error.code is None or error.code.isdigit()):
        error.code = name
        error.metadata = {key: held for key, held in error.metadata.items() if key != "status"}
    return error
