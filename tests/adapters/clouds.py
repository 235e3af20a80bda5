"""Requests of ours and of a cloud's own SDK, compared field by field at a server on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rxllm import Engine, LLMError, generate
from rxllm.testing.loopback import Loopback
from rxllm.testing.loopback import Request as Asked
from rxllm.values import Request

AUTH = ("api-key", "authorization", "x-api-key", "x-goog-api-key", "x-goog-user-project", "anthropic-beta")


def parts(asked: Asked, headers: Sequence[str] = AUTH) -> dict[str, Any]:
    """Return what a server routes and reads: method, path, query, the headers that matter, and the body."""
    url = urlsplit(asked.path)
    sent = {name: asked.headers[name] for name in (*headers, "content-type") if name in asked.headers}
    return {
        "method": asked.method,
        "path": url.path,
        "query": parse_qs(url.query),
        "headers": sent,
        "body": asked.json,
    }


def ask(server: Loopback, adapter: Any, request: Request, **options: Any) -> Asked:
    """Return the request that `adapter` sends for `request`. The server's answer does not matter."""
    with contextlib.suppress(LLMError):
        generate(Engine(adapter, retry=False), request, **options).run()
    return server.requests[-1]
