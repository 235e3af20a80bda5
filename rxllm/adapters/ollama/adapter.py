"""The adapter of Ollama's own API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.adapters.ollama.request import ollama_body
from rxllm.values import AdapterError, Call, Request

if TYPE_CHECKING:
    import httpx


class Ollama(HTTPAdapter):
    """``POST {base_url}/api/chat`` of an Ollama server. A local one needs no key; ollama.com needs one.

    ``Request.options`` is merged over the body, objects field by field: ``{"keep_alive": "5m", "options":
    {"num_ctx": 8192}}``; an option of None removes a field. ``{"logprobs": True, "top_logprobs": 2}`` asks for
    log-probabilities, see ``Response.metadata["logprobs"]``.
    """

    provider = "ollama"
    key_variable = "OLLAMA_API_KEY"
    default_base_url = "http://localhost:11434"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raise ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider)
        key = self._find_key(call)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.post("/api/chat", ollama_body(request), call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> OllamaDecoder:
        return OllamaDecoder(messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)
