"""Convert transport errors to ``AdapterError``.

Errors are recognized by the names of their classes, so that the same code works for httpx and httpx2.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from rxllm.http.decompression import DecompressionError
from rxllm.http.proxies import proxy_for
from rxllm.http.secrets import public_url
from rxllm.http.timeouts import IdleTimeoutError
from rxllm.values import AdapterError

_REASONS = {
    "TimeoutException": "timeout",
    "TransportError": "network_error",
    "DecodingError": "malformed_response",
    "TooManyRedirects": "invalid_request",
    "InvalidURL": "invalid_request",
    "RequestError": "network_error",
    "StreamError": "network_error",
    # aiohttp's errors
    "ServerTimeoutError": "timeout",
    "ClientError": "network_error",
    "HttpProcessingError": "network_error",
    # rxllm's own errors
    "IdleTimeoutError": "timeout",
    "DecompressionError": "malformed_response",
    "AddressError": "invalid_request",
}


class AddressError(ValueError):
    """Raised if the host or the port of a URL is invalid."""


def transport_error(
    error: Exception, provider: str | None, url: str, client: Any = None, *, begun: bool = False
) -> AdapterError | None:
    """Convert `error` to an `AdapterError`. Return None if it is not a transport error.

    If `client` has sent the request through a proxy of the environment, the message names the proxy.
    """
    ours = isinstance(error, IdleTimeoutError | DecompressionError | AddressError)
    names = [type(error).__name__] if ours else _class_names(error, "httpx", "httpx2", "aiohttp")
    if names:  # httpx-aiohttp raises ConnectTimeout even if the connection was refused
        names = _class_names(error.__cause__, "aiohttp") + names
    reason = next((_REASONS[name] for name in names if name in _REASONS), None)
    if reason is None:
        return None
    text = str(error) or names[0]
    is_silence = reason == "timeout" and "Connect" not in names[0]
    limit = f" of {text}" if isinstance(error, IdleTimeoutError) else ""
    failed = "was cut off" if begun else "could not be reached"
    fault = f"sent nothing for longer than the timeout{limit}" if is_silence else f"{failed}: {text}"
    proxy = proxy_for(url) if getattr(client, "trust_env", False) and not begun else None
    if proxy is not None:
        remedy = f"; the environment sets the proxy {public_url(proxy)}: check it, or add the host to NO_PROXY"
    else:
        remedy = _remedy(url, text) if "Connect" in names[0] and not begun else ""
    result = AdapterError(reason, f"{url} {fault} ({names[0]}){remedy}", provider=provider)
    result.__context__, result.__suppress_context__ = error, True  # the message contains everything a user needs
    return result


def _remedy(url: str, text: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "; if the server's authority is your own, set SSL_CERT_FILE to a file with its certificate"
    host = urlsplit(url).hostname or ""
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    return "; is the server running?" if is_local else "; check the base_url and the network"


def may_be_cancelled(client: Any) -> bool:
    """Return whether calls on `client` can be cancelled safely at any time, which is the case with aiohttp."""
    return any(_class_names(part, "httpx_aiohttp") for part in (client, getattr(client, "_transport", None)))


def _class_names(value: object, *libraries: str) -> list[str]:
    return [cls.__name__ for cls in type(value).__mro__ if cls.__module__.partition(".")[0] in libraries]
