"""The adapter of Google's Gemini."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.adapters._token_counts import counted
from rxllm.adapters.gemini.auth import GoogleKeys, model_path
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.gemini.errors import answer_error
from rxllm.adapters.gemini.request import count_body, gemini_body
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, TokenCount

if TYPE_CHECKING:
    import httpx


class Gemini(GoogleKeys, HTTPAdapter):
    """``POST {base_url}/models/{model}:streamGenerateContent?alt=sse`` of the Gemini API, or of Vertex AI.

    The key is `api_key`, the call's, ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY``. Without a `base_url`,
    ``GOOGLE_GEMINI_BASE_URL`` of the environment is used, which has no ``/v1beta``. For Vertex, pass the `base_url`
    ``https://aiplatform.googleapis.com/v1/projects/P/locations/L/publishers/google`` and an access token as the key.
    ``Request.options`` is merged over the body, objects field by field: ``{"generationConfig": {"topP": 0.9}}``; its
    ``tools`` (``[{"googleSearch": {}}]``) are added to the request's functions; None removes a field.
    ``{"generationConfig": {"responseLogprobs": True, "logprobs": 2}}`` asks for log-probabilities, see
    ``Response.metadata["logprobs"]``.
    """

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raise ``EngineError("missing_model")`` without a model."""
        return self._post_body("streamGenerateContent?alt=sse", gemini_body, request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Emit what the server counts: https://ai.google.dev/api/tokens."""
        build = partial(self._post_body, "countTokens", partial(count_body, is_vertex="aiplatform." in self.base_url))
        return counted(self, request, call, build, "totalTokens")

    def _post_body(
        self, method: str, body_of: Callable[[Request], dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        key = self.key(call)
        path = f"/{model_path(request.model)}:{method}"
        return self.post(path, body_of(request), call, headers=self._auth(key) if key else {})

    def decoder(self, request: Request, *, raw: bool = False) -> GeminiDecoder:
        return GeminiDecoder(messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return answer_error(status, headers, body)
