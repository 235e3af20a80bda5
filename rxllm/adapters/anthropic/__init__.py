"""Anthropic's Messages API: https://platform.claude.com/docs/en/api/messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import HTTPAdapter, counted
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.anthropic.decoder import MessagesDecoder, use_type_as_code
from rxllm.adapters.anthropic.request import count_body, messages_body
from rxllm.adapters.http_base import missing_model, versioned
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, TokenCount

if TYPE_CHECKING:
    import httpx


__all__ = ["Anthropic"]


_IS_OWN = re.compile(r"https://(api\.anthropic\.com|aws-external-anthropic\.[^/]+\.api\.aws)(:\d+)?(/|$)")

VERSION = "2023-06-01"
"""The API version. The later 2026-10-21 has no temperature; to use that one, set the header ``anthropic-version``."""


class Anthropic(HTTPAdapter):
    """``POST {base_url}/messages`` of Anthropic, or of a server that is compatible with it.

    Only Anthropic's own server needs a key: from `api_key`, the call, or ``ANTHROPIC_API_KEY``. Without a `base_url`,
    the environment's ``ANTHROPIC_BASE_URL`` is used, which has no ``/v1``. ``Request.options`` is merged over the body,
    so any field that a server supports can be set there; None removes a field, and ``betas`` (a list of names) becomes
    the header ``anthropic-beta``. The API has no seed, so none is sent.

    Only system messages at the beginning of a thread become the body's ``system``; later ones stay where they are, so
    that the cached prefix stays valid. A model that obeys messages with the role ``system`` gets one; any other gets
    text between ``<system>`` tags, which users can type too. The option ``system_entries`` (True, False) sets the form.

    A tool's ``metadata["strict"]`` makes its schema binding. Its ``metadata["anthropic"]`` is merged over the tool's
    entry in the body (``{"eager_input_streaming": True}``). With a ``"type"``, as for tools that the server runs
    (``{"type": "web_search_20250305"}``), it replaces everything but the name. ``metadata["cache"]`` of a part, a
    message or a tool (True, ``"5m"``, ``"1h"``) marks the end of a prefix to cache.
    """

    provider = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    default_base_url = "https://api.anthropic.com/v1"
    base_url_variable = "ANTHROPIC_BASE_URL"

    @staticmethod
    def url_of_variable(text: str) -> str:
        """Return the base URL with a version, which Anthropic's SDK adds to each path instead."""
        return versioned(text, "v1")

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raise ``EngineError("missing_model")`` without a model."""
        return self._post_body("/messages", messages_body, request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Emit the server's token count: https://platform.claude.com/docs/en/build-with-claude/token-counting."""
        build = partial(self._post_body, "/messages/count_tokens", count_body)
        return counted(self, request, call, build, "input_tokens")

    def _post_body(
        self, path: str, body_of: Callable[..., dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        key = self.key(call)
        headers = {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})
        body = body_of(request, provider=self.provider, is_own=_IS_OWN.match(self.base_url) is not None)
        betas = body.pop("betas", None)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        return self.post(path, body, call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> MessagesDecoder:
        return MessagesDecoder(provider=self.provider, messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return use_type_as_code(http_error(self.provider, status, headers, body))
