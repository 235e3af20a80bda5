"""What rxllm knows of the transports: their errors in its own words, and which of them may be cancelled at any time.

They are told apart by the names of their classes, so httpx and httpx2, over httpcore and over aiohttp, read alike.
"""

from __future__ import annotations

from typing import Any

from rxllm.runtime._silence import SilenceError
from rxllm.runtime._unpack import PackedError
from rxllm.values import AdapterError

_REASONS = {
    "TimeoutException": "timeout",
    "TransportError": "network_error",
    "DecodingError": "malformed_response",
    "TooManyRedirects": "invalid_request",
    "InvalidURL": "invalid_request",
    "RequestError": "network_error",
    "StreamError": "network_error",
    # aiohttp's
    "ServerTimeoutError": "timeout",
    "ClientError": "network_error",
    "HttpProcessingError": "network_error",
    # ours
    "SilenceError": "timeout",
    "PackedError": "malformed_response",
    "AddressError": "invalid_request",
}


class AddressError(ValueError):
    """A host or a port is none that the system knows."""


def transport_error(error: Exception, provider: str | None, url: str, *, begun: bool = False) -> AdapterError | None:
    """`error` as an `AdapterError`; None if it is not a transport's. `begun` says that the answer had."""
    ours = isinstance(error, SilenceError | PackedError | AddressError)
    names = [type(error).__name__] if ours else _names(error, "httpx", "httpx2", "aiohttp")
    if names:  # httpx-aiohttp calls every refused or lost connection a ConnectTimeout, and what it wraps knows better
        names = _names(error.__cause__, "aiohttp") + names
    reason = next((_REASONS[name] for name in names if name in _REASONS), None)
    if reason is None:
        return None
    said = str(error) or names[0]
    silent = reason == "timeout" and "Connect" not in names[0]
    limit = f" of {said}" if isinstance(error, SilenceError) else ""
    failed = "broke off" if begun else "could not be reached"
    what = f"sent nothing for longer than the timeout{limit}" if silent else f"{failed}: {said}"
    made = AdapterError(reason, f"{url} {what} ({names[0]})", provider=provider)
    made.__cause__ = error
    return made


def may_be_cancelled(client: Any) -> bool:
    """Whether a request of `client` may be cancelled while it connects, as aiohttp's may; httpcore's may not."""
    return any(_names(part, "httpx_aiohttp") for part in (client, getattr(client, "_transport", None)))


def _names(thing: object, *libraries: str) -> list[str]:
    return [cls.__name__ for cls in type(thing).__mro__ if cls.__module__.partition(".")[0] in libraries]
