"""Checks that a chat endpoint makes before it loads a conversation.

Browsers send ``Origin`` or ``Sec-Fetch-Site`` with every request that a page makes. Without a check of these headers, a
page on another site could use its visitor's cookies, or reach a server on its visitor's machine. An attacker can also
make a domain name point to the visitor's machine, and the headers then look as if the page were on the same site. So
unless there is an `allow` function, the host in the ``Host`` header must be ``localhost`` or a loopback address.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from rxllm.values.argument_checks import check, check_count, check_function
from rxllm.web._openai_errors import RefusedError

log = logging.getLogger("rxllm")

SECONDS = 60.0
"""The period over which the requests about a conversation are counted, in seconds."""

_FORWARDED = ("forwarded", "via", "x-forwarded", "x-real-ip", "x-client-ip", "x-envoy", "true-client-ip", "cf-")
"""Prefixes of the header names that proxies add. Behind a proxy, every client appears to be local."""

_FOREIGN = "pages on other sites cannot use this endpoint; list a site in origins= to allow it"
_LOCAL = (
    "this endpoint accepts requests only from its own machine; to decide who else may use it, write "
    "web.chat(..., allow=function)"
)


class ChatRequest:
    """A request to a chat endpoint, as passed to the endpoint's `allow` function.

    `scope` is the ASGI scope, where middleware stores values such as ``scope["user"]``. In Starlette and FastAPI,
    ``Request(request.scope)`` creates the framework's own request. The names in `headers` are in lower case.
    """

    def __init__(self, scope: Any) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            separator = "; " if key == "cookie" else ", "  # RFC 9113, 8.2.3
            self.headers[key] = f"{self.headers[key]}{separator}{text}" if key in self.headers else text

    @property
    def cookies(self) -> dict[str, str]:
        pairs = (pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";"))
        return {name: value.strip('"') for name, _, value in pairs if name}


Allow = Callable[[ChatRequest, str], bool | Awaitable[bool]]
"""A function that takes a request and a conversation id, and returns whether the request may use that conversation."""


class Door:
    """Checks the requests to one chat endpoint."""

    def __init__(self, allow: Allow | None, origins: Collection[str], max_per_minute: int) -> None:
        if allow is not None:
            check_function("allow", allow)
        fits = not isinstance(origins, str) and all(_is_origin(origin) for origin in origins)
        check("origins", origins, fits, 'a list of origins, such as ["https://example.org"]')
        check_count("max_per_minute", max_per_minute)
        self._allow, self._origins, self._most = allow, frozenset(origins), max_per_minute
        # The times of the latest requests, by the conversation's id and whether they are posts.
        self._times: dict[tuple[str, bool], deque[float]] = {}
        self._forget_at = 0.0
        self._has_warned = False

    def enter(self, request: ChatRequest) -> dict[str, str]:
        """Check the origin of `request`, and return the headers that let a site in `origins` read the answer.

        Raises `RefusedError` if the request must not be answered.
        """
        if sum(name.lower() == b"host" for name, _ in request.scope["headers"]) > 1:
            raise RefusedError(400, "a request must have only one Host header", "invalid_request")
        if self._allow is None and not _is_local(request):
            if not self._has_warned:
                log.warning("web.chat: a request was refused: %s", _LOCAL)
            self._has_warned = True
            raise RefusedError(403, _LOCAL, "not_local")
        origin = request.headers.get("origin")
        if origin in self._origins:
            return {"access-control-allow-origin": origin, "access-control-allow-credentials": "true", "vary": "origin"}
        if origin is None:
            is_foreign = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        else:
            is_foreign = origin.partition("://")[2].lower() != request.headers.get("host", "").lower()
        if is_foreign:
            raise RefusedError(403, _FOREIGN, "origin_not_allowed")
        return {}

    async def admit(self, request: ChatRequest, id: str) -> None:
        """Raise `RefusedError` unless `request` may use the conversation `id`."""
        if self._allow is None:
            return
        allowed = self._allow(request, id)
        if not (await allowed if isawaitable(allowed) else allowed):
            raise RefusedError(404, "there is no such conversation", "not_found")

    def count(self, id: str, method: str) -> None:
        """Count a request. Posts do not count as other requests, so that a page that reconnects can still post.

        Raises `RefusedError` if there have been too many such requests in the last minute.
        """
        now = time.monotonic()
        if now >= self._forget_at:
            self._times = {key: times for key, times in self._times.items() if times[-1] > now - SECONDS}
            self._forget_at = now + SECONDS
        times = self._times.setdefault(
            (id, method == "POST"), deque(maxlen=self._most)
        )  # a full deque drops the oldest time
        if len(times) == self._most and (seconds := times[0] + SECONDS - now) > 0:
            raise RefusedError(429, "too many requests in this conversation", "rate_limited", retry_after=seconds)
        times.append(now)


def _is_origin(origin: Any) -> bool:
    return isinstance(origin, str) and origin.startswith(("http://", "https://")) and origin.count("/") == 2


def _is_local(request: ChatRequest) -> bool:
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        is_local = _is_loopback(host) and _is_loopback(request.client)
    except ValueError:  # the host or the client is neither "localhost" nor an IP address
        return False
    is_old = request.scope.get("http_version") == "1.0"  # nginx uses 1.0 by default, but no browser does
    return is_local and not is_old and not any(name.startswith(_FORWARDED) for name in request.headers)


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    address = ip_address(name)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
