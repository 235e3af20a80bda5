"""Why Anthropic said no: https://platform.claude.com/docs/en/api/errors.

Every error, of an answer as in a stream, is ``{"type": "error", "error": {"type": ..., "message": ...}, "request_id":
...}``, and the type is the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.adapters._http_errors import http_error, provider_error
from rxllm.values import AdapterError


def anthropic_error(provider: str, payload: Any) -> AdapterError:
    """The error that a frame inside a stream says."""
    return _coded(provider_error(provider, payload))


def anthropic_http_error(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
    """The error of an HTTP answer with a status of 300 or more."""
    return _coded(http_error(provider, status, headers, body))


def _coded(error: AdapterError) -> AdapterError:
    code = error.metadata.get("type")
    if error.code is None and isinstance(code, str) and code != "error":
        error.code = code
        error.metadata = {name: held for name, held in error.metadata.items() if name != "type"}
    return error
