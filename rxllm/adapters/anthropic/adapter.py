"""The adapter of Anthropic's Messages API, and of every server that speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.adapters.anthropic.errors import anthropic_http_error
from rxllm.adapters.anthropic.request import messages_body
from rxllm.values import AdapterError, Call, Request

if TYPE_CHECKING:
    import httpx

VERSION = "2023-06-01"
"""The version of the API. The later 2026-10-21 has no temperature any more; to ask for it, set the header."""


class Anthropic(HTTPAdapter):
    """``POST {base_url}/messages`` of Anthropic, or of a server that is compatible with it.

    A key is needed for Anthropic alone: from `api_key`, the call, or ``ANTHROPIC_API_KEY``. ``Request.options`` is
    merged over the body, so whatever a server understands besides can be said there; an option of None takes a field
    out, and ``betas`` (a list of names) becomes the header ``anthropic-beta``. The API has no seed: it is not sent.

    A tool's ``metadata["strict"]`` makes its schema binding. Its ``metadata["anthropic"]`` is merged over what is said
    of it (``{"eager_input_streaming": True}``); with a ``"type"`` it is all that is said besides the name, as the tools
    want that the server runs (``{"type": "web_search_20250305"}``). ``metadata["cache"]`` of a part, a message or a
    tool (True, ``"5m"``, ``"1h"``) ends a prefix that is to be cached.
    """

    provider = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    default_base_url = "https://api.anthropic.com/v1"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """The request as it will be sent. Raises ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider)
        key = self.key(call)
        headers = {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})
        body = messages_body(request, provider=self.provider)
        betas = body.pop("betas", None)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        return self.post("/messages", body, call, headers=headers)

    def decoder(self, request: Request, *, raw: bool = False) -> MessagesDecoder:
        return MessagesDecoder(provider=self.provider, messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return anthropic_http_error(self.provider, status, headers, body)
