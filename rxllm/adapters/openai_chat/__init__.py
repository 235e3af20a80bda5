"""OpenAI's Chat Completions, and every server that speaks it: https://platform.openai.com/docs/api-reference/chat."""

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
    """``POST {base_url}/chat/completions`` of OpenAI, or of a server that is compatible with it.

    Only OpenAI itself needs a key: from `api_key`, the call, or ``OPENAI_API_KEY``. Without a `base_url`,
    the environment's ``OPENAI_BASE_URL`` is used. ``Request.options`` is merged over the body, and may have any field
    that a server supports; None removes a field. ``{"logprobs": True, "top_logprobs": 2}`` requests
    log-probabilities, see ``Response.metadata["logprobs"]``. A ``Tool("patch", metadata={"openai": {"type":
    "custom"}})`` is a custom tool: its handler receives the model's free text as ``{"input": ...}``.

    Azure's `base_url` is ``https://NAME.openai.azure.com/openai/v1``, with the resource's key as `api_key`. The dated
    versions of its API are ``.../openai/deployments/MODEL?api-version=2024-10-21``, with ``headers={"api-key": KEY}``;
    a header of that name replaces every other key.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    base_url_variable = "OPENAI_BASE_URL"
    thoughts_field: str | None = None
    """The assistant-message field in which thoughts are sent back, for servers that require them."""

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the request as it will be sent. Raise ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider, self)
        headers = bearer(self, call)
        is_openai = _IS_OPENAI.match(self.base_url) is not None
        body = chat_body(request, provider=self.provider, is_openai=is_openai, thoughts_field=self.thoughts_field)
        return self.post("/chat/completions", body, call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> ChatDecoder:
        return ChatDecoder(provider=self.provider, messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


def bearer(adapter: HTTPBase, call: Call) -> dict[str, str]:
    """Return the header with the key; none if the adapter's or the call's headers have Azure's own."""
    if any(name.lower() == "api-key" for name in (*adapter.headers, *call.headers)):
        return {}
    key = adapter.key(call)
    return {"authorization": f"Bearer {key}"} if key else {}
