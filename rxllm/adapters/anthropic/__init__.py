"""The adapter for Anthropic's Messages API: https://platform.claude.com/docs/en/api/messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rxllm.adapters._http import HTTPAdapter, counted
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.anthropic.decoder import MessagesDecoder, use_type_as_code
from rxllm.adapters.anthropic.refused_thoughts import resending
from rxllm.adapters.anthropic.request import count_body, effort_fields, ledger_of, messages_body
from rxllm.adapters.http_base import missing_model, versioned
from rxllm.events import Event
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, TokenCount

if TYPE_CHECKING:
    import httpx


__all__ = ["Anthropic", "effort_fields"]

T = TypeVar("T")


_IS_OWN = re.compile(r"https://(api\.anthropic\.com|aws-external-anthropic\.[^/]+\.api\.aws)(:\d+)?(/|$)")

_TAKES_BEARER = re.compile(r"https://bedrock-mantle\.[^/]+\.api\.aws(:\d+)?(/|$)")
"""Matches the URL of Amazon Bedrock, whose keys are sent as bearer tokens."""

VERSION = "2023-06-01"
"""The API version to request by default. Newer versions do not support `temperature`."""


class Anthropic(HTTPAdapter):
    """An adapter for Anthropic's Messages API or a compatible server.

    It sends ``POST {base_url}/messages`` requests. Only Anthropic's own server requires a key. The key is looked up in
    the call, then in `api_key`, then in ``ANTHROPIC_API_KEY``. If you do not pass a `base_url`, it is
    ``ANTHROPIC_BASE_URL`` plus ``/v1``.

    ``Request.options`` is merged into the body. An option that is None removes the field. The option ``betas``, a list
    of names, is sent as the ``anthropic-beta`` header. The API has no seed, so ``Request.seed`` is not sent.

    A call with a `reasoning_effort` asks for a summary of the model's thoughts. To leave them out, pass
    ``options={"thinking": {"type": "adaptive", "display": "omitted"}}``. With the beta
    ``thinking-token-count-2026-05-13``, the stream then has a ``ThinkingDelta`` without text, but with
    ``estimated_tokens``, every so often.

    With the option ``fallbacks`` and the beta ``server-side-fallback-2026-07-01``, Anthropic's server asks another
    model if this one refuses. ``Response.model`` is then the model that answered, ``metadata["fallbacks"]`` lists the
    models that gave way, and ``usage.extra["iterations"]`` has the usage of each. The tool calls of a model that gave
    way do not run; therefore, all arguments arrive at the end of the message, and no tool starts before it. Such calls
    are not sent back, and neither are that model's thoughts.

    System messages at the start of the thread are sent as ``system``. Later ones stay where they are, so that the
    cached prefix remains valid. If the model obeys them there, they keep the role ``system``. Otherwise, they become
    text between ``<system>`` tags, which a user could also type. To choose for yourself, set the option
    ``system_entries``: True keeps the role, and False sends text.

    If the server refuses the model's earlier thoughts, because something before them has changed, the request is sent
    once more without them. The answer's metadata then has ``refused_thoughts``. The option ``refused_thoughts`` is
    ``"leave_out"``, ``"drop_block"`` to let the server drop them, or ``"error"`` to fail.

    If a tool has ``metadata["strict"]``, its schema is enforced. ``metadata["anthropic"]`` sets other fields, such as
    ``{"eager_input_streaming": True}``. To use a tool that the server runs, set its type, as in
    ``{"type": "web_search_20250305"}``; the tool's description and schema are then not sent. If a part, a message or a
    tool has ``metadata["cache"]``, the prefix that ends there can be cached. The value is True, ``"5m"`` or ``"1h"``.
    """

    provider = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    default_base_url = "https://api.anthropic.com/v1"
    base_url_variable = "ANTHROPIC_BASE_URL"

    @staticmethod
    def url_of_variable(text: str) -> str:
        """Append the API version to the base URL. Anthropic's SDK adds the version to each path instead."""
        return versioned(text, "v1")

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if the request has no model."""
        return self._post_body("/messages", messages_body, request, call)

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return the answer's events. If thoughts are refused, the request is sent once more, without them."""
        return resending(super().stream, self._body, request, call, self.provider)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Ask the server for the number of input tokens, and emit it.

        See https://platform.claude.com/docs/en/build-with-claude/token-counting.
        """
        build = partial(self._post_body, "/messages/count_tokens", count_body)

        def count(request: Request, call: Call) -> Stream[TokenCount]:
            return counted(self, request, call, build, "input_tokens")

        return resending(count, self._body, request, call, self.provider)

    def _post_body(
        self, path: str, body_of: Callable[..., dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        key = self.key(call)
        headers = {"anthropic-version": VERSION} | (self.key_headers(key) if key else {})
        body = self._body(request, body_of)
        betas = body.pop("betas", None)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        return self.post(path, body, call, headers=headers)

    def _body(self, request: Request, body_of: Callable[..., T] = messages_body) -> T:
        return body_of(request, provider=self.provider, is_own=_IS_OWN.match(self.base_url) is not None)

    def key_headers(self, key: str) -> dict[str, str]:
        return super().key_headers(key) if _TAKES_BEARER.match(self.base_url) else {"x-api-key": key}

    def decoder(self, request: Request, *, raw: bool = False) -> MessagesDecoder:
        ledger, fallbacks = self._body(request, ledger_of), bool(request.options.get("fallbacks"))
        return MessagesDecoder(
            provider=self.provider, messages=request.messages, fallbacks=fallbacks, raw=raw, ledger=ledger
        )

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return use_type_as_code(http_error(self.provider, status, headers, body))
