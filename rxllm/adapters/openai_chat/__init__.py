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

if TYPE_CHECKING:
    import httpx


__all__ = ["OpenAIChat"]


OPENAI = "https://api.openai.com/v1"

_IS_OPENAI = re.compile(r"https://(api\.openai\.com|[^/]+\.(openai|cognitiveservices|services\.ai)\.azure\.com)(/|$)")


class OpenAIChat(HTTPAdapter):
    """An adapter for Chat Completions (``POST {base_url}/chat/completions``) from OpenAI or a compatible server.

    Only OpenAI's own server needs a key. It is looked up in the call, in `api_key` and in ``OPENAI_API_KEY``. If
    you omit `base_url`, it is read from ``OPENAI_BASE_URL``.

    ``Request.options`` is merged into the body and can contain any field that the server supports; None removes a
    field. For example, ``{"logprobs": True, "top_logprobs": 2}`` requests log-probabilities, which arrive in
    ``Response.metadata["logprobs"]``. A tool such as ``Tool("patch", metadata={"openai": {"type": "custom"}})`` is a
    custom tool: the model calls it with free text, and its handler receives ``{"input": ...}``.

    For Azure, see `AzureChat`.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    base_url_variable = "OPENAI_BASE_URL"
    thoughts_field: str | None = None
    """The assistant-message field in which thoughts are sent back to servers that require them."""

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if no model is given."""
        if not request.model:
            raise missing_model(self.provider, self)
        headers = bearer(self, call)
        is_openai, thoughts_field = self._is_openai(), self.thoughts_field
        body = chat_body(request, provider=self.provider, is_openai=is_openai, thoughts_field=thoughts_field)
        return self.post("/chat/completions", body, call, headers=headers)

    def _is_openai(self) -> bool:
        return _IS_OPENAI.match(self.base_url) is not None

    def decoder(self, request: Request, *, raw: bool = False) -> ChatDecoder:
        return ChatDecoder(provider=self.provider, messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


def bearer(adapter: HTTPBase, call: Call) -> dict[str, str]:
    """Return the header with the key, or no header if the adapter or the call already sets Azure's ``api-key``."""
    if any(name.lower() == "api-key" for name in (*adapter.headers, *call.headers)):
        return {}
    key = adapter.key(call)
    return adapter.key_headers(key) if key else {}
