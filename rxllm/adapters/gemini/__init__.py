"""The adapter for Google's Gemini API: https://ai.google.dev/api/generate-content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rxllm.adapters._http import HTTPAdapter, counted
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.gemini.decoder import GeminiDecoder, use_status_as_code
from rxllm.adapters.gemini.request import candidate_count, count_body, gemini_body
from rxllm.adapters.http_base import HTTPBase, missing_model, versioned
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, TokenCount

if TYPE_CHECKING:
    import httpx


__all__ = ["Gemini"]


GOOGLE = "https://generativelanguage.googleapis.com/v1beta"

API_KEYS = ("AIza", "AQ.")
"""The prefixes of API keys. On Vertex AI, a key that begins with none of them is sent as an access token."""

_IS_VERTEX = re.compile(r"https://([\w-]+-)?aiplatform\.((us|eu)\.rep\.)?googleapis\.com(:\d+)?([/?]|$)")


class GoogleKeys(HTTPBase):
    """Finds the base URL and the key for Google's servers."""

    provider = "google"
    default_base_url = GOOGLE
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"

    @staticmethod
    def url_of_variable(text: str) -> str:
        """Append the API version to the base URL. Google's SDK adds the version to each path instead."""
        return versioned(text, "v1beta")

    @property
    def _is_vertex(self) -> bool:
        return _IS_VERTEX.match(self.base_url) is not None

    def key_headers(self, key: str) -> dict[str, str]:
        is_token = self._is_vertex and not key.startswith(API_KEYS)
        return super().key_headers(key) if is_token else {"x-goog-api-key": key}

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return use_status_as_code(http_error(self.provider, status, headers, body))


class Gemini(GoogleKeys, HTTPAdapter):
    """An adapter for the Gemini API or Vertex AI.

    It sends ``POST {base_url}/models/{model}:streamGenerateContent?alt=sse`` requests. The key is looked up in the
    call, then in `api_key`, then in ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY``. If you do not pass a `base_url`, it is
    ``GOOGLE_GEMINI_BASE_URL`` plus ``/v1beta``. For Vertex AI, see `Vertex`.

    ``Request.options`` is merged into the body, including nested objects, as in ``{"generationConfig": {"topP":
    0.9}}``. An option that is None removes the field. Tools in the option ``tools``, such as
    ``[{"googleSearch": {}}]``, are sent in addition to the request's own tools. To request log-probabilities, pass
    ``{"generationConfig": {"responseLogprobs": True, "logprobs": 2}}``. They arrive in
    ``Response.metadata["logprobs"]``.
    """

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if the request has no model."""
        return self._post_body("streamGenerateContent?alt=sse", gemini_body, request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Ask the server for the number of input tokens, and emit it. See https://ai.google.dev/api/tokens."""
        build = partial(self._post_body, "countTokens", partial(count_body, is_vertex=self._is_vertex))
        return counted(self, request, call, build, "totalTokens")

    def _post_body(
        self, method: str, body_of: Callable[[Request], dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        key = self.key(call)
        path = f"/{model_path(request.model)}:{method}"
        return self.post(path, body_of(request), call, headers=self.key_headers(key) if key else {})

    def decoder(self, request: Request, *, raw: bool = False) -> GeminiDecoder:
        return GeminiDecoder(messages=request.messages, n=candidate_count(request), raw=raw)


def model_path(model: str) -> str:
    """Return the URL path for `model`.

    >>> model_path("gemini-2.5-pro"), model_path("tunedModels/mine"), model_path("a/b?c")
    ('models/gemini-2.5-pro', 'tunedModels/mine', 'models/a%2Fb%3Fc')
    """
    collection, _, rest = model.partition("/")
    if not rest or collection not in _COLLECTIONS:
        return f"models/{quote(model, safe='@')}"
    return "/".join(_DOTS.get(name, quote(name, safe="@")) for name in model.split("/"))


_COLLECTIONS = {"models", "tunedModels", "endpoints", "publishers", "projects"}
_DOTS = {".": "%2E", "..": "%2E%2E"}
