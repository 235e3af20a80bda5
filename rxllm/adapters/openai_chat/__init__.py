"""The adapter for the Chat Completions API: https://platform.openai.com/docs/api-reference/chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.http_base import HTTPBase, missing_model
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_chat.request import chat_body
from rxllm.values import AdapterError, Call, Request
from rxllm.values.usage import whole

if TYPE_CHECKING:
    import httpx


__all__ = ["OpenAIChat"]


OPENAI = "https://api.openai.com/v1"

_IS_OPENAI = re.compile(r"https://(api\.openai\.com|[^/]+\.(openai|cognitiveservices|services\.ai)\.azure\.com)(/|$)")


class OpenAIChat(HTTPAdapter):
    """An adapter for the Chat Completions API of OpenAI or a compatible server.

    It sends ``POST {base_url}/chat/completions`` requests. Only OpenAI's own server requires a key. The key is looked
    up in the call, then in `api_key`, then in ``OPENAI_API_KEY``. If you do not pass a `base_url`, it is read from
    ``OPENAI_BASE_URL``. For Azure, see `AzureChat`.

    ``Request.options`` is merged into the body. An option that is None removes the field. To request log-probabilities,
    pass ``{"logprobs": True, "top_logprobs": 2}``. They arrive in ``Response.metadata["logprobs"]``.

    Some servers leave a model's thinking in its text. Unless the server is OpenAI's, an answer that begins with
    ``<think>`` has thinking up to ``</think>``. An answer that is spoken has its words as text, and its sound in a
    ``FileAdded`` at the end.

    ``Tool("patch", metadata={"openai": {"type": "custom"}})`` is a custom tool. The model calls it with free text. Its
    handler receives ``{"input": ...}``.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    base_url_variable = "OPENAI_BASE_URL"
    thoughts_field: str | None = None
    """The message field in which thoughts are sent back, or None if the server does not need them."""

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if the request has no model."""
        if not request.model:
            raise missing_model(self.provider, self)
        headers = bearer(self, call)
        is_openai, thoughts_field = self._is_openai(), self.thoughts_field
        body = chat_body(request, provider=self.provider, is_openai=is_openai, thoughts_field=thoughts_field)
        return self.post("/chat/completions", body, call, headers=headers)

    def _is_openai(self) -> bool:
        return _IS_OPENAI.match(self.base_url) is not None

    def decoder(self, request: Request, *, raw: bool = False) -> ChatDecoder:
        n = whole(request.options.get("n")) or 1
        think_tags = not self.base_url.startswith("https://api.openai.com/")  # Azure serves models of others too
        return ChatDecoder(provider=self.provider, messages=request.messages, n=n, think_tags=think_tags, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


def bearer(adapter: HTTPBase, call: Call) -> dict[str, str]:
    """Return the header for the key.

    Return an empty dict if an ``api-key`` header is already set, or if there is no key.
    """
    if any(name.lower() == "api-key" for name in (*adapter.headers, *call.headers)):
        return {}
    key = adapter.key(call)
    return adapter.key_headers(key) if key else {}
