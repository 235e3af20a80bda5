"""OpenAI's Responses API, and the servers that speak it: values to the HTTP request, and its decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.adapters._http_errors import http_error
from rxllm.adapters._openai_chat import bearer
from rxllm.adapters._openai_responses_frames import as_item
from rxllm.adapters._openai_responses_input import input_items
from rxllm.adapters._openai_responses_wire import ResponsesDecoder
from rxllm.adapters._request import response_format
from rxllm.values import AdapterError, Call, Request, Tool

if TYPE_CHECKING:
    import httpx

REASONERS = re.compile(r"(.*/)?(o\d|gpt-5(?!.*chat)|gpt-[6-9]|codex|computer-use|grok-4)")
"""The models that think, by their names. Others refuse to be asked for what they thought."""

_STATEFUL = ("previous_response_id", "conversation", "background")


class OpenAIResponses(HTTPAdapter):
    """``POST {base_url}/responses`` of OpenAI, or of a server that is compatible with it.

    A key is needed for OpenAI alone: from `api_key`, the call, or ``OPENAI_API_KEY``; for Azure see `OpenAIChat`.
    Every request says the whole thread, so nothing is stored (``"store": False``) and what the model thought is asked
    for in encrypted form, to be sent back; ``Request.options`` that lean on the server's memory (``store``,
    ``previous_response_id``, ``conversation``, ``background``) leave that to you.

    ``Request.options`` is merged over the body, objects field by field: ``{"reasoning": {"summary": "auto"}}`` goes
    together with a `reasoning_effort`. None takes a field out. Log-probabilities, ``Response.metadata["logprobs"]``,
    are asked for with ``{"include": ["message.output_text.logprobs"], "top_logprobs": 2}``. The provider's own tools
    are given there, as ``{"tools": [{"type": "web_search"}]}``, or beside one's own as ``Tool("web_search",
    metadata={"openai": {"type": "web_search"}})``; a handler is for those that run here (``apply_patch``,
    ``local_shell``, ``computer``).
    """

    provider = "openai"
    key_variable = "OPENAI_API_KEY"
    default_base_url = "https://api.openai.com/v1"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """The request as it will be sent. Raises ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider)
        body = responses_body(request, provider=self.provider)
        return self.post("/responses", body, call, headers=bearer(self, call))

    def decoder(self, request: Request, *, raw: bool = False) -> ResponsesDecoder:
        optional = (as_item(tool).get("name") for tool in request.options.get("tools") or ())
        offered = {tool.name for tool in request.tools} | {str(name) for name in optional}
        return ResponsesDecoder(provider=self.provider, messages=request.messages, offered=offered, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return http_error(self.provider, status, headers, body)


def responses_body(request: Request, *, provider: str = "openai") -> dict[str, Any]:
    """The JSON body of `request`.

    The API has no ``stop`` and no ``seed``; they are sent all the same, for a server that knows them, and OpenAI's
    refusal is better than silence.
    """
    options = request.options
    wanted = response_format(request)
    stored = bool(options.get("store")) or any(options.get(name) for name in _STATEFUL)
    body: dict[str, Any] = {
        "model": request.model,
        "input": input_items(request.messages, provider=provider, stored=stored),
        "stream": True,
        "store": None if stored else False,
        "include": ["reasoning.encrypted_content"] if _reasons(request) else None,
        "tools": [_tool(tool, provider) for tool in request.tools] or None,
        "tool_choice": _tool_choice(request, provider),
        "temperature": request.temperature,
        "max_output_tokens": request.max_tokens,
        "stop": list(request.stop) or None,
        "seed": request.seed,
        "reasoning": {"effort": request.reasoning_effort} if request.reasoning_effort else None,
        "text": {"format": wanted} if wanted else None,
    }
    for name, held in options.items():
        known = body.get(name)
        body[name] = {**known, **held} if isinstance(known, dict) and isinstance(held, dict) else held
    return {name: held for name, held in body.items() if held is not None}


def _reasons(request: Request) -> bool:
    asked = bool(request.reasoning_effort) or bool(request.options.get("reasoning"))
    return asked or REASONERS.match(request.model or "") is not None


def _tool(tool: Tool, provider: str) -> dict[str, Any]:
    own = as_item(tool.metadata.get(provider))
    if own:
        named = {"name": tool.name, "description": tool.description} if own.get("type") == "custom" else {}
        return {**named, **own}
    # Left out, `strict` would mean True here, and schemas that do not fit would be refused.
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": bool(tool.metadata.get("strict")),
    }


def _tool_choice(request: Request, provider: str) -> Any:
    choice = request.tool_choice
    if choice is None or isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    chosen = next((tool for tool in request.tools if tool.name == choice), None)
    kind = as_item(chosen.metadata.get(provider)).get("type", "function") if chosen is not None else "function"
    return {"type": kind, "name": choice} if kind in ("function", "custom") else {"type": kind}
