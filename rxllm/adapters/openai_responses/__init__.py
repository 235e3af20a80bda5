"""The adapter for the Responses API: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import HTTPAdapter, counted
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.http_base import missing_model
from rxllm.adapters.openai_chat import OPENAI, bearer
from rxllm.adapters.openai_responses.background import BackgroundAnswer, BackgroundDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.adapters.openai_responses.frames import as_item
from rxllm.adapters.openai_responses.request import count_body, responses_body
from rxllm.http import Decoder, KeptAnswer
from rxllm.runtime import Stream
from rxllm.values import AdapterError, Call, Request, TokenCount

if TYPE_CHECKING:
    import httpx


__all__ = ["OpenAIResponses"]


class OpenAIResponses(HTTPAdapter):
    """An adapter for the Responses API of OpenAI or a compatible server.

    It sends ``POST {base_url}/responses`` requests. Only OpenAI's own server requires a key. The key is looked up in
    the call, then in `api_key`, then in ``OPENAI_API_KEY``. For Azure, see `AzureResponses`.

    Every request contains the whole thread, so the server is asked not to store anything (``"store": False``).
    Reasoning models are asked for encrypted reasoning, which can be sent back. If you use ``previous_response_id``,
    ``conversation`` or ``background``, ``store`` is sent only if you set it.

    ``Request.options`` is merged into the body. An option that is None removes the field. Objects are merged too, so
    you can combine ``{"reasoning": {"summary": "auto"}}`` with a `reasoning_effort`. To request log-probabilities, pass
    ``{"include": ["message.output_text.logprobs"], "top_logprobs": 2}``. They arrive in
    ``Response.metadata["logprobs"]``.

    If you pass ``{"background": True}``, OpenAI stores the answer while the model is writing it. If the connection
    drops, the rest of the answer is read over a new connection. The call's `retry` policy sets the delay before each
    attempt to reconnect. Nothing is lost or repeated. Disposing of the call asks OpenAI to stop writing the answer.
    A server that ignores ``background`` responds as usual. See ``docs/errors.md``.

    If a tool has ``metadata["strict"]``, its schema is enforced, unless OpenAI's strict mode cannot express it. That
    mode knows no optional parameters, for example.

    To use one of the provider's own tools, pass the option ``{"tools": [{"type": "web_search"}]}`` or the tool
    ``Tool("web_search", metadata={"openai": {"type": "web_search"}})``. Such a tool needs a handler only if it runs on
    your machine, as ``apply_patch``, ``local_shell`` and ``computer`` do. If OpenAI needs approval to call an MCP
    server, the call has ``metadata["hosted"]``, and waits like a call to a tool with ``approval=True``.

    To change the effort from a message on, without losing the cached prefix, leave `reasoning_effort` as it is. Add the
    part ``ProviderPart("openai", {"type": "configuration_update", "reasoning": {"effort": "high"}})`` to the message.
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = OPENAI
    base_url_variable = "OPENAI_BASE_URL"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if the request has no model."""
        return self._post_body("/responses", responses_body, request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Ask the server for the number of input tokens, and emit it.

        See https://developers.openai.com/api/docs/guides/token-counting.
        """
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
        kind = BackgroundDecoder if request.options.get("background") else ResponsesDecoder
        return kind(provider=self.provider, messages=request.messages, offered=offered, raw=raw)

    def kept_answer(self, sent: httpx.Request, decoder: Decoder) -> KeptAnswer | None:
        return BackgroundAnswer(self, decoder) if isinstance(decoder, BackgroundDecoder) else None

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)
