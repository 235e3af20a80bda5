"""The error responses of `openai_app`.

If a run fails, the client sees only the error's class and reason, because the message may quote the provider, a prompt
or a path. If a request is invalid, the client sees the full message.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from rxllm import AdapterError, EngineError, LLMError, StreamError, ValidationError
from rxllm.web._frames import Frame

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
}
_AGAIN = (408, 429, 502, 503)
"""The statuses after which clients should retry. SDKs also retry after a 500, unless ``x-should-retry`` forbids it."""

_STATUSES: dict[type[LLMError], dict[int, set[str]]] = {
    AdapterError: {
        400: {"invalid_request", "unsupported_feature", "context_length_exceeded", "content_filter"},
        408: {"timeout"},
        429: {"rate_limited"},
        502: {"network_error", "malformed_response"},
        503: {"provider_unavailable"},
    },
    StreamError: {
        400: {"guard_tripped"},
        408: {"timeout"},
        429: {"budget_exceeded"},
        502: {"truncated", "malformed_event", "oversized_frame"},
    },
    EngineError: {400: {"missing_tool_results", "unsupported_response_format"}},
    ValidationError: {400: {"unsupported_capability", "invalid_request"}, 422: {"invalid_output"}},
}
"""The HTTP statuses of errors, by class and reason. An error that is not listed here gets the status 500."""

_CODES = {
    "rate_limited": "rate_limit_exceeded",
    "provider_unavailable": "service_unavailable",
    "guard_tripped": "content_filter",
    "budget_exceeded": "insufficient_quota",
}
"""Maps the reasons of rxllm's errors to OpenAI's error codes. Reasons that are not listed here are used as codes."""


class RefusedError(Exception):
    """An exception that is sent to the client as an error response."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        *,
        retry_after: float | None = None,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.body: Frame = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        self.headers = {"x-should-retry": "true" if status in _AGAIN and not is_final else "false"}
        if retry_after is not None and math.isfinite(retry_after):
            self.headers |= {"retry-after": str(math.ceil(retry_after)), "retry-after-ms": str(int(retry_after * 1000))}
        if status == HTTPStatus.UNAUTHORIZED:
            self.headers["www-authenticate"] = "Bearer"


def wrong(param: str, message: str, code: str | None = None) -> RefusedError:
    return RefusedError(400, message, code, param)


def wrong_values(error: ValidationError, names: dict[str, str]) -> RefusedError:
    """Return the error for a request that rxllm rejected. `names` maps rxllm's field names to OpenAI's."""
    path, fault = error.errors[0] if error.errors else ((), error.message)
    steps = (f"[{step}]" if isinstance(step, int) else f".{names.get(step, step)}" for step in path or ("messages",))
    place = "".join(steps).removeprefix(".")
    return wrong(place, f"{place}: {fault}", "invalid_value")


def refusal_of(error: Exception) -> RefusedError:
    """Convert `error` into a response without internal details."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, TimeoutError):
        return RefusedError(408, "the answer took too long", "timeout")
    if not isinstance(error, LLMError):
        return RefusedError(500, "an internal error occurred on this server", "internal_error")
    tables = [table for cls, table in _STATUSES.items() if isinstance(error, cls)]
    status = next((status for table in tables for status, reasons in table.items() if error.reason in reasons), 500)
    code = _CODES.get(error.reason, error.reason)
    seconds: Any = getattr(error, "retry_after", None)
    message = f"{error.TITLE}: {error.reason}"
    return RefusedError(status, message, code, retry_after=seconds, is_final=error.reason == "budget_exceeded")
