"""OpenAI's Responses API, and servers that speak it: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import HTTPAdapter, counted
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.http_base import missing_model
from rxllm.adapters.openai_chat import OPENAI, bearer
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.adapters.openai_responses.frames import as_item
from rxllm.adapters.openai_responses.request import count_body, responses_body
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, TokenCount

if TYPE_CHECKING:
    import httpx


__all__ = ["OpenAIResponses"]


class OpenAIResponses(HTTPAdapter):
    """``POST {base_url}/responses`` of OpenAI, or of a server that is compatible with it.

    Only OpenAI itself needs a key: from `api_key`, the call, or ``OPENAI_API_KEY``; for Azure see `OpenAIChat`.
    Every request sends the whole thread, so nothing is stored (``"store": False``), and the model's thoughts are
    requested in encrypted form, to be sent back. If ``Request.options`` relies on the server's memory
    (``store``, ``previous_response_id``, ``conversation``, ``background``), both settings are up to you.

    ``Request.options`` is merged over the body, objects field by field: ``{"reasoning": {"summary": "auto"}}`` can be
    combined with a `reasoning_effort`. None removes the field. ``{"include": ["message.output_text.logprobs"],
    "top_logprobs": 2}`` requests log-probabilities, see ``Response.metadata["logprobs"]``.

    Pass the provider's own tools as an option, ``{"tools": [{"type": "web_search"}]}``, or among your tools as
    ``Tool("web_search", metadata={"openai": {"type": "web_search"}})``. Only tools that run on your machine need a
    handler (``apply_patch``, ``local_shell``, ``computer``).
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    base_url_variable = "OPENAI_BASE_URL"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the request as it will be sent. Raise ``EngineError("missing_model")`` without a model."""
        return self._post_body("/responses", responses_body, request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Emit the server's token count: https://developers.openai.com/api/docs/guides/token-counting."""
        build = partial(self._post_body, "/responses/input_tokens", count_body)
        return counted(self, request, call, build, "input_tokens")

    def _post_body(
        self, path: str, body_of: Callable[..., dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        return self.post(path, body_of(request, provider=self.provider), call, headers=bearer(self, call))

    def decoder(self, request: Request, *, raw: bool = False) -> ResponsesDecoder:
        from_options = (as_item(tool).get("name") for tool in request.options.get("tools") or ())
        offered = {tool.name for tool in request.tools} | {str(name) for name in from_options}
        return ResponsesDecoder(provider=self.provider, messages=request.messages, offered=offered, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)
