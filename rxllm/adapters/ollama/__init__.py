"""The adapter for Ollama's own API: https://docs.ollama.com/api/chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.http_base import missing_model
from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.adapters.ollama.request import ollama_body
from rxllm.values import AdapterError, Call, Request

if TYPE_CHECKING:
    import httpx


__all__ = ["Ollama"]


PORT = 11434


class Ollama(HTTPAdapter):
    """An adapter for Ollama's own API.

    It sends ``POST {base_url}/api/chat`` requests. Only ollama.com requires a key. If you do not pass a `base_url`, it
    is read from ``OLLAMA_HOST``, which can have any form that Ollama itself accepts, such as ``my-gpu``, ``:11500``,
    ``0.0.0.0`` or ``https://ollama.example/proxy``.

    ``Request.options`` is merged into the body, including nested objects, as in ``{"keep_alive": "5m", "options":
    {"num_ctx": 8192}}``. An option that is None removes the field. To request log-probabilities, pass
    ``{"logprobs": True, "top_logprobs": 2}``. They arrive in ``Response.metadata["logprobs"]``.
    """

    provider = "ollama"
    key_variable = "OLLAMA_API_KEY"
    needs_key = False
    default_base_url = "http://localhost:11434"
    base_url_variable = "OLLAMA_HOST"

    @staticmethod
    def url_of_variable(text: str) -> str:
        return host_url(text)

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if the request has no model."""
        if not request.model:
            raise missing_model(self.provider, self)
        key = self.key(call)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.post("/api/chat", ollama_body(request), call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> OllamaDecoder:
        return OllamaDecoder(messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address to connect to for each wildcard address that a server can listen on."""


def host_url(host: str) -> str:
    """Return the URL that the value of ``OLLAMA_HOST`` stands for.

    The value is read in the same way as in Ollama's own envconfig/config.go (https://github.com/ollama/ollama). Raises
    ``ValueError`` if the port is not a number.

    >>> host_url("my-gpu"), host_url("0.0.0.0:11500"), host_url("https://ollama.example/proxy/")
    ('http://my-gpu:11434', 'http://127.0.0.1:11500', 'https://ollama.example/proxy')
    """
    scheme, separator, rest = host.strip("\"' ").rpartition("://")
    parts = urlsplit(f"{scheme or 'http'}://{rest}")
    user, at, _ = parts.netloc.rpartition("@")
    name = _LOOPBACK.get(parts.hostname or "", parts.hostname or "")
    port = parts.port or (None if separator else PORT)
    address = (f"[{name}]" if ":" in name else name) + (f":{port}" if port else "")
    return f"{parts.scheme}://{user}{at}{address}{parts.path.rstrip('/')}"
