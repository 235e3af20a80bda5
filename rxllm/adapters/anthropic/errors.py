"""Where Anthropic's errors have their code: https://platform.claude.com/docs/en/api/errors.

Every error, in an HTTP response as in a stream, is ``{"type": "error", "error": {"type": ..., "message": ...},
"request_id": ...}``, and the inner type is the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm.adapters._http_errors import http_error, provider_error
from rxllm.values import AdapterError


def anthropic_error(provider: str, payload: Any) -> AdapterError:
    """Return the error of a frame inside a stream."""
    return _with_code(provider_error(provider, payload))


def anthropic_http_error(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
    """Return the error of an HTTP response with a status of 300 or more."""
    return _with_code(http_error(provider, status, headers, body))


def _with_code(error: AdapterError) -> AdapterError:
    code = error.metadata.get("type")
    if error.code is None and isinstance(code, str) and code != "error":
        error.code = code
        error.metadata = {name: value for name, value in error.metadata.items() if name != "type"}
    return error
