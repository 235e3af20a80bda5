"""Checks that a chat endpoint makes before it loads a conversation.

Browsers send ``Origin`` or ``Sec-Fetch-Site`` with every request that a page makes. A page of another site could
otherwise use its visitor's cookies, or a server on its visitor's machine. DNS can point a hostile name at this machine,
so without an `allow` function, the name in the ``Host`` header must be local, too.
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
"""The period over which a conversation's posts are counted, in seconds."""

_FORWARDED = ("forwarded", "via", "x-forwarded", "x-real-ip", "x-client-ip", "x-envoy", "true-client-ip", "cf-")
"""The beginnings of the names of headers that proxies add. Behind a proxy, any client appears to be local."""

_FOREIGN = "pages of other sites cannot use this endpoint; list the site in origins=, such as https://example.org"
_LOCAL = "this endpoint serves only its own machine; to serve others, pass web.chat(..., allow=a function that decides)"


class ChatRequest:
    """A request to a chat endpoint, as its `allow` function receives it.

    `scope` is the ASGI scope, in which middleware leaves its findings, such as ``scope["user"]``. In Starlette and
    FastAPI, ``Request(request.scope)`` is the framework's own request. The names in `headers` are in lower case.
    """

    def __init__(self, scope: Any) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    @property
    def cookies(self) -> dict[str, str]:
        pairs = (pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";"))
        return {name: value.strip('"') for name, _, value in pairs if name}


Allow = Callable[[ChatRequest, str], bool | Awaitable[bool]]
"""A function that takes a request and a conversation's id, and decides whether the request may use the conversation."""


class Door:
    """The request checks of one chat endpoint."""

    def __init__(self, allow: Allow | None, origins: Collection[str], max_per_minute: int) -> None:
        if allow is not None:
            check_function("allow", allow)
        fits = not isinstance(origins, str) and all(_is_origin(origin) for origin in origins)
        check("origins", origins, fits, 'a list of origins, such as ["https://example.org"]')
        check_count("max_per_minute", max_per_minute)
        self._allow, self._origins, self._most = allow, frozenset(origins), max_per_minute
        self._posts: dict[str, deque[float]] = {}  # the times of each conversation's last posts
        self._forget_at = 0.0
        self._has_warned = False

    def enter(self, request: ChatRequest) -> dict[str, str]:
        """Return the headers that let a listed site read the answer.

        Raises `RefusedError` if the sender is forbidden.
        """
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
        """Raise `RefusedError` unless the request may use the conversation."""
        if self._allow is None:
            return
        allowed = self._allow(request, id)
        if not (await allowed if isawaitable(allowed) else allowed):
            raise RefusedError(404, "there is no such conversation", "not_found")

    def count(self, id: str) -> None:
        """Count a post to a conversation.

        Raises `RefusedError` if there are too many posts.
        """
        now = time.monotonic()
        if now >= self._forget_at:
            self._posts = {id: times for id, times in self._posts.items() if times[-1] > now - SECONDS}
            self._forget_at = now + SECONDS
        times = self._posts.setdefault(id, deque(maxlen=self._most))  # drops the oldest time
        if len(times) == self._most and (seconds := times[0] + SECONDS - now) > 0:
            raise RefusedError(429, "this conversation has too many requests", "rate_limited", retry_after=seconds)
        times.append(now)


def _is_origin(origin: Any) -> bool:
    return isinstance(origin, str) and origin.startswith(("http://", "https://")) and origin.count("/") == 2


def _is_local(request: ChatRequest) -> bool:
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        is_local = _is_loopback(host) and _is_loopback(request.client)
    except ValueError:  # neither a name nor an address
        return False
    is_old = request.scope.get("http_version") == "1.0"  # the default of nginx, but of no browser
    return is_local and not is_old and not any(name.startswith(_FORWARDED) for name in request.headers)


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    address = ip_address(name)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
