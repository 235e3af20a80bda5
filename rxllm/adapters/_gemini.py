"""Google's Gemini: values to the HTTP request of ``streamGenerateContent``, and its decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rxllm.adapters._gemini_auth import GoogleKeys, model_path
from rxllm.adapters._gemini_errors import answer_error
from rxllm.adapters._gemini_messages import contents_of, system_of
from rxllm.adapters._gemini_wire import GeminiDecoder
from rxllm.adapters._http import HTTPAdapter
from rxllm.adapters._http_base import missing_model
from rxllm.adapters._request import merge
from rxllm.values import AdapterError, Call, Request, Tool, ValidationError

if TYPE_CHECKING:
    import httpx

_BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


class Gemini(GoogleKeys, HTTPAdapter):
    """``POST {base_url}/models/{model}:streamGenerateContent?alt=sse`` of the Gemini API, or of Vertex AI.

    The key is `api_key`, the call's, ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY``. For Vertex, give the `base_url`
    ``https://aiplatform.googleapis.com/v1/projects/P/locations/L/publishers/google`` and an access token as the key.
    ``Request.options`` is merged over the body, objects into objects: ``{"generationConfig": {"topP": 0.9}}``; what it
    has for ``tools`` (``[{"googleSearch": {}}]``) comes beside the functions; None takes a field out.
    ``{"generationConfig": {"responseLogprobs": True, "logprobs": 2}}`` asks for log-probabilities, see
    ``Response.metadata["logprobs"]``.
    """

    def build(self, request: Request, call: Call) -> httpx.Request:
        """The request as it will be sent. Raises ``EngineError("missing_model")`` without a model."""
        if not request.model:
            raise missing_model(self.provider)
        key = self.key(call)
        path = f"/{model_path(request.model)}:streamGenerateContent?alt=sse"
        return self.post(path, gemini_body(request), call, headers=self._auth(key) if key else {})

    def decoder(self, request: Request, *, raw: bool = False) -> GeminiDecoder:
        return GeminiDecoder(messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        return answer_error(status, headers, body)


def gemini_body(request: Request) -> dict[str, Any]:
    """The JSON body of `request`."""
    model = request.model or ""
    body = {
        "contents": contents_of(request.messages, model),
        "systemInstruction": system_of(request.messages),
        "tools": [{"functionDeclarations": [_tool(tool) for tool in request.tools]}] if request.tools else None,
        "toolConfig": _tool_config(request.tool_choice),
        "generationConfig": _filled(
            temperature=request.temperature,
            maxOutputTokens=request.max_tokens,
            stopSequences=list(request.stop) or None,
            seed=request.seed,
            thinkingConfig=_thinking(request.reasoning_effort, model),
            **_response_format(request.response_format),
        ),
    }
    options = dict(request.options)
    if isinstance(options.get("tools"), list):
        options["tools"] = [*(body["tools"] or ()), *options["tools"]]
    merged = merge(body, options)
    return {name: held for name, held in merged.items() if held or name == "contents"}


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: held for name, held in fields.items() if held is not None}


def _tool(tool: Tool) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": tool.name, "description": tool.description}
    # A function without parameters must not declare any.
    return declared | ({"parametersJsonSchema": tool.schema} if tool.schema.get("properties") else {})


def _tool_config(choice: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if choice is None or isinstance(choice, dict):
        return choice
    config: dict[str, Any] = {"mode": _MODES.get(choice, "ANY")}
    if choice not in _MODES:
        config["allowedFunctionNames"] = [choice]
    return {"functionCallingConfig": config}


def _thinking(effort: str | None, model: str) -> dict[str, Any] | None:
    """https://ai.google.dev/gemini-api/docs/thinking: Gemini 2.5 takes a budget in tokens, later ones a level."""
    if effort is None:
        return None
    if effort not in _BUDGETS:
        message = f"{effort!r} is no reasoning effort; use one of {', '.join(_BUDGETS)}"
        raise ValidationError("invalid_request", message, errors=[(("reasoning_effort",), "unknown")])
    if re.search(r"gemini-2\b", model):
        return {"thinkingBudget": _BUDGETS[effort], "includeThoughts": effort != "none"}
    # The thinking of later models cannot be switched off.
    return {"thinkingLevel": effort.upper() if effort != "none" else "MINIMAL", "includeThoughts": effort != "none"}


def _response_format(wanted: str | dict[str, Any] | None) -> dict[str, Any]:
    match wanted:
        case None | "text":
            return {}
        case {"type": "json_schema", "schema": schema}:
            return {"responseMimeType": "application/json", "responseJsonSchema": schema}
        case {"type": "json_object"}:
            return {"responseMimeType": "application/json"}
        case _:
            message = f"{wanted!r} is no response format; use json_schema(...) or {{'type': 'json_object'}}"
            raise ValidationError("invalid_request", message, errors=[(("response_format",), "unknown")])
