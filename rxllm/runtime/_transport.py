"""Transport errors, in rxllm's words. They are told apart by their class names, so httpx and httpx2 read alike."""

from __future__ import annotations

from rxllm.values import AdapterError

_REASONS = {
    "TimeoutException": "timeout",
    "TransportError": "network_error",
    "DecodingError": "malformed_response",
    "TooManyRedirects": "invalid_request",
    "InvalidURL": "invalid_request",
    "RequestError": "network_error",
    "StreamError": "network_error",
}


def transport_error(error: Exception, provider: str | None, url: str) -> AdapterError | None:
    """`error` as an `AdapterError`; None if it is not a transport's."""
    names = [cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in ("httpx", "httpx2")]
    reason = next((_REASONS[name] for name in names if name in _REASONS), None)
    if reason is None:
        return None
    said = str(error) or names[0]
    silent = reason == "timeout" and "Connect" not in names[0]
    what = "sent nothing for longer than the timeout" if silent else f"could not be reached: {said}"
    made = AdapterError(reason, f"{url} {what} ({names[0]})", provider=provider)
    made.__cause__ = error
    return made
